"""`CRF`: a linear-chain CRF on top of any network that scores each token's tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import listed, refused, sizes
from dynbatch.backend import Array
from dynbatch.errors import EmptyBatchError
from dynbatch.graph import Graph
from dynbatch.models.initial import Rng, generator
from dynbatch.models.module import Module
from dynbatch.nodes.arguments import nodes_of
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter

LARGEST = 0.1
"""Bound of the initial scores: small beside those of the tokens."""


class CRF(Module):
    """A linear-chain conditional random field over K tags.

        score(y) = start[y_0] + Σ_t emissions[t, y_t] + Σ_t transitions[y_t, y_t+1] + end[y_T-1]
        p(y) = exp(score(y)) / Σ_y' exp(score(y'))

    Args:
        num_tags: K.
        rng:      generator or seed of the initial values, uniform in ±0.1.

    Parameters: transitions (K, K), from a tag (row) to the next (column); start (K,), end (K,). A
        value of -inf, set before training, forbids and stays.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> crf = models.CRF(3, rng=0)
        >>> with db.Graph() as graph:
        ...     emissions = [F.constant(graph, 0.0, (length, 3)) for length in (2, 0)]
        ...     loss = crf.loss(emissions[0], [0, 2])
        ...     1.9 < float(loss.value) < 2.5       # 9 sequences of about the same score: ln 9
        ...     crf.decode(emissions)
        True
        [array([1, 2]), array([], dtype=int64)]
    """

    def __init__(self, num_tags: int, *, rng: Rng = None) -> None:
        sizes(self, num_tags=num_tags)
        rng = generator(rng)

        def scores(*shape: int) -> Parameter:
            return Parameter(rng.uniform(-LARGEST, LARGEST, shape).astype(np.float32))

        self.transitions = scores(num_tags, num_tags)
        self.start = scores(num_tags)
        self.end = scores(num_tags)

    def loss(self, emissions: Node, tags: ArrayLike) -> Node:
        """-log p(tags) of one sentence, in nats, summed over its tokens; see `F.crf`."""
        return F.crf(emissions, tags, self.transitions, self.start, self.end)

    def viterbi(self, emissions: Node) -> Node:
        """The most probable tags of one sentence as a node, (T, 1); see `F.viterbi`."""
        return F.viterbi(emissions, self.transitions, self.start, self.end)

    def decode(self, emissions: Sequence[Node]) -> list[Array]:
        """The most probable tags of several sentences, in one batched run.

        Args:
            emissions: (T, K) of each sentence, nodes of one graph.

        Returns:
            (T,) int64 for each.

        Raises:
            EmptyBatchError: there are no sentences.
            ArgumentError:   a node is given, or a number, not a list of nodes.
            DtypeError:      something in the list is not a node.
        """
        if isinstance(emissions, Node):
            raise refused(
                "CRF.decode", f"given one node, {emissions.label()}",
                "a list with the emissions of each sentence",
                "crf.decode([emissions])[0]; all sentences of a mini-batch in one list run at once",
            )  # fmt: skip
        emissions = listed(
            "CRF.decode", "emissions", emissions, "crf.decode([emissions])[0] of one sentence"
        )
        emissions = nodes_of("CRF.decode", *emissions)
        if not emissions:
            raise EmptyBatchError.at_caller("CRF.decode: no sentences.")
        graph = emissions[0].graph
        assert isinstance(graph, Graph)
        tags = graph.values([self.viterbi(node) for node in emissions])
        return [column[:, 0].astype(np.int64) for column in tags]
