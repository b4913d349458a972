"""Marian: a Transformer that translates; OPUS-MT's thousand pairs of languages are of this family.

    x_t = √D word[id_t] + sinusoid[t], one table of words for source, target and output
    layers of encoder and decoder, each part post-norm: x ← norm(x + part(x))
    logits_t = word · h_t + b for the word after t; the decoder begins with the padding word

Source: Junczys-Dowmunt et al. 2018, arXiv:1804.00344; Tiedemann & Thottingal 2020, "OPUS-MT".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import refused
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator, zeros
from dynbatch.models.layers import Dropout, Embedding
from dynbatch.models.pretrained.activations import activation_of
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.language import TextToTextModel
from dynbatch.models.pretrained.table import Table, as_row, joined
from dynbatch.models.transformer.stacks import TransformerDecoder, TransformerEncoder
from dynbatch.nodes.node import Node, Owner


@dataclass(frozen=True, kw_only=True)
class MarianConfig(ModelConfig):
    """Sizes and choices of a Marian model; the fields are those of config.json.

    Args:
        vocab_size:          ids, of both languages.
        d_model:             features D.
        encoder_layers, encoder_attention_heads, encoder_ffn_dim: layers of the encoder, heads in
            each, and features inside the feed-forward part; decoder_… likewise.
        activation_function: "swish", "relu", "gelu", …
        dropout, attention_dropout, activation_dropout: of embeddings and of what each part adds, of
            attention's weights, and inside the feed-forward part.
        scale_embedding:     whether words are multiplied by √D.
        init_std:            deviation of the table's initial values.
        decoder_start_token_id, eos_token_id: what the decoder begins with, and the end of a
            sentence of either language.
        share_encoder_decoder_embeddings, tie_word_embeddings, decoder_vocab_size: one table for
            both languages and the output; a checkpoint with several is refused.
    """

    model_types = ("marian",)

    vocab_size: int = 58101
    d_model: int = 512
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048
    activation_function: str = "swish"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    scale_embedding: bool = True
    init_std: float = 0.02
    decoder_start_token_id: int = 58100
    eos_token_id: int = 0
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    decoder_vocab_size: int | None = None

    norm_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        is_one = self.share_encoder_decoder_embeddings and self.tie_word_embeddings
        if not is_one or self.decoder_vocab_size not in (None, self.vocab_size):
            raise refused(
                type(self).__name__, "several tables of words are asked for",
                "source, target and output share one table",
                "choose a checkpoint with share_encoder_decoder_embeddings and "
                "tie_word_embeddings, such as OPUS-MT's; no class here reads others",
            )  # fmt: skip


class Marian(TextToTextModel):
    """A translator, `MarianMTModel` in `transformers`.

    The vector of the padding word, with which the decoder begins, is trained as any other; PyTorch
    keeps it as it is where it is read.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained import Marian, MarianConfig
        >>> sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder")
        ...          for name in ("layers", "attention_heads", "ffn_dim")}
        >>> model = Marian(MarianConfig(vocab_size=10, d_model=4, **sides))
        >>> with db.Graph() as graph:
        ...     model.logits(graph, source=[3, 1, 0], decoded=[9, 5]).value.shape
        (2, 10)
    """

    config_type = MarianConfig
    architecture = "MarianMTModel"
    prefix = "model."
    skipped: ClassVar[tuple[str, ...]] = (
        "encoder.embed_positions.weight", "decoder.embed_positions.weight",  # sinusoids
    )  # fmt: skip

    def __init__(self, config: MarianConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config = config
        self.words = Embedding(config.vocab_size, config.d_model, scale=config.init_std, rng=rng)
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = Dropout(config.dropout)
        options: dict[str, Any] = {
            "activation": activation_of("MarianConfig", config.activation_function),
            "dropout": config.dropout, "attention_dropout": config.attention_dropout,
            "inner_dropout": config.activation_dropout, "norm_first": config.norm_first, "rng": rng,
        }  # fmt: skip
        self.encoder = TransformerEncoder(
            config.encoder_layers, config.d_model, config.encoder_attention_heads,
            config.encoder_ffn_dim, **options,
        )  # fmt: skip
        self.decoder = TransformerDecoder(
            config.decoder_layers, config.d_model, config.decoder_attention_heads,
            config.decoder_ffn_dim, **options,
        )  # fmt: skip
        self.bias = zeros(config.vocab_size)
        self.bias.frozen = True  # a buffer in PyTorch

    @property
    def start(self) -> int:
        start: int = self.config.decoder_start_token_id
        return start

    def encode(self, graph: Owner, source: ArrayLike) -> Node:
        """The encoder's last values (S, D)."""
        return self.encoder(self.embed(graph, source))

    def decode(self, graph: Owner, decoded: ArrayLike, memory: Node) -> Node:
        """The decoder's last values (T, D), over the encoder's."""
        return self.decoder(self.embed(graph, decoded), memory)

    @block
    def embed(self, graph: Owner, ids: ArrayLike) -> Node:
        """Words and their positions, T ids -> (T, D)."""
        x = self.words(graph, ids) * self.scale
        return self.dropout(x + F.sinusoidal(x, layout="halves"))

    def predict(self, hidden: Node) -> Node:
        """Logits of words for the decoder's values, (T, D) -> (T, V)."""
        return F.linear(hidden, self.words.weight, self.bias)

    def tied(self) -> Mapping[str, str]:
        names = ("lm_head.weight", "model.encoder.embed_tokens.weight")
        return dict.fromkeys([*names, "model.decoder.embed_tokens.weight"], "model.shared.weight")

    def table(self) -> Table:
        return {
            "words.weight": "model.shared.weight",
            "bias": as_row("final_logits_bias"),
            **_layer_table("encoder", norm_of_inner="norm2"),
            **_layer_table("decoder", norm_of_inner="norm3"),
            **_memory_table("decoder.layers.*", "model.decoder.layers.*"),
            "encoder.norm.{}": "model.encoder.layer_norm.{}",
            "decoder.norm.{}": "model.decoder.layer_norm.{}",
        }


def _layer_table(side: str, norm_of_inner: str) -> Table:
    ours, theirs = f"{side}.layers.*", f"model.{side}.layers.*"
    return {
        f"{ours}.self_attn.in_proj_{{}}": joined(
            *[f"{theirs}.self_attn.{name}_proj.{{}}" for name in "qkv"]
        ),
        f"{ours}.self_attn.out_proj.{{}}": f"{theirs}.self_attn.out_proj.{{}}",
        f"{ours}.norm1.{{}}": f"{theirs}.self_attn_layer_norm.{{}}",
        f"{ours}.linear1.{{}}": f"{theirs}.fc1.{{}}",
        f"{ours}.linear2.{{}}": f"{theirs}.fc2.{{}}",
        f"{ours}.{norm_of_inner}.{{}}": f"{theirs}.final_layer_norm.{{}}",
    }


def _memory_table(ours: str, theirs: str) -> Table:
    return {
        f"{ours}.multihead_attn.q_proj.{{}}": f"{theirs}.encoder_attn.q_proj.{{}}",
        f"{ours}.multihead_attn.kv_proj.{{}}": joined(
            *[f"{theirs}.encoder_attn.{name}_proj.{{}}" for name in "kv"]
        ),
        f"{ours}.multihead_attn.out_proj.{{}}": f"{theirs}.encoder_attn.out_proj.{{}}",
        f"{ours}.norm2.{{}}": f"{theirs}.encoder_attn_layer_norm.{{}}",
    }
