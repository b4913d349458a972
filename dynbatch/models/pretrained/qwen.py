"""Qwen 2 and Qwen 3: decoders with biases of queries, keys and values, or with these normalised.

Source: Yang et al. 2024, arXiv:2407.10671, section 2.2; Yang et al. 2025, arXiv:2505.09388,
    section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dynbatch.models.pretrained.decoder import (
    FULL,
    SLIDING,
    CausalDecoder,
    DecoderConfig,
    check_types,
    window_of,
)
from dynbatch.models.pretrained.positions import refuse_settings


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(DecoderConfig):
    """Sizes and choices of a Qwen 2 or Qwen 2.5; the fields are those of config.json.

    Args:
        hidden_act:         activation of the gate.
        use_sliding_window: whether some layers see a window alone.
        sliding_window:     tokens that a token sees there, itself among them.
        max_window_layers:  layers from this one on do, unless there are layer_types.
        layer_types:        "full_attention" or "sliding_attention" of each layer.
        attention_bias:     refused if it is True: queries, keys and values always have biases.

    All others are those of decoders, as `LlamaConfig` has them.
    """

    model_types = ("qwen2",)

    vocab_size: int = 151936
    intermediate_size: int = 22016
    max_position_embeddings: int = 32768
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_types(self, self.layer_types)
        self.refuse_biases()

    def refuse_biases(self) -> None:
        refuse_settings(self, attention_bias=(False,))

    @property
    def biases(self) -> tuple[str, ...]:
        return ("qkv",)

    def type_of(self, layer: int) -> str:
        if self.layer_types is not None:
            return str(self.layer_types[layer])
        has_windows = self.use_sliding_window and self.sliding_window is not None
        return SLIDING if has_windows and layer >= self.max_window_layers else FULL

    def window(self, layer_type: str) -> int | None:
        if layer_type == FULL:
            return None
        return window_of(self, self.sliding_window if self.use_sliding_window else None)


class Qwen2(CausalDecoder):
    """The language model: `qwen(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `Qwen2ForCausalLM` in `transformers`; Qwen 2.5 is of the same form.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = Qwen2Config
    architecture = "Qwen2ForCausalLM"


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(Qwen2Config):
    """Sizes and choices of a Qwen 3; the fields are those of config.json.

    Args:
        attention_bias: whether attention's maps have biases.

    All others are `Qwen2Config`'s.
    """

    model_types = ("qwen3",)

    head_dim: int | None = 128

    has_qk_norm: ClassVar[bool] = True

    def refuse_biases(self) -> None:
        """Refuse nothing: a setting says whether there are biases."""

    @property
    def biases(self) -> tuple[str, ...]:
        return ("qkv", "out") if self.attention_bias else ()


class Qwen3(CausalDecoder):
    """The language model: `qwen(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `Qwen3ForCausalLM` in `transformers`. Its experts' variants are not here.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = Qwen3Config
    architecture = "Qwen3ForCausalLM"
