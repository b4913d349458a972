"""DistilBERT: half of BERT's layers, without types of tokens.

Source: Sanh et al. 2019, arXiv:1910.01108, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from dynbatch import nodes as F
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Dropout
from dynbatch.models.pretrained.bert import Bert, BertConfig, LayerNames
from dynbatch.models.pretrained.bert_heads import (
    BertForClassification,
    BertForMaskedWords,
    BertForTokens,
)
from dynbatch.models.pretrained.positions import refuse_settings
from dynbatch.models.pretrained.table import Table
from dynbatch.nodes.node import Node

NAMES = LayerNames(
    "transformer.layer", ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DistilBertConfig(BertConfig):
    """Sizes and choices of a DistilBERT.

    Its fields bear the names of `BertConfig`, whose meaning they have; config.json has others for
    them, such as "dim" for hidden_size (`names`). There are no types of tokens. A layer_norm_eps
    other than 1e-12, with which `transformers` computes, is refused.
    """

    model_types = ("distilbert",)
    names: ClassVar[Mapping[str, str]] = MappingProxyType({
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim", "hidden_act": "activation",
        "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    })  # fmt: skip

    num_hidden_layers: int = 6
    classifier_dropout: float | None = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(self, layer_norm_eps=(1e-12,))

    @property
    def has_types(self) -> bool:
        return False


class DistilBert(Bert):
    """The encoder: `bert(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `DistilBertModel` in `transformers`, which has no pooler.

    Args:
        config: a `DistilBertConfig`.
        rng:    generator or seed of the initial values.
    """

    config_type = DistilBertConfig
    architecture = "DistilBertModel"
    prefix = "distilbert."
    skipped = ("embeddings.position_ids", "vocab_**", "pre_classifier.**", "classifier.**")
    has_pooler = False
    layer_names = NAMES


class DistilBertForMaskedWords(BertForMaskedWords):
    """DistilBERT with the head that fills in masked words, `DistilBertForMaskedLM`."""

    config_type = DistilBertConfig
    architecture = "DistilBertForMaskedLM"
    prefix = "distilbert."
    skipped = ("embeddings.position_ids",)
    spare = ()
    layer_names = NAMES

    def tied(self) -> Mapping[str, str]:
        if not self.config.tie_word_embeddings:
            return {}
        return {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}

    def table(self) -> Table:
        return {
            **self.encoder_table(self.prefix),
            "transform.{}": "vocab_transform.{}",
            "transform_norm.{}": "vocab_layer_norm.{}",
            "output.weight": "vocab_projector.weight",
            "bias": "vocab_projector.bias",
        }


class DistilBertForClassification(BertForClassification):
    """DistilBERT with a classifier of sentences, `DistilBertForSequenceClassification`."""

    config_type = DistilBertConfig
    architecture = "DistilBertForSequenceClassification"
    prefix = "distilbert."
    skipped = ("embeddings.position_ids", "vocab_**")
    layer_names = NAMES

    def pooled(self, hidden: Node) -> Node:
        """relu(W h + b) of the first token's h, (T, D) -> (D,)."""
        return F.relu(self.pooler(hidden[0]))

    def table(self) -> Table:
        return {
            **self.encoder_table(self.prefix, "pre_classifier.{}"),
            "classifier.{}": "classifier.{}",
        }


class DistilBertForTokens(BertForTokens):
    """DistilBERT with a classifier of tokens, `DistilBertForTokenClassification`."""

    config_type = DistilBertConfig
    architecture = "DistilBertForTokenClassification"
    prefix = "distilbert."
    skipped = ("embeddings.position_ids", "vocab_**")
    layer_names = NAMES

    def __init__(self, config: DistilBertConfig, *, rng: Rng = None) -> None:
        super().__init__(config, rng=generator(rng))
        self.dropout = Dropout(config.hidden_dropout_prob)

    def table(self) -> Table:
        return {**self.encoder_table(self.prefix), "classifier.{}": "classifier.{}"}
