"""Greedy and beam search for many sentences at once.

Each step is one graph over all live hypotheses of all sentences, one row each. A sentence that has
ended leaves, and costs nothing from then on. The encoder runs once; the hypotheses of a sentence
share its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.graph import Graph
from dynbatch.models.beam import Beam, BeamSettings, Hypothesis
from dynbatch.models.evaluating import evaluating
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.sources import Input
from dynbatch.parameter import Array, Parameter

Memory = tuple[Node, ...]


class Generator(Protocol):
    """The interface of a model for a search; `Seq2Seq` has it."""

    training: bool
    begin: int
    end: int

    def train(self, mode: bool = True) -> object: ...

    def parameters(self) -> list[Parameter]: ...

    def start(self, graph: Owner, source: ArrayLike) -> tuple[tuple[Node, ...], Memory]:
        """The state, vectors, and the memory of one sentence before its first token."""

    def step(
        self,
        graph: Owner,
        tokens: Array,
        state: tuple[Node, ...],
        memories: Sequence[Memory],
        counts: Sequence[int],
    ) -> tuple[Node, tuple[Node, ...]]:
        """Logits (N, V) and next state of N hypotheses, `counts[k]` of them of sentence k."""


def greedy_search(
    model: Generator, sources: Sequence[ArrayLike], max_length: int = 100
) -> list[Hypothesis]:
    """Take the most probable next token, again and again, for all sentences side by side.

    Args:
        model:      a `Seq2Seq`, or anything with the methods of `Generator`. It runs where its
                    parameters are, in evaluation mode, and is left in the mode it was in.
        sources:    what `model.start` takes, one for each sentence; all are in memory at once.
        max_length: most tokens of a hypothesis, the end mark included; it is cut off there.

    Returns:
        One hypothesis for each source.

    Example:
        >>> from dynbatch import models
        >>> model = models.Seq2Seq(source_vocab=10, target_vocab=12, embed=8, hidden=16)
        >>> found = greedy_search(model, [[3], [4, 5, 6]], max_length=7)
        >>> [len(best.tokens) <= 7 for best in found]
        [True, True]
    """
    tokens: list[list[int]] = [[] for _ in sources]
    log_probs = np.zeros(len(sources))
    is_finished = np.zeros(len(sources), np.bool_)
    with evaluating(model):
        live = _Live(model, sources)
        for _ in range(max_length):
            if not live.sentences:
                break
            rows = live.advance()
            chosen = np.argmax(rows, axis=1)
            log_probs[live.sentences] += np.take_along_axis(rows, chosen[:, None], axis=1)[:, 0]
            goes_on = chosen != model.end
            is_finished[live.sentences] = ~goes_on
            for sentence, token in zip(live.sentences, chosen.tolist(), strict=True):
                if token != model.end:
                    tokens[sentence].append(token)
            kept = np.flatnonzero(goes_on)
            live.keep(kept, chosen[kept], goes_on.astype(np.int64).tolist())
    totals = zip(tokens, log_probs.tolist(), is_finished.tolist(), strict=True)
    return [Hypothesis(ids, total, total, finished) for ids, total, finished in totals]


def beam_search(
    model: Generator,
    sources: Sequence[ArrayLike],
    beam_size: int = 5,
    max_length: int = 100,
    length_penalty: float = 0.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses found while the `beam_size` best beginnings are followed.

    At each step the extensions of a sentence's live hypotheses are ranked by log-probability: of
    the first `beam_size`, those that end are finished; the first `beam_size` that do not end live
    on. A sentence is done when `beam_size` hypotheses have finished, or when no live one can come
    among the `n_best` any more. With `beam_size=1` this is `greedy_search`.

    Args:
        model, sources, max_length: as in `greedy_search`.
        beam_size:      live hypotheses of each sentence.
        length_penalty: α >= 0 of the final ranking by log_prob / length^α: 0 prefers short
                        sentences, 1 ranks by the mean.
        n_best:         hypotheses returned for each source, at most `beam_size`.

    Returns:
        For each source at most `n_best` hypotheses, the best first: finished ones, and if these are
        fewer, the best that were cut off at `max_length`.

    Raises:
        ValueError: a number is out of its range.
    """
    if not 1 <= n_best <= beam_size or not length_penalty >= 0:
        raise ValueError(
            f"beam_search: beam_size={beam_size}, n_best={n_best}, "
            f"length_penalty={length_penalty}.\n"
            "  rule: 1 <= n_best <= beam_size, 0 <= length_penalty"
        )
    settings = BeamSettings(model.end, beam_size, max_length, length_penalty, n_best)
    beams = [Beam(settings) for _ in sources]
    with evaluating(model):
        live = _Live(model, sources)
        for _ in range(max_length):
            if not live.sentences:
                break
            _extend(beams, live, live.advance())
    return [beam.best() for beam in beams]


def _extend(beams: Sequence[Beam], live: _Live, log_probs: Array) -> None:
    """Extend all beams, and their rows, by one step."""
    rows: list[Array] = []
    tokens: list[Array] = []
    first = 0
    for sentence, count in zip(live.sentences, live.counts, strict=True):
        parents, chosen = beams[sentence].extend(log_probs[first : first + count])
        rows.append(parents + first)
        tokens.append(chosen)
        first += count
    live.keep(np.concatenate(rows), np.concatenate(tokens), [part.size for part in rows])


class _Live:
    """The rows of all live hypotheses: last tokens, states, and their sentences' memories.

    Attributes:
        sentences: numbers of the sentences that have rows.
        counts:    rows of each of them.
    """

    def __init__(self, model: Generator, sources: Sequence[ArrayLike]) -> None:
        self._model = model
        parameter = model.parameters()[0]
        self._graph = partial(Graph, parameter.device, parameter.dtype, grad=False)
        self.sentences = list(range(len(sources)))
        self.counts = [1] * len(sources)
        self._tokens = np.full(len(sources), model.begin, np.int64)
        self._state: list[Array] = []
        self._memories: list[tuple[Array, ...]] = []
        if len(sources):
            with self._graph() as graph:
                started = [model.start(graph, source) for source in sources]
                states = zip(*[state for state, _ in started], strict=True)
                parts = [F.stack(list(part)) for part in states]
                graph.forward()
                self._state = [part.value for part in parts]
                self._memories = [tuple([x.value for x in memory]) for _, memory in started]

    def advance(self) -> Array:
        """Log-probabilities (N, V) of the next token of each row; states move on."""
        with self._graph() as graph:
            # Arrays of our own, which are neither checked nor copied again.
            state = tuple([Input(graph=graph, array=part) for part in self._state])
            memories = [
                tuple([Input(graph=graph, array=x) for x in memory]) for memory in self._memories
            ]
            logits, following = self._model.step(graph, self._tokens, state, memories, self.counts)
            log_probs = F.log_softmax(logits)
            graph.forward()
            self._state = [part.value for part in following]
            return log_probs.value

    def keep(self, rows: Array, tokens: Array, counts: Sequence[int]) -> None:
        """Continue with these rows and their new tokens, without sentences that have no rows.

        Args:
            rows:   (N',) rows of now, those of a sentence next to each other.
            tokens: (N',).
            counts: how many of them each sentence of now has.
        """
        self._state = [part[rows] for part in self._state]
        self._tokens = tokens
        kept = [k for k, count in enumerate(counts) if count]
        self.sentences = [self.sentences[k] for k in kept]
        self._memories = [self._memories[k] for k in kept]
        self.counts = [counts[k] for k in kept]
