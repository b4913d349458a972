"""RoBERTa: BERT trained longer, on more text, without pairs of sentences.

The encoder is BERT's. Positions are counted from the number after that of the padding word, 2, so
that a table of 514 rows serves 512 tokens; there is one type of tokens; heads have other names.

Source: Liu et al. 2019, arXiv:1907.11692.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dynbatch import nodes as F
from dynbatch.models.pretrained.bert import Bert, BertConfig
from dynbatch.models.pretrained.bert_heads import (
    BertForClassification,
    BertForMaskedWords,
    BertForTokens,
)
from dynbatch.models.pretrained.table import Table
from dynbatch.nodes.node import Node


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(BertConfig):
    """Sizes and choices of a RoBERTa; the fields are those of config.json.

    Args:
        pad_token_id: the padding word, which no sentence has here; positions begin after it.

    All others are `BertConfig`'s. XLM-RoBERTa is RoBERTa on a hundred languages, under the same
    names.
    """

    model_types = ("roberta", "xlm-roberta")

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1


class Roberta(Bert):
    """The encoder: `roberta(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `RobertaModel` in `transformers`. A checkpoint without a pooler loads with
    `new=["pooler.{}"]`.

    Args:
        config: a `RobertaConfig`.
        rng:    generator or seed of the initial values.
    """

    config_type = RobertaConfig
    architecture = "RobertaModel"
    prefix = "roberta."
    skipped = ("embeddings.position_ids", "lm_head.**", "classifier.**")


class RobertaForMaskedWords(BertForMaskedWords):
    """RoBERTa with the head that fills in masked words, `RobertaForMaskedLM` in `transformers`."""

    config_type: ClassVar[type[BertConfig]] = RobertaConfig
    architecture = "RobertaForMaskedLM"
    prefix = "roberta."
    skipped, spare = ("embeddings.position_ids", "pooler.**"), ("lm_head.bias",)
    head, transform_names = "lm_head", ("dense", "layer_norm")


class RobertaForClassification(BertForClassification):
    """RoBERTa with a classifier of sentences, `RobertaForSequenceClassification`.

    Its pooler is a part of the classifier in checkpoints, and has dropout before it too.
    """

    config_type: ClassVar[type[BertConfig]] = RobertaConfig
    architecture = "RobertaForSequenceClassification"
    prefix = "roberta."
    skipped = ("embeddings.position_ids", "pooler.**", "lm_head.**")

    def pooled(self, hidden: Node) -> Node:
        return F.tanh(self.pooler(self.dropout(hidden[0])))

    def table(self) -> Table:
        return {
            **self.encoder_table(self.prefix, "classifier.dense.{}"),
            "classifier.{}": "classifier.out_proj.{}",
        }


class RobertaForTokens(BertForTokens):
    """RoBERTa with a classifier of tokens, `RobertaForTokenClassification` in `transformers`."""

    config_type: ClassVar[type[BertConfig]] = RobertaConfig
    architecture = "RobertaForTokenClassification"
    prefix = "roberta."
    skipped = ("embeddings.position_ids", "pooler.**", "lm_head.**")

    def table(self) -> Table:
        return {**self.encoder_table(self.prefix), "classifier.{}": "classifier.{}"}
