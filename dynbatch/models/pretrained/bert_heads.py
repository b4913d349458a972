"""BERT's heads: masked words, classes of sentences, classes of tokens.

Source: Devlin et al. 2019, arXiv:1810.04805, sections 3.1 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import size
from dynbatch.models.initial import Rng, generator, zeros
from dynbatch.models.layers import Dropout, LayerNorm, Linear
from dynbatch.models.pretrained.activations import activation_of
from dynbatch.models.pretrained.bert import Bert, BertConfig
from dynbatch.models.pretrained.language import output_layer
from dynbatch.models.pretrained.table import Table
from dynbatch.models.transformer.feed_forward import ACTIVATIONS
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node, Owner


class BertForMaskedWords(Bert):
    """BERT with the head that fills in masked words, `BertForMaskedLM` in `transformers`."""

    architecture = "BertForMaskedLM"
    skipped: ClassVar[tuple[str, ...]] = (
        "embeddings.position_ids",
        "pooler.**",
        "cls.seq_relationship.**",
    )
    has_pooler = False
    spare: ClassVar[tuple[str, ...]] = ("cls.predictions.bias",)  # beside a decoder of its own
    head: ClassVar[str] = "cls.predictions"
    transform_names: ClassVar[tuple[str, str]] = ("transform.dense", "transform.LayerNorm")

    def __init__(self, config: BertConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        super().__init__(config, rng=rng)
        self.transform = Linear(config.hidden_size, config.hidden_size, rng=rng)
        self.transform_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        is_tied, scale = config.tie_word_embeddings, config.initializer_range
        self.output = output_layer(self.embeddings.word, is_tied, scale, rng)
        self.bias = zeros(config.vocab_size)
        self.activation = ACTIVATIONS[activation_of("BertConfig", config.hidden_act)]

    def predict(self, hidden: Node) -> Node:
        """Logits of words for some rows of the last layer's values, (T, D) -> (T, V)."""
        x = self.transform_norm(self.activation(self.transform(hidden)))
        return self.output.adapted(x, F.linear(x, self.output.weight, self.bias))

    def logits(self, graph: Owner, ids: ArrayLike, types: ArrayLike | None = None) -> Node:
        """(T, V) for the word at each token."""
        return self.predict(self(graph, ids, types))

    def loss(
        self, graph: Owner, ids: ArrayLike, targets: ArrayLike, types: ArrayLike | None = None,
        reduction: str = "sum",
    ) -> Node:  # fmt: skip
        """Cross-entropy in nats at the tokens whose target is not negative.

        Only for these are logits made, a few at a time.

        Args:
            targets:   the T words that were there, -100 where none is to be predicted.
            reduction: "sum", or "mean" over the predictions.
        """
        targets = as_ids("loss", targets)
        chosen = np.flatnonzero(targets >= 0)
        hidden = F.gather_rows(self(graph, ids, types), chosen)
        return F.cross_entropy(self.predict(hidden), targets[chosen], reduction=reduction)

    def tied(self) -> Mapping[str, str]:
        if not self.config.tie_word_embeddings:
            return {f"{self.head}.bias": f"{self.head}.decoder.bias"}
        return {
            f"{self.head}.decoder.weight": f"{self.prefix}embeddings.word_embeddings.weight",
            f"{self.head}.decoder.bias": f"{self.head}.bias",
        }

    def table(self) -> Table:
        dense, norm = self.transform_names
        return {
            **self.encoder_table(self.prefix),
            "transform.{}": f"{self.head}.{dense}.{{}}",
            "transform_norm.{}": f"{self.head}.{norm}.{{}}",
            "output.weight": f"{self.head}.decoder.weight",
            "bias": f"{self.head}.{'' if self.config.tie_word_embeddings else 'decoder.'}bias",
        }


class BertWithClassifier(Bert):
    """Base of classifiers: the encoder, a linear layer for labels, dropout before it."""

    def __init__(self, config: BertConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        super().__init__(config, rng=rng)
        self.classifier = Linear(config.hidden_size, config.num_labels, rng=rng)
        self.dropout = Dropout(config.dropout_of_classifier)


class BertForClassification(BertWithClassifier):
    """BERT with a classifier of sentences, `BertForSequenceClassification` in `transformers`."""

    architecture = "BertForSequenceClassification"
    skipped: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "cls.**")

    def logits(self, graph: Owner, ids: ArrayLike, types: ArrayLike | None = None) -> Node:
        """(C,) for the classes of a sentence."""
        return self.classifier(self.dropout(self.pooled(self(graph, ids, types))))

    def loss(
        self, graph: Owner, ids: ArrayLike, target: int, types: ArrayLike | None = None
    ) -> Node:
        """Cross-entropy in nats at the sentence's class.

        Args:
            target: the number of the class.

        Raises:
            ArgumentError: it is none, such as the name of the class.
        """
        number = size(self, "target", np.asarray(target).tolist(), 0)
        return F.cross_entropy(self.logits(graph, ids, types), number)

    def table(self) -> Table:
        return {
            **self.encoder_table("bert.", "bert.pooler.dense.{}"),
            "classifier.{}": "classifier.{}",
        }


class BertForTokens(BertWithClassifier):
    """BERT with a classifier of tokens, `BertForTokenClassification` in `transformers`."""

    architecture = "BertForTokenClassification"
    skipped: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "pooler.**", "cls.**")
    has_pooler = False

    def logits(self, graph: Owner, ids: ArrayLike, types: ArrayLike | None = None) -> Node:
        """(T, C) for the class of each token."""
        return self.classifier(self.dropout(self(graph, ids, types)))

    def loss(
        self, graph: Owner, ids: ArrayLike, targets: ArrayLike, types: ArrayLike | None = None,
        reduction: str = "sum",
    ) -> Node:  # fmt: skip
        """Cross-entropy in nats at the tokens' classes, where these are not -100.

        Args:
            reduction: "sum", or "mean" over the tokens that count.
        """
        logits = self.logits(graph, ids, types)
        return F.cross_entropy(logits, targets, ignore_index=-100, reduction=reduction)

    def table(self) -> Table:
        return {**self.encoder_table("bert."), "classifier.{}": "classifier.{}"}
