"""A language model of decoder layers, with settings for families: Llama, Mistral, Qwen, Gemma.

    x_t = word[id_t], in Gemma times √D
    in each layer  x ← x + attention(norm(x)),
                   x ← x + W_down (f(W_gate y) ⊙ W_up y) with y = norm(x)
    logits_t = W norm(x_t), of the token after t

Norms divide by the root mean square; attention turns queries and keys by their positions, and
several heads of queries share one of keys and values. A family says in its configuration which
layers see a window alone, which maps have biases, and what else differs.

Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2, and of each family in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import number, refused
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Embedding
from dynbatch.models.pretrained.activations import gate_of
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.language import CausalModel, output_layer
from dynbatch.models.pretrained.positions import refuse_settings, rotary_options
from dynbatch.models.pretrained.table import Stored, Table, joined, less_one
from dynbatch.models.transformer.layers import LayerOptions
from dynbatch.models.transformer.stacks import TransformerEncoder
from dynbatch.nodes.node import Node, Owner

FULL, SLIDING = "full_attention", "sliding_attention"
LONGEST = "max_position_embeddings"


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """Base of the configurations of decoders; the fields are those of config.json.

    Args:
        vocab_size:          number of ids, V.
        hidden_size:         features D.
        num_hidden_layers, num_attention_heads: layers, and heads in each.
        num_key_value_heads: heads of keys and values; num_attention_heads if it is None.
        head_dim:            features of a head; hidden_size / num_attention_heads if it is None.
        intermediate_size:   features inside the feed-forward part.
        rms_norm_eps:        added to the mean square.
        max_position_embeddings: tokens of the texts that it was trained on; it reads longer ones,
            unless the rotary scaling is "dynamic".
        rope_theta:          base of the rotary frequencies.
        rope_scaling:        how these are stretched: `scaling` of `F.rotary`. Both are also read
            from "rope_parameters", in which version 5 of `transformers` writes them.
        attention_dropout:   dropout of attention's probabilities.
        tie_word_embeddings: whether W is the table of words.
        initializer_range:   deviation of the tables' initial values.
        attention_bias:      whether attention's maps have biases.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 11008
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    attention_bias: bool = False

    has_qk_norm: ClassVar[bool] = False
    has_output_norms: ClassVar[bool] = False
    has_gated_attention: ClassVar[bool] = False
    stores_scales_less_one: ClassVar[bool] = False

    def __post_init__(self) -> None:
        others = dict(self.others)
        if (rope := others.pop("rope_parameters", None)) is not None:
            if not isinstance(rope, dict):
                raise refused(
                    type(self).__name__, f"rope_parameters is {rope!r:.60}",
                    "it is a dict, or None",
                    'give {"rope_theta": 10000.0, "rope_type": "default"}, say',
                )  # fmt: skip
            object.__setattr__(self, "others", others)
            self.read_rope(dict(rope))
        number(type(self).__name__, "rope_theta", self.rope_theta, "(0, inf)")
        self.refuse_partial()
        for layer_type in (FULL, SLIDING):
            self.rotary(layer_type)

    def refuse_partial(self) -> None:
        """Refuse positions that turn a part of the features, where a family knows none.

        Raises:
            ArgumentError: partial_rotary_factor is another number than 1.
        """
        refuse_settings(self, partial_rotary_factor=(None, 1.0))

    def read_rope(self, rope: dict[str, Any]) -> None:
        """Take the fields of positions from "rope_parameters".

        A "rope_scaling" beside them goes before, as in `transformers`.
        """
        if self.rope_scaling:
            return
        object.__setattr__(self, "rope_theta", rope.pop("rope_theta", self.rope_theta))
        object.__setattr__(self, "rope_scaling", rope)

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, with the numbers that None stands for."""
        sizes = {"num_key_value_heads": self.kv_heads, "head_dim": self.head_size}
        return super().to_json() | sizes

    @property
    def head_size(self) -> int:
        """Features of a head."""
        return self.head_dim or self.hidden_size // max(1, self.num_attention_heads)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def gate(self) -> str:
        """The activation of `FeedForward`."""
        return gate_of(type(self).__name__, getattr(self, "hidden_act", "silu"))

    @property
    def biases(self) -> tuple[str, ...]:
        """The parts of a layer that have biases."""
        return ("qkv", "out") if self.attention_bias else ()

    @property
    def scale(self) -> float | None:
        """The factor of scores; None for 1/√head_dim."""
        return None

    @property
    def softcap(self) -> float | None:
        """The bound of scores, None for none; `output_softcap` is that of logits."""
        return None

    @property
    def output_softcap(self) -> float | None:
        return None

    @property
    def word_scale(self) -> float:
        """The factor of words' vectors."""
        return 1.0

    def type_of(self, layer: int) -> str:
        """The type of attention of a layer, 0 for the first."""
        return FULL

    def window(self, layer_type: str) -> int | None:
        """The number of tokens before it that a token sees in layers of a type; None for all."""
        return None

    def rotary(self, layer_type: str) -> dict[str, Any]:
        """The arguments of `F.rotary` in layers of a type."""
        return rotary_options(self, self.rope_theta, self.rope_scaling)


