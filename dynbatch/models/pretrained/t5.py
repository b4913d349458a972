"""T5: an encoder and a decoder for text to text, whose attention knows distances alone.

    x_t = word[id_t], one table of words for source, target and, if tied, the output
    in each layer, each part pre-norm: x ← x + part(norm(x)); norms divide by the root mean square
    score_ij = q_i · k_j + bias[bucket(j - i)], one table of each side for all its layers, no 1/√d
    logits_t = W norm(h_t) for the word after t; in version 1.0, where W is the table of words,
               W norm(h_t)/√D

Version 1.0 has relu(W_1 x) between the maps of the feed-forward part, version 1.1 and Flan-T5
gelu(W_0 x) ⊙ W_1 x. Nothing has a bias but the scores; the decoder begins with the padding id.

Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1; version 1.1: Shazeer 2020,
    arXiv:2002.05202.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import refused
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator, normal
from dynbatch.models.layers import Dropout, Embedding
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.language import TextToTextModel, output_layer
from dynbatch.models.pretrained.table import Table, joined
from dynbatch.models.transformer.stacks import TransformerDecoder, TransformerEncoder
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node, Owner

ACTIVATIONS = {
    "relu": "relu",
    "gated-gelu": "geglu_tanh",
    "gated-relu": "reglu",
    "gated-silu": "swiglu",
}
"""What `FeedForward` calls the activations that config.json names."""


@dataclass(frozen=True, kw_only=True)
class T5Config(ModelConfig):
    """Sizes and choices of a T5; the fields are those of config.json.

    Args:
        vocab_size:        number of ids, V.
        d_model:           features D.
        d_kv, num_heads:   features of a head, whatever D is, and heads of each layer.
        d_ff:              features inside the feed-forward part.
        num_layers, num_decoder_layers: layers of the encoder and of the decoder; as many if the
            latter is None.
        relative_attention_num_buckets, relative_attention_max_distance: of the biases; see
            `F.t5_bias`.
        dropout_rate:      of embeddings, of what each part adds, of attention's probabilities,
            inside the feed-forward part and before the output.
        layer_norm_epsilon: added to the mean square.
        feed_forward_proj: "relu", "gated-gelu", "gated-relu" or "gated-silu".
        tie_word_embeddings: whether the output is the table of words.
        scale_decoder_outputs: whether the decoder's values are divided by √D before it; as
            tie_word_embeddings says if it is None. Version 5 of `transformers` writes it, and true
            for tie_word_embeddings: a folder's output is then tied if its files have no other.
        pad_token_id, eos_token_id: what the decoder begins with, unless there is a
            decoder_start_token_id, and the end of a text.
        initializer_factor: the tables' initial values are multiplied by it.
    """

    model_types = ("t5",)

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None
    pad_token_id: int = 0
    eos_token_id: int = 1
    decoder_start_token_id: int | None = None
    initializer_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.feed_forward_proj not in ACTIVATIONS:
            raise refused(
                "T5Config", f"feed_forward_proj is {self.feed_forward_proj!r:.60}",
                f"one of {', '.join(map(repr, ACTIVATIONS))}", "choose a checkpoint with one",
            )  # fmt: skip

    @property
    def is_tied_by_file(self) -> bool:
        return self.scale_decoder_outputs is not None

    @property
    def is_scaled(self) -> bool:
        """Whether the decoder's values are divided by √D before the output."""
        scaled = self.scale_decoder_outputs
        return self.tie_word_embeddings if scaled is None else scaled

    def to_json(self) -> dict[str, Any]:
        """The object for config.json."""
        content = super().to_json()
        if self.scale_decoder_outputs is None:
            del content["scale_decoder_outputs"]  # null would be taken for false
        return content

    @property
    def start(self) -> int:
        """The id with which the decoder begins."""
        token = self.decoder_start_token_id
        return self.pad_token_id if token is None else token


