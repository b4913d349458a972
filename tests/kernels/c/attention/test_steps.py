"""Steps of a scan that attend to one memory: in C, and by the kernels in NumPy."""

from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.attention import additive, dot_product
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.attention import additive as c_additive
from dynbatch.kernels.c.attention import single_query as c_single_query
from dynbatch.kernels.c.attention.steps import AttentionSteps
from dynbatch.kernels.c.runtime import library
from tests.attention_reference import pack
from tests.kernels.c.compare import TOLERANCE

COUNTS = [4, 4, 3, 1]  # sentences of each step
KEYS = [5, 1, 19, 2, 3]
FIRST = 2  # number of the first step
WIDTHS = (19, 70)
NAMES = ["additive", "dot"]


def rows(width: int, dtype: Any, seed: int) -> list[Array]:
    """One (n, width) array a step, columns of a wider one."""
    rng = np.random.default_rng(seed)
    wide = [rng.standard_normal((n, width + 2)).astype(dtype) for n in COUNTS]
    return [x[:, 1:-1] for x in wide]


def memory(dtype: Any) -> tuple[Array, Array, Array]:
    (keys, offsets), (values, _) = [pack(KEYS, width, 3) for width in WIDTHS]
    return keys.astype(dtype), values.astype(dtype), offsets


def scorer_of(name: str, dtype: Any) -> Array:
    return (
        np.linspace(-0.3, 0.4, WIDTHS[0]).astype(dtype)
        if name == "additive"
        else np.full(1, 0.3, dtype)
    )


def in_c(name: str, dtype: Any, chunks: list[range], adds_each: bool = False) -> list[Array]:
    """Outputs, dqs, dkeys, dvalues and dvector; backward goes through the chunks of steps.

    Args:
        adds_each: whether what a chunk left is added at once; else all is added at last.
    """
    source = c_additive if name == "additive" else c_single_query
    keys, values, offsets = memory(dtype)
    functions = source.library.functions(keys.dtype)
    assert functions is not None
    steps = AttentionSteps(functions, name, scorer_of(name, dtype))
    steps.begin(keys, values, offsets, FIRST, COUNTS, True)
    xs, dys = rows(WIDTHS[0], dtype, 1), rows(WIDTHS[1], dtype, 2)
    outs, dxs = [np.empty_like(dy) for dy in dys], [np.empty_like(x) for x in xs]
    for t, (n, out, x) in enumerate(zip(COUNTS, outs, xs, strict=True), FIRST):
        steps.forward(t, n, out, x)
    targets = np.full_like(keys, 2), np.full_like(values, 2)
    for chunk in reversed(chunks):
        of_chunk = [COUNTS[t] for t in chunk]
        steps.begin_backward(keys, values, offsets, *targets, FIRST + chunk.start, of_chunk)
        for t in reversed(chunk):
            steps.backward(FIRST + t, COUNTS[t], dys[t], xs[t], dxs[t])
        if adds_each or chunk is chunks[0]:
            steps.finish()
        else:
            steps.sum_up()
    return [*outs, *dxs, *targets, *([steps.dvector] if name == "additive" else [])]


def in_numpy(name: str, dtype: Any) -> list[Array]:
    """The steps in NumPy, one by one, each gradient added at once."""
    keys, values, offsets = memory(dtype)
    targets = np.full_like(keys, 2), np.full_like(values, 2)
    outs, dxs, scorer = [], [], scorer_of(name, dtype)
    dvector, room = np.zeros_like(scorer), np.empty(1 << 13, dtype)
    for x, dy in zip(rows(WIDTHS[0], dtype, 1), rows(WIDTHS[1], dtype, 2), strict=True):
        ends = offsets[: len(x) + 1]
        packed = PackedAttention(
            x, keys[: ends[-1]], values[: ends[-1]], np.arange(ends.size), ends
        )
        masks = [NO_MASK] * len(x)
        out, dx = np.empty_like(dy), np.empty_like(x)
        wanted = AttentionGradients(dx, *[dm[: ends[-1]] for dm in targets], True)
        if name == "additive":
            weights = np.empty(ends[-1], dtype)
            additive.additive_attention(packed, scorer, masks, out, weights, room)
            given = (packed, scorer, weights, dy, wanted, room)
            dvector += additive.additive_attention_backward(*given)
        else:
            log_sums, scoring = (
                np.empty((len(x), 1), dtype),
                Scoring(1, scorer.repeat(len(x)), masks),
            )
            dot_product.dot_attention(packed, scoring, out, log_sums, room)
            given = (packed, scoring, log_sums, None, dy, wanted, room)
            dot_product.dot_attention_backward(*given)
        outs.append(out)
        dxs.append(dx)
    return [*outs, *dxs, *targets, *([dvector] if name == "additive" else [])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [[range(4)], [range(3), range(3, 4)]])
@pytest.mark.parametrize("adds_each", [False, True])
def test_steps_in_c_give_what_numpy_gives(
    name: str, dtype: Any, chunks: list[range], adds_each: bool
) -> None:
    mine = in_c(name, dtype, chunks, adds_each)
    with library.reference_only():
        expected = in_numpy(name, dtype)
    tolerance = TOLERANCE[np.dtype(dtype).char]
    for a, b in zip(mine, expected, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_have_the_same_bits_whatever_the_chunks_of_steps(name: str) -> None:
    whole = in_c(name, np.float32, [range(4)])
    for chunks in ([range(1), range(1, 4)], [range(2), range(2, 3), range(3, 4)]):
        for one, other in zip(in_c(name, np.float32, chunks), whole, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_without_backward_all_steps_share_the_room_of_the_first(name: str) -> None:
    source = c_additive if name == "additive" else c_single_query
    keys, values, offsets = memory(np.float32)
    functions = source.library.functions(keys.dtype)
    assert functions is not None
    xs, outs = rows(WIDTHS[0], np.float32, 1), []
    for keeps in (True, False):
        steps = AttentionSteps(functions, name, scorer_of(name, np.float32))
        steps.begin(keys, values, offsets, FIRST, COUNTS, keeps)
        of_steps = [np.empty((n, WIDTHS[1]), np.float32) for n in COUNTS]
        for t, (n, out, x) in enumerate(zip(COUNTS, of_steps, xs, strict=True), FIRST):
            steps.forward(t, n, out, x)
        outs.append(np.concatenate(of_steps))
    assert (outs[0] == outs[1]).all()