def check_types(
    config: Any, types: Sequence[Any] | None, known: Sequence[str] = (FULL, SLIDING)
) -> None:
    """Check the types of attention of all layers, if they are named.

    Raises:
        ArgumentError: there are more or fewer than layers, or of other types.
    """
    if types is None:
        return
    if len(types) != config.num_hidden_layers or not set(map(str, types)) <= set(known):
        raise refused(
            type(config).__name__, f"layer_types is {types!r:.80}",
            f"for each of {config.num_hidden_layers} layers {' or '.join(map(repr, known))}",
            "choose a checkpoint whose layers are of these types",
        )  # fmt: skip


def window_of(config: DecoderConfig, tokens: int | None) -> int:
    """The reach of a window of so many tokens, the own one among them.

    Raises:
        ArgumentError: the window has no size.
    """
    if tokens is None or tokens < 1:
        raise refused(
            type(config).__name__, f"sliding_window is {tokens} and layers have a window",
            "the tokens that a token sees, itself among them: 1 or more",
            "give sliding_window, or layer_types of full_attention alone",
        )  # fmt: skip
    return tokens - 1


class CausalDecoder(CausalModel):
    """Base of the families: `model(graph, ids)` is the last layer's values, T ids -> (T, D).

    Each token sees itself and those before it, or in layers with a window the nearest of them.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.
    """

    config_type = DecoderConfig
    prefix = "model."
    skipped = ("layers.*.self_attn.rotary_emb.inv_freq",)  # a buffer: the rotary frequencies

    def __init__(self, config: DecoderConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config: DecoderConfig = config
        is_tied, deviation = config.tie_word_embeddings, config.initializer_range
        self.word = Embedding(config.vocab_size, config.hidden_size, scale=deviation, rng=rng)
        self.decoder = TransformerEncoder(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size, norm="rms", norm_first=True, eps=config.rms_norm_eps,
            activation=config.gate, bias=config.biases, dropout=0.0,
            attention_dropout=config.attention_dropout, kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim, scale=config.scale, softcap=config.softcap,
            qk_norm=config.rms_norm_eps if config.has_qk_norm else None,
            output_norm=config.has_output_norms, gated=config.has_gated_attention,
            each=partial(self.options_of, rng), rng=rng,
        )  # fmt: skip
        self.output = output_layer(self.word, is_tied, deviation, rng)

    def options_of(self, rng: np.random.Generator, layer: int) -> LayerOptions:
        """Options in which layers differ."""
        kind = self.config.type_of(layer)
        return {"window": self.config.window(kind), "rotary": self.config.rotary(kind)}

    @property
    def positions(self) -> int | None:
        """Most tokens of a text: of "dynamic" scaling those trained on; None for any number."""
        scalings = [self.config.rotary(kind)["scaling"] or {} for kind in (FULL, SLIDING)]
        return next((s[LONGEST] for s in scalings if LONGEST in s), None)

    def __call__(self, graph: Owner, ids: ArrayLike) -> Node:
        """The last layer's values, normalised, (T, D)."""
        words = self.word(graph, ids) if self.config.word_scale == 1 else self.scaled(graph, ids)
        return self.decoder(words, causal=True)

    @block
    def scaled(self, graph: Owner, ids: ArrayLike) -> Node:
        """The words' vectors times their factor, T ids -> (T, D)."""
        return self.word(graph, ids) * float(np.float32(self.config.word_scale))

    def predict(self, hidden: Node) -> Node:
        """Logits of words for the last layer's values, (T, D) -> (T, V)."""
        logits, bound = super().predict(hidden), self.config.output_softcap
        return logits if bound is None else F.tanh(logits / bound) * bound

    def tied(self) -> Mapping[str, str]:
        is_tied = self.config.tie_word_embeddings
        return {"lm_head.weight": "model.embed_tokens.weight"} if is_tied else {}

    def table(self) -> Table:
        config = self.config
        ours, theirs = "decoder.layers.*.", "model.layers.*."
        projections = [f"{theirs}self_attn.{part}_proj.{{}}" for part in "qkv"]
        rows = [heads * config.head_size for heads in (config.num_attention_heads, config.kv_heads)]
        rows[0] *= 1 + config.has_gated_attention
        gates = [f"{theirs}mlp.{part}_proj.{{}}" for part in ("gate", "up")]
        norms = {
            ours + "norm1.weight": theirs + "input_layernorm.weight",
            ours + "norm2.weight": theirs + "post_attention_layernorm.weight",
            ours + "self_attn.q_norm.weight": theirs + "self_attn.q_norm.weight",
            ours + "self_attn.k_norm.weight": theirs + "self_attn.k_norm.weight",
            "decoder.norm.weight": "model.norm.weight",
        }
        if config.has_output_norms:
            norms |= {
                ours + "output_norm1.weight": theirs + "post_attention_layernorm.weight",
                ours + "norm2.weight": theirs + "pre_feedforward_layernorm.weight",
                ours + "output_norm2.weight": theirs + "post_feedforward_layernorm.weight",
            }
        stored: dict[str, str | Stored] = dict(norms)
        if config.stores_scales_less_one:
            stored = {name: less_one(of_file) for name, of_file in norms.items()}
        return {
            "word.weight": "model.embed_tokens.weight",
            **stored,
            ours + "self_attn.in_proj_{}": joined(*projections, rows=(rows[0], rows[1], rows[1])),
            ours + "self_attn.out_proj.{}": theirs + "self_attn.o_proj.{}",
            ours + "linear1.{}": joined(*gates),
            ours + "linear2.{}": theirs + "mlp.down_proj.{}",
            "output.weight": "lm_head.weight",
        }
