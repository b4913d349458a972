"""Mistral: a decoder in which a token sees a window of those before it.

Source: Jiang et al. 2023, arXiv:2310.06825, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.models.pretrained.decoder import (
    FULL,
    SLIDING,
    CausalDecoder,
    DecoderConfig,
    window_of,
)
from dynbatch.models.pretrained.positions import refuse_settings


@dataclass(frozen=True, kw_only=True)
class MistralConfig(DecoderConfig):
    """Sizes and choices of a Mistral; the fields are those of config.json.

    Args:
        hidden_act:     activation of the gate.
        sliding_window: tokens that a token sees, itself among them; None for all.
        layer_types, attention_bias: refused if they are given, or True.

    All others are those of decoders, as `LlamaConfig` has them.
    """

    model_types = ("mistral",)

    num_key_value_heads: int | None = 8
    intermediate_size: int = 14336
    max_position_embeddings: int = 131072
    hidden_act: str = "silu"
    sliding_window: int | None = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(self, layer_types=(None,), attention_bias=(False,))

    def type_of(self, layer: int) -> str:
        return FULL if self.sliding_window is None else SLIDING

    def window(self, layer_type: str) -> int | None:
        return None if layer_type == FULL else window_of(self, self.sliding_window)


class Mistral(CausalDecoder):
    """The language model: `mistral(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `MistralForCausalLM` in `transformers`.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = MistralConfig
    architecture = "MistralForCausalLM"
