"""Gathers by tables: sums of rows of several arrays, and their gradients."""

import numpy as np
import pytest

from dynbatch.kernels.gathers import GatherTable, gather, give_back, readers_table


def case(sums, several, seed=0, width=5):
    """A table of seven rows with its sources, some of them columns of a wider array."""
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=(6, 2 * width + 1))
    sources = [wide[:, 1 : width + 1], rng.normal(size=(9, width))][: 1 + several]
    counts = [2, 0, 1, 4, 1, 3, 1] if sums else [1] * 7
    of = rng.integers(-1, 2, sum(counts)) if several else None
    rows = rng.integers(0, 6, sum(counts))
    starts = np.append(0, np.cumsum(counts)) if sums else None
    return sources, GatherTable(rows, of, starts), np.append(0, np.cumsum(counts))


CASES = pytest.mark.parametrize("several", [False, True])
SUMS = pytest.mark.parametrize("sums", [False, True])


@CASES
@SUMS
def test_a_row_is_the_sum_of_its_terms(sums, several):
    sources, table, starts = case(sums, several)
    out = np.full((7, 5), np.nan)
    gather(sources, table, 1, 6, out)
    of = np.zeros_like(table.rows) if table.of is None else table.of
    for n in range(1, 6):
        terms = range(starts[n], starts[n + 1])
        found = [sources[of[m]][table.rows[m]] for m in terms if of[m] >= 0]
        np.testing.assert_allclose(out[n], sum(found, np.zeros(5)), rtol=1e-12)
    assert np.isnan(out[[0, 6]]).all()


@CASES
@SUMS
def test_gradients_are_given_back_to_every_term(sums, several):
    sources, table, starts = case(sums, several)
    dy = np.random.default_rng(1).normal(size=(7, 5))
    found = [np.ones_like(x) for x in sources]
    give_back(dy, table, 1, 6, found)
    expected = [np.ones_like(x) for x in sources]
    of = np.zeros_like(table.rows) if table.of is None else table.of
    for n in range(1, 6):
        for m in range(starts[n], starts[n + 1]):
            if of[m] >= 0:
                expected[of[m]][table.rows[m]] += dy[n]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_gradients_that_nobody_asks_for_are_left_out():
    _, table, _ = case(True, True)
    dy, wanted = np.ones((7, 5)), np.zeros((9, 5))
    give_back(dy, table, 0, 7, [None, wanted])
    assert wanted.sum() == 5 * np.count_nonzero(table.of == 1)


def test_readers_of_a_row_are_in_order():
    first = GatherTable(np.array([1, 0, 1]))
    second = GatherTable(np.array([1, 1, 2, 0]), np.array([0, 1, 0, -1]), np.array([0, 0, 3, 4]))
    rows, of, starts = readers_table(4, [(first, 0), (second, 0)])
    assert (rows.tolist(), of.tolist(), starts.tolist()) == (
        [1, 0, 2, 1, 1],
        [0, 0, 0, 1, 1],
        [0, 1, 4, 5, 5],
    )
