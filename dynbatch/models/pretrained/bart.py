"""BART and mBART: Marian's form with learned positions and a norm behind the embeddings.

    x_t = norm(word[id_t] + position[t + 2]), a table of positions for each side; words may be
    multiplied by √D. In mBART each part is pre-norm, and a norm follows the last layer.

Source: Lewis et al. 2019, arXiv:1910.13461, section 2; Liu et al. 2020, arXiv:2001.08210,
    section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.arguments import refused
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Embedding, LayerNorm
from dynbatch.models.module import Module
from dynbatch.models.pretrained.marian import Marian, MarianConfig
from dynbatch.models.pretrained.positions import refuse_settings
from dynbatch.models.pretrained.table import Table
from dynbatch.nodes.node import Node, Owner

FIRST_POSITION = 2


@dataclass(frozen=True, kw_only=True)
class BartConfig(MarianConfig):
    """Sizes and choices of a BART; the fields are those of config.json.

    Args:
        max_position_embeddings: the longest text of either side.
        encoder_layerdrop, decoder_layerdrop: refused if they are not 0.

    All others are `MarianConfig`'s.
    """

    model_types = ("bart",)

    vocab_size: int = 50265
    d_model: int = 1024
    encoder_layers: int = 12
    encoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_layers: int = 12
    decoder_attention_heads: int = 16
    decoder_ffn_dim: int = 4096
    activation_function: str = "gelu"
    scale_embedding: bool = False
    max_position_embeddings: int = 1024
    decoder_start_token_id: int | None = 2  # type: ignore[assignment]  # mBART's has none
    eos_token_id: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(self, encoder_layerdrop=(0, 0.0), decoder_layerdrop=(0, 0.0))

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, without what only Marian has."""
        content = super().to_json()
        for name in ("decoder_vocab_size", "share_encoder_decoder_embeddings"):
            del content[name]
        return content


class LearnedPositions(Module):
    """norm(x + position[t + 2]) of words' vectors x (T, D)."""

    def __init__(self, config: BartConfig, rng: np.random.Generator) -> None:
        rows = config.max_position_embeddings + FIRST_POSITION
        self.position = Embedding(rows, config.d_model, scale=config.init_std, rng=rng)
        self.norm = LayerNorm(config.d_model)

    def __call__(self, x: Node) -> Node:
        return self.norm(x + self.position.positions(x, FIRST_POSITION))


class Bart(Marian):
    """Text to text, `BartForConditionalGeneration` in `transformers`.

    A checkpoint of `BartModel`, which has no biases of the output, loads with `new=["bias"]`.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.
    """

    config_type = BartConfig
    architecture = "BartForConditionalGeneration"
    skipped = ()

    def __init__(self, config: BartConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        super().__init__(config, rng=rng)
        self.source_positions = LearnedPositions(config, rng)
        self.target_positions = LearnedPositions(config, rng)

    @property
    def positions(self) -> int:
        """Most tokens of a text."""
        return int(self.config.max_position_embeddings)

    @property
    def start(self) -> int:
        """The id with which the decoder begins.

        Raises:
            ArgumentError: the configuration has none, as mBART's, where it says the language.
        """
        start: int | None = self.config.decoder_start_token_id
        if start is None:
            raise refused(
                type(self).__name__, "there is no decoder_start_token_id",
                "the decoder begins with an id, in mBART that of the language to write",
                "from_pretrained(folder, decoder_start_token_id=…)",
            )  # fmt: skip
        return start

    def encode(self, graph: Owner, source: ArrayLike) -> Node:
        """The encoder's last values (S, D)."""
        return self.encoder(self.embed_source(graph, source))

    def decode(self, graph: Owner, decoded: ArrayLike, memory: Node) -> Node:
        """The decoder's last values (T, D), over the encoder's."""
        return self.decoder(self.embed_target(graph, decoded), memory)

    @block
    def embed_source(self, graph: Owner, ids: ArrayLike) -> Node:
        """Words of a source and their positions, T ids -> (T, D)."""
        return self.dropout(self.source_positions(self.words(graph, ids) * self.scale))

    @block
    def embed_target(self, graph: Owner, ids: ArrayLike) -> Node:
        """Words of a target and their positions, T ids -> (T, D)."""
        return self.dropout(self.target_positions(self.words(graph, ids) * self.scale))

    def table(self) -> Table:
        sides = {
            f"{side}_positions.{ours}": f"model.{theirs}.{name}"
            for side, theirs in (("source", "encoder"), ("target", "decoder"))
            for ours, name in (
                ("position.weight", "embed_positions.weight"),
                ("norm.{}", "layernorm_embedding.{}"),
            )
        }
        return {**super().table(), **sides}


@dataclass(frozen=True, kw_only=True)
class MBartConfig(BartConfig):
    """Sizes and choices of an mBART; the fields are `BartConfig`'s."""

    model_types = ("mbart",)

    decoder_start_token_id: int | None = None

    norm_first: ClassVar[bool] = True


class MBart(Bart):
    """BART of many languages, `MBartForConditionalGeneration` in `transformers`.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.
    """

    config_type = MBartConfig
    architecture = "MBartForConditionalGeneration"
