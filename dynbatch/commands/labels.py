"""Labels of texts by a published encoder that was fine-tuned to classify them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.models.predict import predict
from dynbatch.models.pretrained import BertForClassification
from dynbatch.tasks.classification import Classification, labelled
from dynbatch.tasks.task import TextCoder


class PretrainedClassifier:
    """A BERT or RoBERTa with a classifier of texts, and its tokenizer."""

    name = Classification.name

    def __init__(self, model: BertForClassification, tokenizer: TextCoder) -> None:
        self.model, self.tokenizer = model, tokenizer

    def label(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """The label of each line, its probability, and those of all labels."""
        ids = [self.tokenizer.encode(line) for line in lines]
        scores = predict(self.model, self.model.logits, ids)
        return labelled(lines, scores, self.model.config.labels)

    @staticmethod
    def line(found: dict[str, Any]) -> str:
        """The label alone."""
        return Classification.line(found)
