"""Kernels over segments of rows: softmax, sparsemax, running sums, variances, largest rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import cumulative, kmax_pool, softmax, sparsemax, variance
from dynbatch.kernels.matrices import Matrices
from tests.kernels.table.call import ALL, Call, Scene, Values, case, normal, places, room

# Segments of a thread, a warp, a block and several blocks, with their borders, in both layouts; of
# no, one and several vectors, with rests.
UNEVEN = np.cumsum((0, 0, 1, 16, 17, 0, 31, 32, 33, 64, 65, 256, 257, 600, 0))
FEW = np.array([0, 3, 3, 4, 13])
SHAPES = {
    "uneven of 1": (UNEVEN, 1), "uneven of 3": (UNEVEN, 3), "uneven of 33": (UNEVEN, 33),
    "many of one length": (np.arange(301) * 3, 3), "longer than a warp": (np.arange(4) * 65, 33),
    "longer than a warp, of 1": (np.arange(4) * 65, 1), "few of 4": (FEW, 4),
    "few of 16": (FEW, 16), "few of 40": (FEW, 40), "few of 131": (FEW, 131),
    "none": (np.zeros(1, np.int64), 3), "empty ones": (np.zeros(4, np.int64), 1),
}  # fmt: skip
SOFTMAX = np.cumsum((0, 0, 1, 5, 16, 17, 31, 32, 33, 0, 1024, 1025, 2, 65, 300, 3000, 0))
OF_SOFTMAX = {
    "of 1": (SOFTMAX, 1), "of 2": (SOFTMAX, 2), "of 33": (SOFTMAX, 33),
    **{f"few of {width}": (FEW, width) for width in (1, 4, 16, 40)},
    "of one length": (np.arange(71) * 33, 1), "two long ones": (np.array([0, 1025, 2050]), 1),
    "no segments": (np.array([0]), 1), "empty ones": (np.zeros(4, np.int64), 3),
}  # fmt: skip
MATRICES = Matrices([3, 0, 5, 2, 70, 2], [4, 2, 0, 65, 33, 1])


def parts(array: Array, offsets: Any) -> list[Array]:
    """The rows of each segment."""
    return [array[a:b] for a, b in itertools.pairwise(offsets)]


def joined(rows: list[Array], like: Array) -> Array:
    return np.concatenate([np.empty((0, like.shape[1])), *rows])


def over_segments(formula: Any, offsets: Any, *arrays: Array) -> Array:
    """A formula of each segment's rows, in float64."""
    arrays = tuple([array.astype(np.float64) for array in arrays])
    segments = zip(*[parts(array, offsets) for array in arrays], strict=True)
    return joined([formula(*each) for each in segments if len(each[0])], arrays[0])


def shares(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=0))
    return powers / powers.sum(axis=0)


@case(shape=OF_SOFTMAX)
def of_softmax(dtype: Any, shape: tuple[Array, int]) -> Scene:
    offsets, width = shape
    x, dy = [normal(dtype, offsets[-1], width, seed=seed) for seed in (0, 1)]
    x *= 5
    launches = {"launches": int(offsets.size > 1)}
    is_even = len(set(np.diff(offsets).tolist())) == 1
    near = {"rtol": 2e-4, "atol": 5e-6, "alone": offsets.size < 20, **launches}
    near["uploads"] = 0 if is_even else None
    y = yield Call(
        softmax.softmax, Values(x), offsets, room(x), plain=over_segments(shares, offsets, x),
        over=0, **near,
    )  # fmt: skip
    logarithm = over_segments(lambda x: np.log(shares(x)), offsets, x)
    log_y = yield Call(
        softmax.log_softmax, Values(x), offsets, room(x), plain=logarithm, over=0, **near
    )
    near = {"rtol": 2e-4, "atol": 4e-5, "by_plain": True, **launches}
    plain = over_segments(lambda dy, y: y * (dy - (dy * y).sum(axis=0)), offsets, dy, y)
    yield Call(
        softmax.softmax_backward, Values(dy), Values(y), offsets, room(x), plain=plain, **near
    )
    plain = over_segments(lambda dy, y: dy - np.exp(y) * dy.sum(axis=0), offsets, dy, log_y)
    yield Call(
        softmax.log_softmax_backward, Values(dy), Values(log_y), offsets, room(x), plain=plain,
        **near,
    )  # fmt: skip


