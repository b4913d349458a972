"""MPNet: BERT without types of tokens, whose attention also has T5's bias by distance.

Source: Song et al. 2020, arXiv:2004.09297, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dynbatch import nodes as F
from dynbatch.models.initial import Rng, normal
from dynbatch.models.pretrained.bert import Bert, BertConfig, LayerNames
from dynbatch.models.pretrained.positions import refuse_settings
from dynbatch.models.pretrained.roberta import (
    RobertaForClassification,
    RobertaForMaskedWords,
    RobertaForTokens,
)
from dynbatch.models.pretrained.table import Table
from dynbatch.nodes.attention.bias import DistanceBias

NAMES = LayerNames(
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    out="attention.attn.o", norm1="attention.LayerNorm",
)  # fmt: skip
BUCKETS = 32


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(BertConfig):
    """Sizes and choices of an MPNet; the fields are those of config.json.

    Args:
        relative_attention_num_buckets: of the bias by distance; refused if it is not 32, as
            `transformers` computes with 32.

    All others are `BertConfig`'s. There are no types of tokens; positions begin at 2.
    """

    model_types = ("mpnet",)

    vocab_size: int = 30527
    relative_attention_num_buckets: int = BUCKETS

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(self, relative_attention_num_buckets=(BUCKETS,))

    @property
    def has_types(self) -> bool:
        return False

    @property
    def first_position(self) -> int:
        return 2


class WithDistances(Bert):
    """Base of all: attention with a bias by distance, one table for all layers."""

    config_type: ClassVar[type[BertConfig]] = MPNetConfig
    prefix = "mpnet."
    layer_names = NAMES

    def position_bias(self, config: MPNetConfig, rng: np.random.Generator) -> DistanceBias:
        shape = (BUCKETS, config.num_attention_heads)
        self.distance_bias = normal(rng, shape, config.initializer_range)
        return F.t5_bias(self.distance_bias)

    def encoder_table(self, prefix: str, pooler: str | None = None) -> Table:
        name = f"{prefix}encoder.relative_attention_bias.weight"
        return {**super().encoder_table(prefix, pooler), "distance_bias": name}


class MPNet(WithDistances):
    """The encoder: `mpnet(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `MPNetModel` in `transformers`. A checkpoint without a pooler loads with
    `new=["pooler.{}"]`.

    Args:
        config: an `MPNetConfig`.
        rng:    generator or seed of the initial values.
    """

    architecture = "MPNetModel"
    skipped = ("embeddings.position_ids", "lm_head.**", "classifier.**")


class MPNetForMaskedWords(WithDistances, RobertaForMaskedWords):
    """MPNet with the head that fills in masked words, `MPNetForMaskedLM` in `transformers`."""

    architecture = "MPNetForMaskedLM"

    def __init__(self, config: MPNetConfig, *, rng: Rng = None) -> None:
        super().__init__(config, rng=rng)
        self.activation = F.gelu


class MPNetForClassification(WithDistances, RobertaForClassification):
    """MPNet with a classifier of sentences, `MPNetForSequenceClassification`."""

    architecture = "MPNetForSequenceClassification"


class MPNetForTokens(WithDistances, RobertaForTokens):
    """MPNet with a classifier of tokens, `MPNetForTokenClassification` in `transformers`."""

    architecture = "MPNetForTokenClassification"
