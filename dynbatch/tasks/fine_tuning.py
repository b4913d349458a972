"""Fine-tuning: a label for each text, by a published encoder that is trained further.

Source: Devlin et al. 2019, arXiv:1810.04805, section 4.1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dynbatch.backend import Array
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.predict import predict
from dynbatch.models.pretrained import (
    BertForClassification,
    RobertaForClassification,
    load_pretrained,
)
from dynbatch.models.pretrained.folder import CONFIG, file_of, read_json
from dynbatch.models.pretrained.roberta import RobertaConfig
from dynbatch.nodes.node import Node
from dynbatch.optim import AdamW, Optimizer
from dynbatch.tasks.options import option, passes, share
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import Parts, TextCoder, damaged_description
from dynbatch.tasks.text_labelling import LabelledIds, TextLabelling, labels_of
from dynbatch.tasks.tuning import TuningSettings, adapt, fitted_steps, folder_to_begin_from
from dynbatch.text import LabelledText
from dynbatch.text.folder import copy_tokenizer, load_tokenizer
from dynbatch.train import CheckpointInfo


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings(TuningSettings, TaskSettings):
    """Settings of the fine-tuning of an encoder."""

    from_: str | None = option(
        None, "folder of the BERT, MiniLM or RoBERTa to begin from", str, is_kept=False
    )
    epochs: int = option(4, "passes over the data", passes)
    batch_size: int = option(16, "texts in a mini-batch")
    dropout: float = option(0.1, "probability that a feature is dropped while training", share)


class FineTuning(TextLabelling):
    """A BERT or RoBERTa with a classifier of texts, and its tokenizer.

    Args:
        tokenizer: makes ids of text.
        labels:    all labels, in the order of their numbers.
        model:     a classifier of so many.
    """

    name = "fine-tuning"
    is_bounded = True  # an encoder reads its first tokens
    network = "fine-tuned"
    Settings = FineTuningSettings
    model: BertForClassification

    def __init__(
        self, tokenizer: TextCoder, labels: Sequence[str], model: BertForClassification
    ) -> None:
        super().__init__(labels)
        self.tokenizer, self.model = tokenizer, model

    @classmethod
    def begin(cls, parts: Parts, settings: FineTuningSettings) -> Self:
        """The encoder with a new classifier; its tokenizer is put into the run's folder.

        Raises:
            DataError:       there is no folder to begin from, or all texts have one label.
            CheckpointError: the folder has no such model, or no tokenizer.
        """
        labels = labels_of(parts.train)
        if settings.resume and settings.output is not None:  # the run has a model of its own
            return cls(load_tokenizer(settings.output), labels, load_pretrained(settings.output))
        folder = folder_to_begin_from(
            settings, cls.name, "--from FOLDER is a BERT, MiniLM or RoBERTa, with its tokenizer",
            "--from minilm, after hf download sentence-transformers/all-MiniLM-L6-v2 "
            "--local-dir minilm",
        )  # fmt: skip
        kind = read_json(file_of(folder, CONFIG)).get("model_type")
        family, new = BertForClassification, ["classifier.{}"]
        if kind in RobertaConfig.model_types:
            family, new = RobertaForClassification, ["classifier.{}", "pooler.{}"]
        model = family.from_pretrained(
            folder, new=new, id2label=dict(enumerate(labels)), classifier_dropout=None,
            hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout,
        )  # fmt: skip
        adapt(model, settings.lora, settings.dropout, str(settings.from_), "SEQ_CLS")
        tokenizer = load_tokenizer(folder)
        if settings.output is not None:
            copy_tokenizer(folder, settings.output)
        return cls(tokenizer, labels, model)

    @classmethod
    def fitted(cls, texts: Sequence[Any], settings: FineTuningSettings) -> dict[str, Any]:
        return fitted_steps(settings.epochs * -(-len(texts) // settings.batch_size), settings)

    @property
    def num_ids(self) -> int:
        return int(self.model.config.vocab_size)

    def ids(self, text: str) -> Array:
        """The ids of a text: where there are more than the model has positions, the first and the
        last, which ends a text."""
        ids, most = self.tokenizer.encode(text), self.model.positions
        return ids if len(ids) <= most else np.append(ids[: most - 1], ids[-1])

    def tokens(self, held_out: Sequence[LabelledText]) -> list[str]:
        """The number of texts longer than the model reads, if any are."""
        most = self.model.positions
        cut = sum([len(self.tokenizer.encode(text.text)) > most for text in held_out])
        said = f"{cut:,} of {len(held_out):,} held-out texts are cut, to the {most} that it reads"
        return [said] if cut else []

    def loss(self, graph: Graph, model: BertForClassification, example: LabelledIds) -> Node:
        return model.loss(graph, example.ids, example.label)

    def optimizer(self, settings: FineTuningSettings) -> Optimizer:
        """AdamW, as BERT was fine-tuned."""
        return AdamW(self.model, lr=settings.lr)

    def scores(self, texts: Sequence[str], matmul: str = FULL) -> list[Array]:
        """Scores of the labels of each text, (K,)."""
        ids = [self.ids(text) for text in texts]
        return predict(self.model, self.model.logits, ids, matmul=matmul)

    def label(self, lines: Sequence[str], matmul: str = FULL) -> list[dict[str, Any]]:
        """The label of each line, its probability, and those of all labels; a warning names lines
        that are longer than the model reads."""
        most = self.model.positions
        for line in lines:
            if (count := len(self.tokenizer.encode(line))) > most:
                print(
                    f"warning: {line[:40]!r}… has {count:,} tokens, and {most} are read: the first "
                    f"{most - 1} and the last",
                    file=sys.stderr,
                )
        return super().label(lines, matmul)

    def description(self) -> dict[str, Any]:
        """Nothing: a checkpoint has the model's config.json, and the tokenizer lies beside it."""
        return {}

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        """The task of a checkpoint, with its model, and the tokenizer in its folder.

        Raises:
            CheckpointError: its model is another, or there is no tokenizer.
        """
        model = load_pretrained(info.path)
        if not isinstance(model, BertForClassification):
            raise damaged_description(info, f"a {type(model).__name__} for a classifier of texts")
        return cls(load_tokenizer(Path(info.path).parent), model.config.labels, model)