@case(width=[1, 3])
def of_softmax_with_infinities(dtype: Any, width: int) -> Scene:
    x = normal(dtype, SOFTMAX[-1], width)
    ends = dict(zip(np.diff(SOFTMAX).tolist(), SOFTMAX[:-1].tolist(), strict=True))
    x[ends[1]] = -np.inf  # a whole segment: NaN
    x[ends[31]] = -np.inf  # the first element only: probability 0
    x[ends[33] + 3] = np.inf  # NaN
    x[ends[1024] + 700, 0] = np.nan
    x[ends[1025] + 5 : ends[2] : 7] = -np.inf
    x[ends[2], 0] = np.nan  # the first element that a thread sees
    x[ends[3000] : ends[3000] + 300] = -np.inf  # all that some threads of a long segment see
    for kernel in (softmax.softmax, softmax.log_softmax):
        yield Call(kernel, Values(x), SOFTMAX, room(x), rtol=1e-3, atol=2e-6)
    far = np.array([[1e4], [1e4 + 1], [-1e4], [200], [-200]], dtype)
    plain = np.array([[1 / (1 + np.e)], [np.e / (1 + np.e)], [0], [1], [0]])
    yield Call(softmax.softmax, Values(far), np.array([0, 3, 5]), room(far), plain=plain)


def nearest_shares(x: Array) -> Array:
    """The point of the simplex that is nearest to each column, by sorting."""
    largest = -np.sort(-x, axis=0)
    means = (np.cumsum(largest, axis=0) - 1) / np.arange(1, len(x) + 1)[:, None]
    count = (largest > means).sum(axis=0)
    return np.maximum(x - np.take_along_axis(means, count[None] - 1, axis=0), 0)


def of_nearest(dy: Array, y: Array) -> Array:
    kept = y > 0
    return np.where(kept, dy - (dy * kept).sum(axis=0) / kept.sum(axis=0), 0)


OF_SPARSEMAX = {
    **{f"lengths of C of {width}": (np.cumsum((0, 0, 1, 5, 16, 17, 0, 300)), width)
       for width in (1, 2, 16, 37)},
    **{f"few of {width}": (FEW, width) for width in (1, 4, 40)},
    "long": (np.array([0, 3, 3, 70, 1100]), 1), "of 33": (np.array([0, 3, 3, 70, 110]), 33),
    "of one length": (np.arange(5) * 7, 2),
}  # fmt: skip


@case(shape=OF_SPARSEMAX, scale=[0.01, 1, 9])
def of_sparsemax(dtype: Any, shape: tuple[Array, int], scale: float) -> Scene:
    offsets, width = shape
    x, dy = [normal(dtype, offsets[-1], width, seed=seed) for seed in (0, 1)]
    x *= x.dtype.type(scale)
    x[20:30] = np.round(x[20:30])  # ties
    plain = over_segments(nearest_shares, offsets, x)
    y = yield Call(
        sparsemax.sparsemax, Values(x), offsets, room(x), plain=plain, over=0, alone=True
    )
    plain = over_segments(of_nearest, offsets, dy, y)
    yield Call(
        sparsemax.sparsemax_backward, Values(dy), Values(y), offsets, room(x), plain=plain
    )  # fmt: skip


@case(width=[1, 3])
def of_sparsemax_with_infinities(dtype: Any, width: int) -> Scene:
    segments = [
        [0, -np.inf, 3], [np.nan, 1], [1, np.nan], [-np.inf, -np.inf], [200, -200], [np.inf, 0],
        [1e8, 1e8, -np.inf], [np.inf, np.inf], [-np.inf],
    ]  # fmt: skip
    x = np.repeat(np.concatenate(segments)[:, None], width, axis=1).astype(dtype)
    x[0, -1] = 2.5  # each column has its own threshold
    offsets = np.cumsum([0, *map(len, segments)])
    nan, half = np.nan, 0.5
    plain = [0, 0, 1, nan, nan, nan, nan, nan, nan, 1, 0, nan, nan, half, half, 0, nan, nan, nan]
    columns = np.repeat(np.array(plain)[:, None], width, axis=1)
    columns[:3, -1] = [0.25, 0, 0.75]
    yield Call(sparsemax.sparsemax, Values(x), offsets, room(x), plain=columns)


