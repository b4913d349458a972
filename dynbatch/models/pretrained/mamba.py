"""Mamba-2: a language model of state spaces alone, without attention or feed-forward parts.

    x_t = word[id_t];  in each layer  x ← x + mixer(norm(x));  logits_t = W norm(x_t)

Norms divide by the root mean square; the mixer is `models.Mamba2`.

Source: Dao & Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.arguments import refused
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Embedding, RMSNorm
from dynbatch.models.matrix_state import Mamba2
from dynbatch.models.module import Module
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.language import CausalModel, output_layer
from dynbatch.models.pretrained.positions import refuse_settings
from dynbatch.models.pretrained.table import Table
from dynbatch.nodes.node import Node, Owner

INFINITY = {"__float__": "Infinity"}  # as `transformers` writes it, for which JSON has no number


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(ModelConfig):
    """Sizes and choices of a Mamba-2; the fields are those of config.json.

    Args:
        vocab_size:          number of ids, V.
        hidden_size:         features D.
        num_hidden_layers:   how many.
        num_heads, head_dim: heads of the state, and features of each: expand · D together.
        state_size:          numbers of the state for each of these features.
        expand:              inner features for each of D.
        n_groups:            of B and C.
        conv_kernel:         tokens that the convolution sees.
        use_bias, use_conv_bias: whether the projections and the convolution have biases.
        hidden_act:          "silu".
        layer_norm_epsilon:  added to the mean square.
        time_step_limit:     least and largest dt; 0 and infinity if it is None.
        tie_word_embeddings: whether W is the table of words.
        initializer_range:   deviation of the tables' initial values.
    """

    model_types = ("mamba2",)

    vocab_size: int = 32768
    hidden_size: int = 4096
    num_hidden_layers: int = 64
    num_heads: int = 128
    head_dim: int = 64
    state_size: int = 128
    expand: int = 2
    n_groups: int = 8
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    layer_norm_epsilon: float = 1e-5
    time_step_limit: list[Any] | None = None
    tie_word_embeddings: bool = False
    initializer_range: float = 0.1

    def __post_init__(self) -> None:
        refuse_settings(self, hidden_act=("silu",))
        if self.expand * self.hidden_size != self.num_heads * self.head_dim:
            raise refused(
                type(self).__name__, f"{self.num_heads} heads of {self.head_dim} features, "
                f"and {self.expand} · {self.hidden_size} inner features",
                "num_heads · head_dim is expand · hidden_size", "choose such sizes",
            )  # fmt: skip

    @property
    def dt_limit(self) -> tuple[float, ...]:
        """Least and largest dt."""
        limits = [0.0, math.inf] if self.time_step_limit is None else self.time_step_limit
        return tuple([math.inf if limit == INFINITY else limit for limit in limits])

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, with infinity as `transformers` writes it."""
        limits = [INFINITY if limit == math.inf else limit for limit in self.dt_limit]
        return super().to_json() | {"time_step_limit": limits}


class Mamba2Block(Module):
    """A layer: a mixer of normalised values, which is added to them, (T, D) -> (T, D)."""

    def __init__(self, config: Mamba2Config, rng: np.random.Generator) -> None:
        dt_limit: Any = config.dt_limit
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = Mamba2(
            config.hidden_size, config.num_heads, state=config.state_size, expand=config.expand,
            groups=config.n_groups, kernel=config.conv_kernel, bias=config.use_bias,
            conv_bias=config.use_conv_bias, dt_limit=dt_limit, eps=config.layer_norm_epsilon,
            rng=rng,
        )  # fmt: skip

    @block
    def __call__(self, x: Node) -> Node:
        return x + self.mixer(self.norm(x))


class Mamba2LanguageModel(CausalModel):
    """The language model: `mamba(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `Mamba2ForCausalLM` in `transformers`. A text may have any number of tokens; what is kept
    of it while text is written, a matrix a head, does not grow.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.
    """

    config_type = Mamba2Config
    architecture = "Mamba2ForCausalLM"
    prefix = "backbone."

    def __init__(self, config: Mamba2Config, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config: Mamba2Config = config
        deviation = config.initializer_range
        self.word = Embedding(config.vocab_size, config.hidden_size, scale=deviation, rng=rng)
        self.layers = [Mamba2Block(config, rng) for _ in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.output = output_layer(self.word, config.tie_word_embeddings, deviation, rng)

    def __call__(self, graph: Owner, ids: ArrayLike) -> Node:
        """The last layer's values, normalised, (T, D)."""
        return self.layered(self.word(graph, ids))

    @block
    def layered(self, x: Node) -> Node:
        """The last layer's values for the words' vectors, (T, D) -> (T, D)."""
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def tied(self) -> Mapping[str, str]:
        words = "backbone.embeddings.weight"
        older = {"backbone.embedding.weight": words}
        return older | ({"lm_head.weight": words} if self.config.tie_word_embeddings else {})

    def table(self) -> Table:
        mixer = {
            f"layers.*.mixer.{name}": f"backbone.layers.*.mixer.{name}"
            for name in ("in_proj.{}", "conv1d.{}", "dt_bias", "A_log", "D", "norm.weight",
                         "out_proj.{}")
        }  # fmt: skip
        return {
            "word.weight": "backbone.embeddings.weight",
            "layers.*.norm.weight": "backbone.layers.*.norm.weight",
            **mixer,
            "norm.weight": "backbone.norm_f.weight",
            "output.weight": "lm_head.weight",
        }
