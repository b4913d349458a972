"""The CRF in C against NumPy."""

from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array, spec_of
from dynbatch.kernels.c.losses import crf as c_crf
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.losses import crf as kernels
from dynbatch.kernels.losses.crf import Chain, ChainGradients
from tests.kernels.c.compare import TOLERANCE, Scratch, assert_same

LENGTHS = [3, 0, 1, 9, 2]
OFFSETS = np.cumsum([0, *LENGTHS])
TAGS = [1, 5, 70]


def problem(tags: int, dtype: Any, spread: float = 1) -> tuple[Array, Chain, Array]:
    rng = np.random.default_rng(tags)
    shapes = [(tags, tags), (tags,), (tags,)]
    chain = Chain(*[(spread * rng.standard_normal(shape)).astype(dtype) for shape in shapes])
    x = (spread * rng.standard_normal((OFFSETS[-1], tags))).astype(dtype)
    return x, chain, rng.integers(0, tags, OFFSETS[-1])


def gradients(x: Array, chain: Chain, ids: Array, offsets: Array = OFFSETS) -> list[Array]:
    """Losses, dx and the gradients of the chain."""
    log_sums, shifts = np.empty_like(x), np.empty(len(x), x.dtype)
    out = np.empty(len(offsets) - 1, x.dtype)
    kernels.crf(x, chain, ids, offsets, log_sums, shifts, out)
    dy = np.linspace(0.5, 2, len(out)).astype(x.dtype)
    dx, wanted = np.empty_like(x), ChainGradients(*[np.empty_like(part) for part in chain])
    room = np.empty(kernels.workspace_backward(spec_of(x), *x.shape), x.dtype)
    kernels.crf_backward(x, chain, ids, offsets, log_sums, shifts, dy, dx, wanted, room)
    return [out, dx, *wanted]  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tags", TAGS)
def test_loss_and_best_tags(tags: int, dtype: Any) -> None:
    x, chain, ids = problem(tags, dtype)
    left = [np.empty_like(x), np.empty(len(x), dtype), np.empty(len(LENGTHS), dtype)]
    assert_same(kernels.crf, x, chain, ids, OFFSETS, *left)
    best = np.empty(len(x), dtype)
    assert_same(kernels.viterbi, x, chain, OFFSETS, best, Scratch(x.size, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tags", TAGS)
@pytest.mark.parametrize("spread", [1, 60])  # with 60 some sums are recomputed term by term
def test_gradients(tags: int, dtype: Any, spread: float) -> None:
    x, chain, ids = problem(tags, dtype, spread)
    chain.transitions[0, -1] = -np.inf if tags > 1 else 0
    mine = gradients(x, chain, ids)
    with library.reference_only():
        expected = gradients(x, chain, ids)
    # Scores of 60 are rounded more coarsely than scores of 1.
    tolerance = TOLERANCE[np.dtype(dtype).char] * max(1, spread / 10)
    for a, b in zip(mine, expected, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)


def test_ties_go_to_the_lowest_tags() -> None:
    x, chain, _ = problem(5, np.float32)
    for array in (x, *chain):
        array[...] = 0
    best = np.full(len(x), np.nan, np.float32)
    assert c_crf.viterbi(x, chain, OFFSETS, best, np.empty(x.size, np.float32)) is None
    assert not best.any()


def test_a_sentence_has_the_same_bits_alone_and_in_company() -> None:
    x, chain, ids = problem(70, np.float32)
    losses, log_sums = np.empty(len(LENGTHS), np.float32), np.empty_like(x)
    kernels.crf(x, chain, ids, OFFSETS, log_sums, np.empty(len(x), np.float32), losses)
    for k, length in enumerate(LENGTHS):
        rows, alone = slice(OFFSETS[k], OFFSETS[k + 1]), np.empty(1, np.float32)
        own, shifts = np.empty((length, 70), np.float32), np.empty(length, np.float32)
        kernels.crf(x[rows], chain, ids[rows], np.array([0, length]), own, shifts, alone)
        assert alone[0] == losses[k] and own.tobytes() == log_sums[rows].tobytes()
