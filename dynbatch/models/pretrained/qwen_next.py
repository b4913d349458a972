"""Qwen3-Next (text): a decoder of layers of gated DeltaNet, and of attention with gates.

Scales of norms are stored less 1, but for those within the DeltaNets; a part of each head's
features is turned by positions.

Source: Qwen Team 2025, "Qwen3-Next"; its layers: Yang et al. 2025, arXiv:2412.06464, and Qiu et al.
    2025, arXiv:2505.06708.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dynbatch import nodes as F
from dynbatch.arguments import number, refused, size
from dynbatch.backend import Array
from dynbatch.models.layers import Linear
from dynbatch.models.matrix_state import GatedDeltaNet
from dynbatch.models.pretrained.decoder import FULL, CausalDecoder, DecoderConfig, check_types
from dynbatch.models.pretrained.positions import refuse_settings
from dynbatch.models.pretrained.table import Table
from dynbatch.models.transformer.layers import LayerOptions
from dynbatch.nodes.node import Node

LINEAR = "linear_attention"


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(DecoderConfig):
    """Sizes and choices of a Qwen3-Next; the fields are those of config.json.

    Args:
        hidden_act:            activation of the gate, "silu".
        partial_rotary_factor: share of each head's features that positions turn; also read from
            "rope_parameters".
        linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim,
        linear_conv_kernel_dim: sizes of the layers of `GatedDeltaNet`.
        layer_types:           "full_attention" or "linear_attention" of each layer; if it is None,
            each fourth layer is of attention, or as many as full_attention_interval says.
        num_experts, decoder_sparse_step, mlp_only_layers: refused where they give a layer experts.

    All others are those of decoders, as `LlamaConfig` has them.
    """

    model_types = ("qwen3_next",)

    vocab_size: int = 151936
    hidden_size: int = 2048
    num_hidden_layers: int = 48
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 2
    head_dim: int | None = 256
    intermediate_size: int = 5632
    max_position_embeddings: int = 32768
    hidden_act: str = "silu"
    partial_rotary_factor: float = 0.25
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    layer_types: list[Any] | None = None
    num_experts: int = 512
    decoder_sparse_step: int = 1
    mlp_only_layers: list[Any] | None = None

    has_qk_norm: ClassVar[bool] = True
    has_gated_attention: ClassVar[bool] = True
    stores_scales_less_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rope_scaling:
            scaling = dict(self.rope_scaling)
            self._read_share(scaling)
            object.__setattr__(self, "rope_scaling", scaling)
        super().__post_init__()
        check_types(self, self.layer_types, (FULL, LINEAR))
        refuse_settings(self, hidden_act=("silu",))
        step = size(type(self).__name__, "decoder_sparse_step", self.decoder_sparse_step)
        dense = self.mlp_only_layers or ()
        for layer in range(self.num_hidden_layers if self.num_experts > 0 else 0):
            if layer not in dense and (layer + 1) % step == 0:
                raise refused(
                    type(self).__name__, f"layer {layer} has {self.num_experts} experts",
                    "the feed-forward part of each layer is one, and no mixture of experts",
                    "choose a checkpoint with num_experts 0, or whose mlp_only_layers are all",
                )  # fmt: skip

    def refuse_partial(self) -> None:
        owner, share = type(self).__name__, self.partial_rotary_factor
        number(owner, "partial_rotary_factor", share, "(0, 1]")
        if self.turned < 2 or self.turned % 2:
            raise refused(
                owner, f"partial_rotary_factor {share:g} of head_dim {self.head_size} is "
                f"{self.turned} features", "positions turn pairs of features, one or more",
                "choose a checkpoint of another head_dim or partial_rotary_factor",
            )  # fmt: skip

    def read_rope(self, rope: dict[str, Any]) -> None:
        if not self.rope_scaling:
            self._read_share(rope)
        super().read_rope(rope)

    def _read_share(self, rope: dict[str, Any]) -> None:
        share = rope.pop("partial_rotary_factor", self.partial_rotary_factor)
        object.__setattr__(self, "partial_rotary_factor", share)

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, with positions in the form that `transformers` reads."""
        content = super().to_json()
        rope = {"rope_theta": self.rope_theta, **(content.pop("rope_scaling") or {})}
        rope.setdefault("rope_type", rope.pop("type", "default"))
        rope["partial_rotary_factor"] = self.partial_rotary_factor
        return content | {"rope_parameters": rope, "layer_types": self.types}

    @property
    def types(self) -> list[str]:
        """The type of attention of each layer."""
        if self.layer_types is not None:
            return list(map(str, self.layer_types))
        interval = self.others.get("full_attention_interval", 4)
        interval = size(type(self).__name__, "full_attention_interval", interval)
        return [LINEAR if (k + 1) % interval else FULL for k in range(self.num_hidden_layers)]

    def type_of(self, layer: int) -> str:
        return self.types[layer]

    def rotary(self, layer_type: str) -> dict[str, Any]:
        return super().rotary(layer_type) | {"rotary_dim": self.turned}

    @property
    def turned(self) -> int:
        """Features of a head that positions turn."""
        return int(self.head_size * self.partial_rotary_factor)


class JoinedDeltaNet(GatedDeltaNet):
    """A `GatedDeltaNet` whose projections are two, as the files have them.

    Parameters: in place of the four, in_proj_qkvz.weight and in_proj_ba.weight, head of keys by
        head of keys with the values that it serves.
    """

    def _add_projections(self, dim: int, mixed: int, values: int, rng: np.random.Generator) -> None:
        self.in_proj_qkvz = Linear(dim, mixed + values, bias=False, rng=rng)
        self.in_proj_ba = Linear(dim, 2 * self.value_heads, bias=False, rng=rng)

    def projected(self, x: Node) -> tuple[Node, Node, Node, Node]:
        shared = self.value_heads // self.heads
        keys, values = self.key_dim, shared * self.value_dim
        parts = F.split(self.in_proj_qkvz(x), [keys, keys, values, values] * self.heads)
        gates = F.chunk(self.in_proj_ba(x), 2 * self.heads)
        mixed = F.concat([*parts[::4], *parts[1::4], *parts[2::4]])
        a = F.concat(gates[1::2]) + F.parameter(x.graph, self.dt_bias)
        return mixed, F.concat(parts[3::4]), F.concat(gates[::2]), a

    def own_names(self, state: dict[str, Array], prefix: str) -> None:
        """Take the names as they are."""


class Qwen3Next(CausalDecoder):
    """The language model: `qwen(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `Qwen3NextForCausalLM` in `transformers` without experts.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = Qwen3NextConfig
    architecture = "Qwen3NextForCausalLM"

    def options_of(self, rng: np.random.Generator, layer: int) -> LayerOptions:
        config: Any = self.config
        if config.type_of(layer) == FULL:
            return super().options_of(rng, layer)
        mixer = JoinedDeltaNet(
            config.hidden_size, config.linear_num_key_heads, key_dim=config.linear_key_head_dim,
            value_heads=config.linear_num_value_heads, value_dim=config.linear_value_head_dim,
            kernel=config.linear_conv_kernel_dim, eps=config.rms_norm_eps, rng=rng,
        )  # fmt: skip
        return {"linear_attn": mixer}

    def table(self) -> Table:
        names = ("dt_bias", "A_log", "in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight",
                 "norm.weight", "out_proj.weight")  # fmt: skip
        linear = {
            f"decoder.layers.*.linear_attn.{name}": f"model.layers.*.linear_attn.{name}"
            for name in names
        }
        return {**super().table(), **linear}
