"""Gemma 2 and Gemma 3 (text): decoders whose layers take turns to see all or a window.

Words are multiplied by √D; each part's result is normalised as well; scales of norms are stored
less 1. Gemma 2 bounds scores and logits by c · tanh(s / c), Gemma 3 normalises queries and keys.

Source: Gemma Team 2024, arXiv:2408.00118, section 2; Gemma Team 2025, arXiv:2503.19786, section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dynbatch.arguments import number, size
from dynbatch.models.pretrained.activations import gate_of
from dynbatch.models.pretrained.decoder import (
    FULL,
    SLIDING,
    CausalDecoder,
    DecoderConfig,
    check_types,
    window_of,
)
from dynbatch.models.pretrained.positions import (
    refuse_settings,
    rope_parts,
    rotary_options_of_type,
)


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(DecoderConfig):
    """Sizes and choices of a Gemma 2; the fields are those of config.json.

    Args:
        hidden_activation:       activation of the gate.
        query_pre_attn_scalar:   scores are divided by the root of it.
        sliding_window:          tokens that a token sees in layers with a window, itself among
            them.
        layer_types:             "full_attention" or "sliding_attention" of each layer; by turns if
            it is None, the first with a window.
        attn_logit_softcapping, final_logit_softcapping: bounds of scores and logits; None for none.
        use_bidirectional_attention: refused if it is True.

    All others are those of decoders, as `LlamaConfig` has them.
    """

    model_types = ("gemma2",)

    vocab_size: int = 256000
    hidden_size: int = 2304
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    intermediate_size: int = 9216
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    hidden_activation: str = "gelu_pytorch_tanh"
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    layer_types: list[Any] | None = None
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    has_output_norms: ClassVar[bool] = True
    stores_scales_less_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_types(self, self.layer_types)
        refuse_settings(self, use_bidirectional_attention=(None, False))
        for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
            if (value := getattr(self, name)) is not None:
                number(type(self).__name__, name, value, "(0, inf)")

    @property
    def gate(self) -> str:
        return gate_of(type(self).__name__, self.hidden_activation)

    @property
    def scale(self) -> float:
        return float(self.query_pre_attn_scalar**-0.5)

    @property
    def softcap(self) -> float | None:
        return self.attn_logit_softcapping

    @property
    def output_softcap(self) -> float | None:
        return self.final_logit_softcapping

    @property
    def word_scale(self) -> float:
        return math.sqrt(self.hidden_size)

    @property
    def period(self) -> int:
        """Each layer of so many sees all tokens."""
        return 2

    def type_of(self, layer: int) -> str:
        if self.layer_types is not None:
            return str(self.layer_types[layer])
        return SLIDING if (layer + 1) % self.period else FULL

    def window(self, layer_type: str) -> int | None:
        return None if layer_type == FULL else window_of(self, self.sliding_window)


class Gemma2(CausalDecoder):
    """The language model: `gemma(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `Gemma2ForCausalLM` in `transformers`, as its attention "eager" computes it. With a bound
    of logits `loss` stores a sentence's logits.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = Gemma2Config
    architecture = "Gemma2ForCausalLM"


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    """Sizes and choices of a Gemma 3 that reads text; the fields are those of config.json.

    Args:
        rope_theta, rope_scaling: of layers that see all tokens.
        rope_local_base_freq, rope_local_scaling: of layers with a window; these four are also read
            from the two parts of "rope_parameters".
        layer_types: by turns if it is None, each sixth layer seeing all tokens; or as many as
            sliding_window_pattern says.
        attn_logit_softcapping: refused, as `transformers` does not apply it here.

    All others are `Gemma2Config`'s. The models with images are not read.
    """

    model_types = ("gemma3_text",)

    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    rope_theta: float = 1000000.0
    rope_local_base_freq: float = 10000.0
    rope_local_scaling: dict[str, Any] | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    has_qk_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(self, attn_logit_softcapping=(None,))

    def read_rope(self, rope: dict[str, Any]) -> None:
        parts = rope_parts(type(self).__name__, rope, (FULL, SLIDING))
        for kind, base, scaling in (
            (FULL, "rope_theta", "rope_scaling"),
            (SLIDING, "rope_local_base_freq", "rope_local_scaling"),
        ):
            if (part := parts.get(kind)) is not None:
                object.__setattr__(self, base, part.pop("rope_theta", getattr(self, base)))
                part |= getattr(self, scaling) or {}  # it goes before, as in transformers
                object.__setattr__(self, scaling, part)

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, with positions in the forms of all versions."""
        content = super().to_json()
        local = content.pop("rope_local_scaling")
        if local is not None:
            content["rope_parameters"] = {
                FULL: {"rope_theta": self.rope_theta, **(content.pop("rope_scaling") or {})},
                SLIDING: {"rope_theta": self.rope_local_base_freq, **local},
            }
        return content

    @property
    def period(self) -> int:
        pattern = self.others.get("sliding_window_pattern", 6)
        return size(type(self).__name__, "sliding_window_pattern", pattern)

    def rotary(self, layer_type: str) -> dict[str, Any]:
        if layer_type == FULL:
            return rotary_options_of_type(self, self.rope_theta, self.rope_scaling)
        return rotary_options_of_type(self, self.rope_local_base_freq, self.rope_local_scaling)


class Gemma3(CausalDecoder):
    """The language model: `gemma(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `Gemma3ForCausalLM` in `transformers`, the model of text alone.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = Gemma3Config
    architecture = "Gemma3ForCausalLM"
