"""A GPT: a Transformer that predicts each token of one sentence from those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch import nodes as F
from dynbatch.padding.padded_model import lengthened
from dynbatch.padding.targets import ignored_after
from dynbatch.parameter import Array
from examples.language_model.data import Piece


class LanguageModel(models.Module):
    """Vectors of tokens and of their places, layers, and scores of each next token.

    Args:
        num_tokens:    different tokens; the last is the mark around documents.
        longest:       most tokens that it reads of a sentence.
        width:         features of a token; the heads divide it.
        layers, heads: of the Transformer.
        dropout:       of its parts' results, and of the vectors it begins with.
        seed:          of the initial values: normal, with a deviation of 0.02, and of less in the
                       maps whose results are added up along the layers.

    The table of tokens also gives the scores: its rows times the last layer's features. There are
    no biases.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2);
        without biases as in nanoGPT.
    """

    def __init__(
        self, num_tokens: int, longest: int, width: int, layers: int, heads: int,
        dropout: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.tokens = models.Embedding(num_tokens, width)
        self.places = models.Embedding(longest, width)
        self.dropout = models.Dropout(dropout)
        self.encoder = models.TransformerEncoder(
            layers, width, heads, dropout=dropout, inner_dropout=0.0, activation="gelu",
            norm_first=True, bias=False,
        )  # fmt: skip
        rng = np.random.default_rng(seed)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                is_added = name.endswith(("out_proj.weight", "linear2.weight"))
                scale = 0.02 / np.sqrt(2 * layers) if is_added else 0.02
                parameter.assign(scale * rng.standard_normal(parameter.shape))

    @property
    def positions(self) -> int:
        """Most tokens of a document, its first mark included."""
        return int(self.places.weight.shape[0])

    @property
    def mark(self) -> int:
        """The token around documents."""
        return int(self.tokens.weight.shape[0]) - 1

    @db.block
    def features(self, graph: db.Graph, ids: Array) -> Node:
        """What the layers make of a sentence, (T, width)."""
        x = self.tokens(graph, ids)
        x = x + F.positions(x, self.places.weight)
        return self.encoder(self.dropout(x), causal=True)

    def scores(self, features: Node) -> Node:
        """Scores of all tokens to come next, (T, num_tokens)."""
        return F.linear(features, self.tokens.weight)

    def logits(self, graph: db.Graph, ids: Array) -> Node:
        """Scores of the token after each of T ids, (T, num_tokens)."""
        return self.scores(self.features(graph, ids))

    def loss(self, graph: db.Graph, piece: Piece) -> Node:
        """Cross-entropy in nats, summed over what the piece predicts."""
        x = self.features(graph, piece.ids[:-1])[piece.context :]
        return F.cross_entropy(self.scores(x), piece.ids[1 + piece.context :], reduction="sum")

    def padded_loss(self, graph: db.Graph, ids: Array, context: int, length: int) -> Node:
        """The loss of a piece with padding behind its `length` ids, to compare memory with.

        Padding stands behind all that counts, where nothing looks.
        """
        targets = ignored_after(ids[1:], length - 1)[context:]
        scores = self.scores(self.features(graph, ids[:-1])[context:])
        return F.cross_entropy(scores, targets, reduction="sum")


def padded_piece(piece: tuple[Array, int], longest: tuple[int, ...]) -> tuple[Array, int, int]:
    """Ids and context of a piece, lengthened: what `padded_loss` takes."""
    ids, context = piece
    return lengthened(ids, longest[0], 0), context, len(ids)


def sample(
    model: LanguageModel, count: int, length: int, rng: np.random.Generator
) -> list[Sequence[int]]:
    """Documents that the model makes up, side by side, each drawn from its distribution.

    Each has at most `length` tokens, and with its first mark no more than the model has places.
    """
    if not count:
        return []
    ((*found,),) = db.generate(
        model, [[model.mark]], max_new_tokens=length, eos_token_id=model.mark, do_sample=True,
        num_return_sequences=count, seed=int(rng.integers(1 << 32)),
    )  # fmt: skip
    return [[token for token in one.tokens if token != model.mark] for one in found]
