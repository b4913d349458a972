"""GPT-2: a language model of decoder layers, with learned positions.

    x_t = word[id_t] + position[t]
    in each layer  x ← x + attention(norm(x)),  x ← x + W_2 gelu(W_1 norm(x))
    logits_t = W norm(x_t), of the token after t; W is the table of words

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike

from dynbatch.arguments import refused
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Dropout, Embedding
from dynbatch.models.pretrained.activations import activation_of
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.language import CausalModel, output_layer
from dynbatch.models.pretrained.table import Table, transposed
from dynbatch.models.transformer.stacks import TransformerEncoder
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node, Owner


@dataclass(frozen=True, kw_only=True)
class GPT2Config(ModelConfig):
    """Sizes and choices of a GPT-2; the fields are those of config.json.

    Args:
        vocab_size:          number of ids, V.
        n_positions:         length of the longest sentence.
        n_embd:              features D.
        n_layer, n_head:     layers, and heads in each.
        n_inner:             features inside the feed-forward part; 4 D by default.
        activation_function: "gelu_new" (gelu by tanh), "gelu", "relu" or "silu".
        embd_pdrop, resid_pdrop, attn_pdrop: dropout of embeddings, of what each part adds, and of
            attention's probabilities.
        layer_norm_epsilon:  added to the variance.
        initializer_range:   deviation of the tables' initial values.
        tie_word_embeddings: whether the output is the table of words.
        scale_attn_weights, scale_attn_by_inverse_layer_idx, add_cross_attention: variants of
            attention; values other than the defaults are refused.
    """

    model_types = ("gpt2",)

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    embd_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False

    def __post_init__(self) -> None:
        if (
            not self.scale_attn_weights
            or self.scale_attn_by_inverse_layer_idx
            or self.add_cross_attention
        ):
            raise refused(
                "GPT2Config", "a variant of attention is asked for",
                "scale_attn_weights is True, scale_attn_by_inverse_layer_idx and "
                "add_cross_attention are False",
                "choose a checkpoint of the published GPT-2",
            )  # fmt: skip


class GPT2(CausalModel):
    """The language model: `gpt2(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `GPT2LMHeadModel` in `transformers`. Each token sees itself and those before it.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained.gpt2 import GPT2, GPT2Config
        >>> sizes = {"n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 2}
        >>> gpt2 = GPT2(GPT2Config(vocab_size=10, **sizes)).eval()
        >>> with db.Graph() as graph:
        ...     [gpt2.logits(graph, ids).value.shape for ids in ([3, 1, 2], [], [7])]
        [(3, 10), (0, 10), (1, 10)]
    """

    config_type = GPT2Config
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    skipped = ("h.*.attn.bias", "h.*.attn.masked_bias")  # buffers: the causal mask

    def __init__(self, config: GPT2Config, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config: GPT2Config = config
        self.word, self.position = [
            Embedding(rows, config.n_embd, scale=config.initializer_range, rng=rng)
            for rows in (config.vocab_size, config.n_positions)
        ]
        self.dropout = Dropout(config.embd_pdrop)
        self.decoder = TransformerEncoder(
            config.n_layer, config.n_embd, config.n_head, config.n_inner, norm_first=True,
            activation=activation_of("GPT2Config", config.activation_function),
            dropout=config.resid_pdrop, attention_dropout=config.attn_pdrop, inner_dropout=0.0,
            eps=config.layer_norm_epsilon, rng=rng,
        )  # fmt: skip
        is_tied, scale = config.tie_word_embeddings, config.initializer_range
        self.output = output_layer(self.word, is_tied, scale, rng)

    @property
    def positions(self) -> int:
        return self.config.n_positions

    def __call__(self, graph: Owner, ids: ArrayLike) -> Node:
        """The last layer's values, normalised, (T, D)."""
        return self.decoder(self.embed(graph, as_ids("GPT2", ids)), causal=True)

    @block
    def embed(self, graph: Owner, ids: Array) -> Node:
        """Words and their positions, T ids -> (T, D)."""
        words = self.word(graph, ids)
        return self.dropout(words + self.position.positions(words))

    def tied(self) -> Mapping[str, str]:
        is_tied = self.config.tie_word_embeddings
        return {"lm_head.weight": "transformer.wte.weight"} if is_tied else {}

    def table(self) -> Table:
        ours, theirs = "decoder.layers.*.", "transformer.h.*."
        return {
            "word.weight": "transformer.wte.weight",
            "position.weight": "transformer.wpe.weight",
            ours + "norm1.{}": theirs + "ln_1.{}",
            ours + "self_attn.in_proj_{}": transposed(theirs + "attn.c_attn.{}"),
            ours + "self_attn.out_proj.{}": transposed(theirs + "attn.c_proj.{}"),
            ours + "norm2.{}": theirs + "ln_2.{}",
            ours + "linear1.{}": transposed(theirs + "mlp.c_fc.{}"),
            ours + "linear2.{}": transposed(theirs + "mlp.c_proj.{}"),
            "decoder.norm.{}": "transformer.ln_f.{}",
            "output.weight": "lm_head.weight",
        }