class T5(TextToTextModel):
    """Text to text, `T5ForConditionalGeneration` in `transformers`.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained import T5, T5Config
        >>> sizes = {"d_model": 4, "d_kv": 3, "d_ff": 6, "num_layers": 1, "num_heads": 2}
        >>> model = T5(T5Config(vocab_size=10, **sizes))
        >>> with db.Graph() as graph:
        ...     model.logits(graph, source=[3, 5, 1], decoded=[0, 7]).value.shape
        (2, 10)
    """

    config_type = T5Config
    architecture = "T5ForConditionalGeneration"
    skipped = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)

    def __init__(self, config: T5Config, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config = config
        scale = config.initializer_factor
        self.word = Embedding(config.vocab_size, config.d_model, scale=scale, rng=rng)
        self.dropout = Dropout(config.dropout_rate)
        buckets = (config.relative_attention_num_buckets, config.num_heads)
        reach, deviation = config.relative_attention_max_distance, scale * config.d_model**-0.5
        self.encoder_bias = normal(rng, buckets, deviation)
        self.decoder_bias = normal(rng, buckets, deviation)
        options: dict[str, Any] = {
            "norm": "rms", "norm_first": True, "eps": config.layer_norm_epsilon, "bias": False,
            "activation": ACTIVATIONS[config.feed_forward_proj], "dropout": config.dropout_rate,
            "head_dim": config.d_kv, "scale": 1.0, "rng": rng,
        }  # fmt: skip
        sizes = (config.d_model, config.num_heads, config.d_ff)
        self.encoder = TransformerEncoder(
            config.num_layers, *sizes, position_bias=F.t5_bias(self.encoder_bias, reach), **options
        )
        self.decoder = TransformerDecoder(
            config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers,
            *sizes,
            position_bias=F.t5_bias(self.decoder_bias, reach, bidirectional=False),
            **options,
        )
        self.output = output_layer(self.word, config.tie_word_embeddings, scale, rng)

    @property
    def start(self) -> int:
        start: int = self.config.start
        return start

    def encode(self, graph: Owner, source: ArrayLike) -> Node:
        """The encoder's last values, normalised, (S, D)."""
        return self.dropout(self.encoder(self.embed(graph, as_ids("T5", source))))

    def decode(self, graph: Owner, decoded: ArrayLike, memory: Node) -> Node:
        """The decoder's last values (T, D), over the encoder's."""
        return self.dropout(self.decoder(self.embed(graph, as_ids("T5", decoded)), memory))

    @block
    def embed(self, graph: Owner, ids: Array) -> Node:
        """Words of either side, T ids -> (T, D)."""
        return self.dropout(self.word(graph, ids))

    def predict(self, hidden: Node) -> Node:
        """Logits of words for the decoder's values, (T, D) -> (T, V)."""
        is_scaled = self.config.is_scaled
        return self.output(hidden * self.config.d_model**-0.5 if is_scaled else hidden)

    def tied(self) -> Mapping[str, str]:
        names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        names += ["lm_head.weight"] if self.config.tie_word_embeddings else []
        return dict.fromkeys(names, "shared.weight")

    def table(self) -> Table:
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        memory, theirs = "decoder.layers.*.multihead_attn", "decoder.block.*.layer.1"
        return {
            "word.weight": "shared.weight",
            "encoder_bias": f"encoder.{bias}",
            "decoder_bias": f"decoder.{bias}",
            **self._layers("encoder", last=1),
            **self._layers("decoder", last=2),
            f"{memory}.q_proj.weight": f"{theirs}.EncDecAttention.q.weight",
            f"{memory}.kv_proj.weight": joined(
                *[f"{theirs}.EncDecAttention.{name}.weight" for name in "kv"]
            ),
            f"{memory}.out_proj.weight": f"{theirs}.EncDecAttention.o.weight",
            "decoder.layers.*.norm2.weight": f"{theirs}.layer_norm.weight",
            "output.weight": "lm_head.weight",
        }

    def _layers(self, side: str, last: int) -> Table:
        """Names of what layers of both sides have; their feed-forward part is number `last`."""
        ours, theirs = f"{side}.layers.*", f"{side}.block.*.layer"
        inner = f"{theirs}.{last}.DenseReluDense"
        is_gated = self.config.feed_forward_proj.startswith("gated-")
        maps = [f"{inner}.wi_{k}.weight" for k in (0, 1)] if is_gated else [f"{inner}.wi.weight"]
        return {
            f"{ours}.norm1.weight": f"{theirs}.0.layer_norm.weight",
            f"{ours}.self_attn.in_proj_weight": joined(
                *[f"{theirs}.0.SelfAttention.{name}.weight" for name in "qkv"]
            ),
            f"{ours}.self_attn.out_proj.weight": f"{theirs}.0.SelfAttention.o.weight",
            f"{ours}.norm{last + 1}.weight": f"{theirs}.{last}.layer_norm.weight",
            f"{ours}.linear1.weight": joined(*maps),
            f"{ours}.linear2.weight": f"{inner}.wo.weight",
            f"{side}.norm.weight": f"{side}.final_layer_norm.weight",
        }
