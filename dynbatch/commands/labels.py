"""Labels of texts by a published encoder that was fine-tuned to classify them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.models.predict import predict
from dynbatch.models.pretrained import BertForClassification
from dynbatch.parameter import Array
from dynbatch.tasks.classification import Classification
from dynbatch.tasks.task import TextCoder
from dynbatch.tasks.text_labelling import labelled


class PretrainedClassifier:
    """A BERT or RoBERTa with a classifier of texts, and its tokenizer."""

    name = Classification.name

    def __init__(self, model: BertForClassification, tokenizer: TextCoder) -> None:
        self.model, self.tokenizer = model, tokenizer

    def label(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """The label of each line, its probability, and those of all labels."""
        ids = [self._ids(line) for line in lines]
        scores = predict(self.model, self.model.logits, ids)
        return labelled(lines, scores, self.model.config.labels)

    def _ids(self, line: str) -> Array:
        """The ids of a line, of which no more than the model has positions; a warning says so."""
        ids, most = self.tokenizer.encode(line), self.model.positions
        if len(ids) <= most:
            return ids
        print(
            f"warning: {line[:40]!r}… has {len(ids):,} tokens, and {most} are read: the first "
            f"{most - 1} and the last",
            file=sys.stderr,
        )
        return np.append(ids[: most - 1], ids[-1])

    @staticmethod
    def line(found: dict[str, Any]) -> str:
        """The label alone."""
        return Classification.line(found)
