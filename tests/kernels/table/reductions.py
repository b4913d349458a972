"""Reductions of segments, their gradients, and values repeated over segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import reduce, segment
from tests.kernels.table.call import ALL, Call, Scene, Values, case, normal, places, room
from tests.kernels.table.segments import SHAPES, joined, over_segments, parts, repeated, shares

OCCUPIED = {
    "uneven": np.cumsum((0, 1, 16, 17, 31, 32, 33, 64, 65, 256, 1025)),
    "of one length": np.arange(40) * 5, "longer than a warp": np.arange(4) * 65,
}  # fmt: skip

LONG = np.cumsum((0, 3, 16385, 40000))  # elements of more than one block
UFUNCS = {ufunc.__name__: ufunc for ufunc in (np.add, np.maximum, np.minimum)}


@case(shape={**SHAPES, "long": (LONG, 1)}, ufunc=UFUNCS)
def reductions(dtype: Any, shape: tuple[Array, int], ufunc: np.ufunc) -> Scene:
    offsets, width = shape
    x, out = normal(dtype, offsets[-1], width), normal(dtype, offsets.size - 1, width)
    empty = np.full((1, width), 7)
    plain = [ufunc.reduce(part.astype(float), axis=0, keepdims=True) if len(part) else empty
             for part in parts(x, offsets)]  # fmt: skip
    shared = 1 + (offsets is LONG or (width > 1 and offsets[-1] > 1000))
    yield Call(
        segment.reduce_segments, ufunc, Values(x), offsets, room(out), empty=7,
        plain=joined(plain, x), launches=int(shared * (offsets.size > 1)), rtol=1e-4,
        atol=1e-3 if offsets is LONG else 2e-5,
    )  # fmt: skip


@case(width=[1, 3, 20], ufunc=[np.maximum, np.minimum])
def extrema_that_are_not_numbers(dtype: Any, width: int, ufunc: np.ufunc) -> Scene:
    offsets = SHAPES["uneven of 1"][0]
    x, out = normal(dtype, offsets[-1], width), normal(dtype, offsets.size - 1, width)
    x[offsets[2:-2:2], 0] = np.nan
    x[offsets[3:-2:2] + 1, -1] = np.inf
    x[offsets[-3] : offsets[-2]] = -np.inf
    plain = [ufunc.reduce(part, axis=0, keepdims=True) if len(part) else out[:1] * 0
             for part in parts(x, offsets)]  # fmt: skip
    yield Call(
        segment.reduce_segments, ufunc, Values(x), offsets, room(out), empty=0, exact=ALL,
        plain=joined(plain, x), launches=1 + (width > 1),
    )  # fmt: skip


@case(shape={**SHAPES, "few of 70": (SHAPES["few of 4"][0], 70)})
def repeated_values(dtype: Any, shape: tuple[Array, int]) -> Scene:
    offsets, width = shape
    values, out = normal(dtype, offsets.size - 1, width), normal(dtype, offsets[-1], width)
    yield Call(
        segment.spread_segments, Values(values), offsets, room(out), exact=ALL,
        plain=repeated(values, offsets), launches=int(offsets[-1] > 0),
    )  # fmt: skip


@case(shape=SHAPES, ufunc=[np.subtract, np.multiply])
def combined_values(dtype: Any, shape: tuple[Array, int], ufunc: np.ufunc) -> Scene:
    offsets, width = shape
    x, values = normal(dtype, offsets[-1], width), normal(dtype, offsets.size - 1, width, seed=1)
    yield Call(
        segment.combine_segments, ufunc, Values(x), Values(values), offsets, room(x), over=1,
        plain=ufunc(x, repeated(values, offsets)), exact="numpy",
    )  # fmt: skip


@case(offsets={**OCCUPIED, "few": np.array([0, 3, 4, 13])}, width=[3, 37])
def first_of_equal_values(dtype: Any, offsets: Array, width: int) -> Scene:
    x = np.random.default_rng(1).integers(0, 4, (offsets[-1], width)).astype(dtype)
    x[::11, ::5] = np.nan
    values = np.maximum.reduceat(x, offsets[:-1], axis=0)
    first = np.array([part.argmax(axis=0) for part in parts(x, offsets)])  # the first NaN, too
    yield Call(
        segment.first_in_segments, Values(x), Values(values), offsets, places(values),
        plain=first, exact="numpy c",
    )  # fmt: skip


@case(shape=SHAPES)
def means(dtype: Any, shape: tuple[Array, int]) -> Scene:
    offsets, width = shape
    x, dy = normal(dtype, offsets[-1], width), normal(dtype, offsets.size - 1, width, seed=1)
    shared = 1 + (width > 1 and offsets[-1] > 1000)  # a segment of more than one block
    launches = int(shared * (offsets.size > 1))
    empty = np.zeros((1, width))
    plain = [part.mean(axis=0, keepdims=True) if len(part) else empty for part in parts(x, offsets)]
    yield Call(
        reduce.mean_segments, Values(x), offsets, room(dy), plain=joined(plain, x),
        launches=launches, atol=5e-6,
    )  # fmt: skip
    plain = repeated(dy / np.maximum(np.diff(offsets), 1)[:, None], offsets)
    yield Call(
        reduce.mean_segments_backward, Values(dy), offsets, room(x), plain=plain,
        launches=int(offsets[-1] > 0),
    )  # fmt: skip
    with np.errstate(all="ignore"):
        sums = [np.log(np.exp(part).sum(axis=0, keepdims=True)) for part in parts(x, offsets)]
    yield Call(
        reduce.logsumexp_segments, Values(x), offsets, room(dy), plain=joined(sums, x),
        launches=launches, atol=5e-6,
    )  # fmt: skip


@case(offsets={"uneven": np.cumsum((0, 3, 16385, 40000)), "two": np.array([0, 16385, 32770])})
def long_segments(dtype: Any, offsets: Array) -> Scene:
    """Elements of more than one block."""
    x, out = normal(dtype, offsets[-1], 1), normal(dtype, offsets.size - 1, 1)
    for kernel in (reduce.mean_segments, reduce.logsumexp_segments):
        yield Call(kernel, Values(x), offsets, room(out), launches=2, atol=5e-6)


def extremes(dtype: Any, offsets: Array, width: int) -> Array:
    """Values with infinities and NaN in every second segment: at its start, its end, everywhere."""
    x = 3 * normal(dtype, offsets[-1], width)
    starts, ends = offsets[:-1], offsets[1:] - 1
    x[ends[1::2], 0] = np.inf
    x[starts[1::2], -1] = -np.inf
    x[starts[3]] = np.nan
    x[starts[4]] = np.inf
    x[starts[5] : ends[5] + 1] = -np.inf
    return x


@case(width=[1, 3, 33])
def logsumexp_of_infinities(dtype: Any, width: int) -> Scene:
    offsets = OCCUPIED["uneven"]
    x, dy = extremes(dtype, offsets, width), normal(dtype, offsets.size - 1, width, seed=1)
    y = yield Call(
        reduce.logsumexp_segments, Values(x), offsets, room(dy), launches=1 + (width > 1)
    )
    assert {-np.inf, np.inf} <= set(y[:, 0].tolist()) and np.isnan(y).any()
    yield Call(
        reduce.logsumexp_segments_backward, Values(dy), Values(x), Values(y), offsets, room(x),
        rtol=1e-4,
    )  # fmt: skip


@case(offsets={**OCCUPIED, "few": np.array([0, 3, 4, 13])}, width=[1, 3, 33])
def logsumexp_gradients(dtype: Any, offsets: Array, width: int) -> Scene:
    x, dy = normal(dtype, offsets[-1], width), normal(dtype, offsets.size - 1, width, seed=1)
    y = np.empty_like(dy)
    reduce.logsumexp_segments(x, offsets, y)
    plain = over_segments(shares, offsets, x) * repeated(dy, offsets)
    yield Call(
        reduce.logsumexp_segments_backward, Values(dy), Values(x), Values(y), offsets, room(x),
        plain=plain, atol=2e-6,
    )  # fmt: skip


OF_EXTREMA = {**OCCUPIED, "few": np.array([0, 3, 4, 13]), "none": np.zeros(1, np.int64)}


@case(offsets=OF_EXTREMA, width=[1, 3, 33], largest=[True, False])
def first_extrema(dtype: Any, offsets: Array, width: int, largest: bool) -> Scene:
    x = np.round(normal(dtype, offsets[-1], width))  # ties
    has_nan = offsets is OCCUPIED["uneven"]
    if has_nan:
        x = np.round(extremes(dtype, offsets, width))
    dy, launches = normal(dtype, offsets.size - 1, width, seed=1), int(offsets.size > 1)
    if not launches:
        values, first = dy, dy.astype(int)
    else:
        values = (np.maximum if largest else np.minimum).reduceat(x, offsets[:-1], axis=0)
        choose = np.argmax if largest else np.argmin  # which find the first NaN, too
        first = np.array([choose(part, axis=0) for part in parts(x, offsets)])
    yield Call(
        reduce.first_extremum, largest, Values(x), Values(values), offsets, places(dy),
        plain=first, launches=launches, exact=ALL,
    )  # fmt: skip
    plain = np.zeros_like(x)
    np.put_along_axis(plain, first + offsets[:-1, None], dy, axis=0)
    place = Values(first.astype(places(dy).array.dtype))
    yield Call(
        reduce.extremum_backward, Values(dy), place, offsets, room(x), plain=plain,
        launches=launches, exact=ALL,
    )  # fmt: skip
