"""A GPT: a Transformer that predicts each token of one sentence from those before it."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import refused, sizes
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.layers import Dropout, Embedding
from dynbatch.models.module import Module
from dynbatch.models.next_token import next_token_loss
from dynbatch.models.transformer.stacks import TransformerEncoder
from dynbatch.nodes.node import Node, Owner


class GPT(Module):
    """Vectors of tokens and of their places, layers, and scores of each next token.

    Args:
        num_tokens:    different tokens; the last is the mark around documents.
        longest:       most tokens that it reads of a sentence.
        width:         features of a token; the heads divide it.
        layers, heads: of the Transformer.
        dropout:       of its parts' results, and of the vectors it begins with.
        seed:          of the initial values: normal, with a deviation of 0.02, and of less in the
                       maps whose results are added up along the layers.
        rotary:        whether places are told by `F.rotary` in each layer, as in Llama, instead of
                       by a table: learned in fewer updates. Sentences may then be longer than
                       `longest`; what the model writes may not.

    The table of tokens also gives the scores: its rows times the last layer's features. There are
    no biases. `positions` is `longest`, the most tokens of a document with its first mark.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2);
        without biases as in nanoGPT.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> model = models.GPT(num_tokens=257, longest=64, width=16, layers=2, heads=2)
        >>> with db.Graph() as graph:
        ...     loss = model.loss(graph, [model.mark, *b"text", model.mark])
        ...     graph.backward(loss)
        >>> 20 < float(loss.value) < 35             # five tokens, each about ln 257 nats
        True
    """

    def __init__(
        self, num_tokens: int, longest: int, width: int, layers: int, heads: int,
        dropout: float = 0.0, seed: int = 0, rotary: bool = False,
    ) -> None:  # fmt: skip
        sizes(self, num_tokens=num_tokens, longest=longest, width=width, layers=layers, heads=heads)
        if rotary and width % (2 * heads):
            raise refused(
                "GPT", f"rotary with {heads} heads of {width} features",
                "an even number of features for each head",
                f"width={-(-width // (2 * heads)) * 2 * heads}",
            )  # fmt: skip
        self.positions = int(longest)
        self.tokens = Embedding(num_tokens, width)
        self.places = None if rotary else Embedding(longest, width)
        self.dropout = Dropout(dropout)
        self.encoder = TransformerEncoder(
            layers, width, heads, dropout=dropout, inner_dropout=0.0, activation="gelu",
            norm_first=True, bias=False, rotary={} if rotary else None,
        )  # fmt: skip
        rng = np.random.default_rng(seed)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                is_added = name.endswith(("out_proj.weight", "linear2.weight"))
                scale = 0.02 / np.sqrt(2 * layers) if is_added else 0.02
                parameter.assign(scale * rng.standard_normal(parameter.shape))

    @property
    def mark(self) -> int:
        """The token around documents."""
        return int(self.tokens.weight.shape[0]) - 1

    @block
    def features(self, graph: Owner, ids: Array) -> Node:
        """The output of the layers for a sentence, (T, width)."""
        x = self.tokens(graph, ids)
        if self.places is not None:
            x = x + self.places.positions(x)
        return self.encoder(self.dropout(x), causal=True)

    def scores(self, features: Node) -> Node:
        """Scores of all tokens to come next, (T, num_tokens)."""
        return F.linear(features, self.tokens.weight)

    def logits(self, graph: Owner, ids: Array) -> Node:
        """Scores of the token after each of T ids, (T, num_tokens)."""
        return self.scores(self.features(graph, ids))

    def loss(self, graph: Owner, ids: ArrayLike, context: int = 0) -> Node:
        """Cross-entropy of one document in nats, summed over the tokens that are predicted.

        Args:
            ids:     (T + 1,) each but the last is read, and each but the first is predicted.
            context: of the T predictions so many are not counted, the first ones; below T, or 0.

        Raises:
            ArgumentError: `context` leaves nothing to count.
        """
        features = partial(self.features, graph)
        return next_token_loss("GPT.loss", ids, features, self.scores, "sum", context)
