"""Llama: a language model of decoder layers, with rotary positions and shared keys.

    x_t = word[id_t]
    in each layer  x ← x + attention(norm(x)),
                   x ← x + W_down (silu(W_gate y) ⊙ W_up y) with y = norm(x)
    logits_t = W norm(x_t), of the token after t

Norms divide by the root mean square; attention turns queries and keys by their positions, and
several heads of queries share one of keys and values. Nothing has a bias.

Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2; Grattafiori et al. 2024,
    arXiv:2407.21783, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from dynbatch.arguments import number, refused
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Embedding
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.language import CausalModel, output_layer
from dynbatch.models.pretrained.table import Table, joined
from dynbatch.models.transformer.stacks import TransformerEncoder
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.positions.rotary import scaling_numbers


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Sizes and choices of a Llama; the fields are those of config.json.

    Args:
        vocab_size:          number of ids, V.
        hidden_size:         features D.
        num_hidden_layers, num_attention_heads: layers, and heads in each.
        num_key_value_heads: heads of keys and values; num_attention_heads if it is None.
        head_dim:            features of a head; hidden_size / num_attention_heads if it is None.
        intermediate_size:   features inside the feed-forward part.
        rms_norm_eps:        added to the mean square.
        rope_theta:          base of the rotary frequencies.
        rope_scaling:        how these are stretched: `scaling` of `F.rotary`. Both are also read
            from "rope_parameters", in which version 5 of `transformers` writes them.
        attention_dropout:   dropout of attention's probabilities.
        tie_word_embeddings: whether W is the table of words.
        initializer_range:   deviation of the tables' initial values.
        hidden_act, attention_bias, mlp_bias: variants; other values than the defaults are refused.
    """

    model_types = ("llama",)

    vocab_size: int = 32000
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 11008
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.hidden_act != "silu" or self.attention_bias or self.mlp_bias:
            raise refused(
                "LlamaConfig", "another activation, or biases, are asked for",
                "hidden_act is 'silu', attention_bias and mlp_bias are False",
                "choose a checkpoint of a published Llama",
            )  # fmt: skip
        others = dict(self.others)
        if (rope := others.pop("rope_parameters", None)) is not None:
            if not isinstance(rope, dict):
                raise refused(
                    "LlamaConfig", f"rope_parameters is {rope!r:.60}", "it is a dict, or None",
                    'give {"rope_theta": 10000.0, "rope_type": "default"}, say',
                )  # fmt: skip
            scaling = dict(rope)
            object.__setattr__(self, "others", others)
            object.__setattr__(self, "rope_theta", scaling.pop("rope_theta", self.rope_theta))
            object.__setattr__(self, "rope_scaling", scaling)
        number("LlamaConfig", "rope_theta", self.rope_theta, "(0, inf)")
        scaling_numbers(self.rope_scaling)


class Llama(CausalModel):
    """The language model: `llama(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `LlamaForCausalLM` in `transformers`. Each token sees itself and those before it.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained.llama import Llama, LlamaConfig
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> llama = Llama(LlamaConfig(vocab_size=10, intermediate_size=12, **sizes))
        >>> with db.Graph() as graph:
        ...     [llama.logits(graph, ids).value.shape for ids in ([3, 1, 2], [], [7])]
        [(3, 10), (0, 10), (1, 10)]
    """

    config_type = LlamaConfig
    architecture = "LlamaForCausalLM"
    prefix = "model."
    skipped = ("layers.*.self_attn.rotary_emb.inv_freq",)  # a buffer: the rotary frequencies

    def __init__(self, config: LlamaConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config = config
        is_tied, scale = config.tie_word_embeddings, config.initializer_range
        self.word = Embedding(config.vocab_size, config.hidden_size, scale=scale, rng=rng)
        self.decoder = TransformerEncoder(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size, norm="rms", norm_first=True, eps=config.rms_norm_eps,
            activation="swiglu", bias=False, dropout=0.0,
            attention_dropout=config.attention_dropout, kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rotary={"base": config.rope_theta, "scaling": config.rope_scaling}, rng=rng,
        )  # fmt: skip
        self.output = output_layer(self.word, is_tied, scale, rng)

    def __call__(self, graph: Owner, ids: ArrayLike) -> Node:
        """The last layer's values, normalised, (T, D)."""
        return self.decoder(self.word(graph, ids), causal=True)

    def tied(self) -> Mapping[str, str]:
        is_tied = self.config.tie_word_embeddings
        return {"lm_head.weight": "model.embed_tokens.weight"} if is_tied else {}

    def table(self) -> Table:
        ours, theirs = "decoder.layers.*.", "model.layers.*."
        projections = [f"{theirs}self_attn.{part}_proj.weight" for part in "qkv"]
        heads = self.config.num_attention_heads
        kv_heads = self.config.num_key_value_heads or heads
        size = self.config.head_dim or self.config.hidden_size // heads
        rows = (heads * size, kv_heads * size, kv_heads * size)
        gates = [f"{theirs}mlp.{part}_proj.weight" for part in ("gate", "up")]
        return {
            "word.weight": "model.embed_tokens.weight",
            ours + "norm1.weight": theirs + "input_layernorm.weight",
            ours + "self_attn.in_proj_weight": joined(*projections, rows=rows),
            ours + "self_attn.out_proj.weight": theirs + "self_attn.o_proj.weight",
            ours + "norm2.weight": theirs + "post_attention_layernorm.weight",
            ours + "linear1.weight": joined(*gates),
            ours + "linear2.weight": theirs + "mlp.down_proj.weight",
            "decoder.norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight",
        }