@case(backwards=[False, True])
def of_matrices(dtype: Any, backwards: bool) -> Scene:
    """Segments that are columns of matrices, each of its own width."""
    rows, sums = int(MATRICES.rows @ MATRICES.widths), int(MATRICES.widths.sum())
    x, dy = [normal(dtype, rows, 1, seed=seed) for seed in (0, 1)]
    yield Call(
        cumulative.cumsum_segments, Values(x), MATRICES, backwards, room(x), rtol=1e-4, atol=2e-5
    )
    y = yield Call(sparsemax.sparsemax, Values(x), MATRICES, room(x))
    yield Call(sparsemax.sparsemax_backward, Values(dy), Values(y), MATRICES, room(x))
    dy, mean, y = [normal(dtype, sums, 1, seed=seed) for seed in (1, 2, 3)]
    yield Call(variance.squared_deviations, Values(x), Values(mean), MATRICES, room(x))
    yield Call(
        variance.spread_backward, Values(dy), Values(x), Values(mean), Values(y), MATRICES, 1.0,
        backwards, room(x), rtol=1e-4,
    )  # fmt: skip


@case(shape=SHAPES, backwards=[False, True])
def running_sums(dtype: Any, shape: tuple[Array, int], backwards: bool) -> Scene:
    offsets, width = shape
    x, step = normal(dtype, offsets[-1], width), -1 if backwards else 1
    plain = over_segments(lambda x: np.cumsum(x[::step], axis=0)[::step], offsets, x)
    yield Call(
        cumulative.cumsum_segments, Values(x), offsets, backwards, room(x), plain=plain, over=0,
        launches=int(offsets.size > 1), rtol=1e-4, atol=2e-5, exact="numpy",
    )  # fmt: skip


def repeated(values: Array, offsets: Array) -> Array:
    return np.repeat(values, np.diff(offsets), axis=0)


@case(
    shape={**SHAPES, "one row": (np.array([0, 1]), 2)},
    root=[False, True],
    correction=[0.0, 1.0, 2.5],
)
def deviations(dtype: Any, shape: tuple[Array, int], root: bool, correction: float) -> Scene:
    offsets, width = shape
    x = normal(dtype, offsets[-1], width)
    dy, mean, y = [normal(dtype, offsets.size - 1, width, seed=seed) for seed in (1, 2, 3)]
    y[::3] = 0
    if offsets[-1] == 1:
        x = mean.copy()
    launches = int(offsets[-1] > 0)
    distance = x - repeated(mean, offsets)
    yield Call(
        variance.squared_deviations, Values(x), Values(mean), offsets, room(x),
        plain=distance**2, launches=launches,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        counts = np.maximum(np.diff(offsets) - correction, 0)[:, None]
        slope = np.where(y == 0, 0, 1 / counts / y) if root else 2 / counts + 0 * y
        plain = repeated(dy * slope, offsets) * distance
    yield Call(
        variance.spread_backward, Values(dy), Values(x), Values(mean), Values(y), offsets,
        correction, root, room(x), plain=plain, launches=launches, rtol=1e-4,
    )  # fmt: skip


OF_LARGEST = {
    "lengths of C": np.cumsum((0, 5, 16, 4, 17, 70)), "few": np.array([0, 4, 12, 15, 20]),
    "of one length": np.array([0, 4, 8]), "none": np.array([0]),
}  # fmt: skip


@case(offsets=OF_LARGEST, k=[1, 3, 4], width=[1, 2, 16, 37])
def largest_rows(dtype: Any, offsets: Array, k: int, width: int) -> Scene:
    if k > 3 and offsets.tolist()[3:4] == [15]:
        offsets = offsets[:3]  # each segment has k rows or more
    x = np.random.default_rng(1).integers(-3, 4, (offsets[-1], width)).astype(dtype)  # with ties
    x[3::7], x[2::11, 0], x[1::13, -1] = -np.inf, np.nan, np.inf
    x[21:25] = -np.inf  # all of a segment, or all but the first
    size = np.where(np.isnan(x), np.inf, x)
    rows = [np.sort(np.argsort(-part, axis=0, kind="stable")[:k], axis=0)
            for part in parts(size, offsets)]  # fmt: skip
    first = joined(rows, x).astype(int)
    starts = np.repeat(offsets[:-1], k)[:, None]
    plain = np.take_along_axis(x, first + starts, axis=0)
    same = {"launches": int(offsets.size > 1), "exact": ALL}
    chosen = kmax_pool.kmax_pool, Values(x), offsets, k, room(plain.astype(dtype))
    _, place = yield Call(
        *chosen, places(plain.astype(dtype)), plain=(plain, first), outputs=2, **same
    )
    yield Call(*chosen, None, plain=(plain,), outputs=2, **same)
    dy, dx = normal(dtype, *plain.shape), np.zeros_like(x)
    np.put_along_axis(dx, first + starts, dy, axis=0)
    yield Call(
        kmax_pool.kmax_pool_backward, Values(dy), offsets, k, Values(place), room(x), plain=dx,
        **same,
    )  # fmt: skip
