"""Hypothesis strategies: sentence lengths, ragged batches, and random graphs of any topology.

Import it as `from dynbatch.testing import strategies`; it alone needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.testing.random_graph import OPERATIONS, RandomGraph
from dynbatch.testing.random_graphs import write
from dynbatch.testing.random_program import Function

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "dynbatch.testing.strategies needs hypothesis.\n  fix:  pip install hypothesis"
    ) from error

T = TypeVar("T")


def lengths(
    most_sentences: int = 5, longest: int = 6, least_sentences: int = 1
) -> st.SearchStrategy[list[int]]:
    """Lengths of the sentences of a mini-batch; 0 and 1 are as likely as all the others."""
    length = st.one_of(st.sampled_from([0, 1]), st.integers(0, longest))
    return st.lists(length, min_size=least_sentences, max_size=most_sentences)


def ragged(width: int, most_sentences: int = 5, longest: int = 6) -> st.SearchStrategy[list[Array]]:
    """A mini-batch: one (length, width) float64 array a sentence, standard normal."""

    def draw(sizes: list[int], seed: int) -> list[Array]:
        generator = np.random.default_rng(seed)
        return [generator.standard_normal((size, width)) for size in sizes]

    return st.builds(draw, lengths(most_sentences, longest), st.integers(0, 2**32 - 1))


@st.composite
def random_graphs(
    draw: st.DrawFn,
    functions: Sequence[Function] = (),
    most_instructions: int = 12,
    operations: Sequence[str] = tuple(OPERATIONS),
    count: int = 0,
) -> RandomGraph:
    """Graphs of a few sentences that run one or two random programs (see `RandomGraph`).

    Args:
        functions:  functions of a matrix (T, D) node that programs may call: your own node types.
        operations: what programs are made of besides, among `random_graph.OPERATIONS`.
        count:      the sentences are repeated, with other inputs, until there are so many.

    Example:
        >>> from hypothesis import given
        >>> @given(random_graphs(functions=[my_node]))          # doctest: +SKIP
        ... def test_my_node_batches_in_any_graph(random_graph):
        ...     db.testing.check_policies(random_graph)
    """

    def choose(options: Sequence[T]) -> T:
        return draw(st.sampled_from(options))

    return write(choose, functions, most_instructions, operations, count)
