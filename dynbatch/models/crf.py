"""`CRF` and `SemiCRF`, on top of any network that scores tokens' tags, or segments."""

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
        self.transitions, self.start, self.end = _chain(num_tags, generator(rng))

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
        return [column[:, 0].astype(np.int64) for column in _decoded(self, emissions)]


class SemiCRF(Module):
    """A semi-Markov conditional random field: segments of up to L tokens, each of one of K labels.

        score(y) = start[y_1] + Σ_s emissions[t_s, (l_s - 1) K + y_s]
                   + Σ_s transitions[y_s, y_s+1] + end[y_S]
        p(y) = exp(score(y)) / Σ_y' exp(score(y')),   y any segmentation of the sentence

    where segment s has l_s tokens, label y_s and the last token t_s. What is no segment is one of
    one token, with a label of its own.

    Args:
        num_labels: K.
        longest:    L.
        rng:        generator or seed of the initial values, uniform in ±0.1.

    Parameters: transitions (K, K), from a label (row) to the next (column); start (K,), end (K,). A
        value of -inf, set before training, forbids and stays.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> crf = models.SemiCRF(2, longest=3, rng=0)
        >>> with db.Graph() as graph:
        ...     emissions = F.input(graph, np.eye(6)[[0, 5, 3]] * 9)  # (3, longest · num_labels)
        ...     loss = crf.loss(emissions, [(1, 0), (2, 1)])
        ...     crf.decode([emissions])[0].tolist()  # (length, label) of each segment
        [[1, 0], [2, 1]]
    """

    def __init__(self, num_labels: int, longest: int, *, rng: Rng = None) -> None:
        sizes(self, num_labels=num_labels, longest=longest)
        self.longest = longest
        self.transitions, self.start, self.end = _chain(num_labels, generator(rng))

    def loss(self, emissions: Node, segments: Sequence[tuple[int, int]]) -> Node:
        """-log p(segments) of one sentence in nats, of (length, label) each; see `F.semi_crf`."""
        chain = (self.transitions, self.start, self.end)
        return F.semi_crf(emissions, segments, self.longest, *chain)

    def viterbi(self, emissions: Node) -> Node:
        """The most probable segments of one sentence as a node; see `F.semi_viterbi`."""
        return F.semi_viterbi(emissions, self.longest, self.transitions, self.start, self.end)

    def decode(self, emissions: Sequence[Node]) -> list[Array]:
        """The most probable segments of several sentences, in one batched run.

        Args:
            emissions: (T, longest · num_labels) of each sentence, nodes of one graph.

        Returns:
            (S, 2) int64 for each: lengths and labels.

        Raises:
            EmptyBatchError, ArgumentError, DtypeError: see `CRF.decode`.
        """
        columns = [column[:, 0].astype(np.int64) for column in _decoded(self, emissions)]
        labels = self.start.size
        return [
            np.stack([each[each >= 0] // labels + 1, each[each >= 0] % labels], 1)
            for each in columns
        ]


def _chain(tags: int, rng: np.random.Generator) -> list[Parameter]:
    """Scores of transitions, of first tags and of last ones."""
    return [
        Parameter(rng.uniform(-LARGEST, LARGEST, shape).astype(np.float32))
        for shape in ((tags, tags), (tags,), (tags,))
    ]


def _decoded(crf: CRF | SemiCRF, emissions: Sequence[Node]) -> Sequence[Array]:
    """The values of `crf.viterbi` of several sentences."""
    what = f"{type(crf).__name__}.decode"
    if isinstance(emissions, Node):
        raise refused(
            what, f"given one node, {emissions.label()}",
            "a list with the emissions of each sentence",
            "crf.decode([emissions])[0]; all sentences of a mini-batch in one list run at once",
        )  # fmt: skip
    emissions = listed(what, "emissions", emissions, "crf.decode([emissions])[0] of one sentence")
    emissions = nodes_of(what, *emissions)
    if not emissions:
        raise EmptyBatchError.at_caller(f"{what}: no sentences.")
    graph = emissions[0].graph
    assert isinstance(graph, Graph)
    return graph.values([crf.viterbi(node) for node in emissions])
