"""Windows of sentences and patches of images: unfolded, pooled, and their gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import images, windows
from tests.kernels.table.call import ALL, Call, Scene, Values, case, normal, places, room

LENGTHS = {
    "uneven": (0, 1, 2, 31, 0, 32, 33, 3, 300, 0), "few": (4, 0, 1, 7), "of one length": (5,) * 40,
    "shorter than a window": (1, 1, 1), "none": (),
}  # fmt: skip
SIDES = {
    "large": [(4, 5), (9, 3), (3, 3), (30, 41), (5, 8)], "uneven": [(4, 5), (9, 3), (3, 17)],
    "large, of one size": [(6, 5)] * 12, "one": [(3, 7)],
}  # fmt: skip
HOW = [
    ((3, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 3), (1, 1), (1, 2)),
    ((2, 3), (1, 2), (1, 1), (2, 1)),
]  # fmt: skip


def windows_of(lengths: tuple[int, ...], how: tuple[int, ...]) -> tuple[Any, Array]:
    """The table of some sentences' windows, and the rows of each, -1 for padding, by a loop."""
    size, stride, padding = how
    counts = [windows.count_windows(n, *how) for n in lengths]
    offsets, ends = [np.concatenate(([0], np.cumsum(n))).astype(int) for n in (lengths, counts)]
    rows = []
    for begin, end in itertools.pairwise(offsets):
        padded = np.pad(np.arange(begin, end), padding, constant_values=-1)
        rows += [padded[at : at + size] for at in range(0, len(padded) - size + 1, stride)]
    table = windows.WindowTable(offsets, ends, size, stride, padding)
    return table, np.array(rows, int).reshape(-1, size)


def patches_of(sides: list[tuple[int, int]], how: Any) -> tuple[Any, Array]:
    """The patches of some images, and the rows of each, -1 for padding, by a loop."""
    kernel, stride, padding, dilation = how
    start, rows = 0, []
    for height, width in sides:
        image = np.arange(start, start := start + height * width).reshape(height, width)
        framed = np.pad(image, [(p, p) for p in padding], constant_values=-1)
        reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
        spans = [
            range(0, n - r + 1, s) for n, r, s in zip(framed.shape, reach, stride, strict=True)
        ]
        for y, x in itertools.product(*spans):
            patch = framed[y : y + reach[0] : dilation[0], x : x + reach[1] : dilation[1]]
            rows.append(patch.reshape(-1))
    return images.window_patches(np.array(sides), *how), np.array(rows)


def read(x: Array, rows: Array) -> Array:
    """The elements of each window, (M, size, D), 0 for padding."""
    return np.where(rows[:, :, None] < 0, 0, np.concatenate([x, np.zeros((1, x.shape[1]))])[rows])


def added(dy: Array, rows: Array, count: int) -> Array:
    """Elements (M, size, D) of windows added up by the rows that they were read from."""
    total = np.zeros((count + 1, dy.shape[2]))
    np.add.at(total, rows, dy)
    return total[:count]


def largest(x: Array, rows: Array) -> tuple[Array, Array]:
    """The maximum of each window, NaN if there is one, and where it first is."""
    values = np.where(np.isnan(x), np.inf, x)[rows]
    is_inside = rows[:, :, None] >= 0
    peak = np.where(is_inside, values, -np.inf).max(axis=1, keepdims=True)
    place = ((values == peak) & is_inside).argmax(axis=1)
    return np.take_along_axis(x[rows], place[:, None], axis=1)[:, 0], place


def extremes(dtype: Any, count: int, width: int) -> Array:
    x = np.round(normal(dtype, count, width)) + 0  # ties, of one sign
    x[7::31], x[3::11, 0], x[5::13] = np.nan, np.nan, -np.inf
    return x


@case(
    lengths=LENGTHS, how=[(3, 1, 0), (3, 1, 2), (2, 3, 1), (4, 2, 3), (1, 1, 0)], width=[1, 3, 33]
)
def unfolded_windows(
    dtype: Any, lengths: tuple[int, ...], how: tuple[int, ...], width: int
) -> Scene:
    table, rows = windows_of(lengths, how)
    x, count = normal(dtype, sum(lengths), width), len(rows)
    plain = read(x, rows).reshape(count, how[0] * width)
    yield Call(
        windows.unfold, Values(x), table, room(plain.astype(dtype)), plain=plain, exact=ALL,
        launches=int(count > 0),
    )  # fmt: skip
    dy = normal(dtype, *plain.shape, seed=1)
    yield Call(
        windows.unfold_backward, Values(dy), table, room(x), launches=int(len(x) > 0),
        plain=added(dy.reshape(count, how[0], width), rows, len(x)),
    )  # fmt: skip


@case(
    lengths=LENGTHS, how=[(1, 1, 0), (3, 1, 0), (2, 2, 0), (3, 2, 0), (2, 3, 0)], width=[1, 3, 33]
)
def pooled_windows(dtype: Any, lengths: tuple[int, ...], how: tuple[int, ...], width: int) -> Scene:
    table, rows = windows_of(lengths, how)
    x, dy = extremes(dtype, sum(lengths), width), normal(dtype, len(rows), width, seed=1)
    is_some, has_rows = {"launches": int(len(rows) > 0)}, {"launches": int(len(x) > 0)}
    peak, _ = largest(x, rows)
    pool = windows.max_pool, Values(x), table, room(dy)
    yield Call(*pool, None, plain=(peak,), outputs=2, exact=ALL, **is_some)
    yield Call(*pool, places(dy), plain=(peak,), outputs=2, exact=ALL, **is_some)
    numbers = np.nan_to_num(x, nan=2)
    peak, place = largest(numbers, rows)  # the place of a NaN is not looked for
    yield Call(
        windows.max_pool, Values(numbers), table, room(dy), places(dy), plain=(peak, place),
        outputs=2, exact=ALL, **is_some,
    )  # fmt: skip
    at = np.take_along_axis(rows[:, :, None], place[:, None], axis=1)[:, 0]
    plain = np.zeros(x.shape)
    np.add.at(plain, (at, np.arange(width)), dy)
    place = Values(place.astype(places(dy).array.dtype))
    yield Call(
        windows.max_pool_backward, Values(dy), table, place, room(x), plain=plain, **has_rows
    )  # fmt: skip
    x = normal(dtype, *x.shape)
    plain = read(x, rows).mean(axis=1) if len(rows) else dy
    yield Call(windows.mean_pool, Values(x), table, room(dy), plain=plain, **is_some)
    each = np.repeat(dy[:, None] / how[0], how[0], axis=1)
    yield Call(
        windows.mean_pool_backward, Values(dy), table, room(x), plain=added(each, rows, len(x)),
        **has_rows,
    )  # fmt: skip


@case(sides=SIDES, how=HOW, width=[1, 6, 37])
def unfolded_patches(dtype: Any, sides: list[tuple[int, int]], how: Any, width: int) -> Scene:
    """All rows and some, by groups of columns, and of the transposed map."""
    patches, rows = patches_of(sides, how)
    x = normal(dtype, int(patches.reads[-1]), width)
    dy = normal(dtype, len(rows), width, seed=1)
    for source, each, total in ((x, patches, len(rows)), (dy, patches.reversed(), len(x))):
        for first, end in ((0, total), (1, total), (total // 3, total - total // 3)):
            for groups in {1, width, 2 if width == 6 else 1}:
                plain = None
                if each is patches:
                    read_all = read(x, rows).reshape(total, -1, groups, width // groups)
                    plain = read_all.swapaxes(1, 2).reshape(total, -1)[first:end]
                out = np.full((end - first, each.positions * width), 7, dtype)
                yield Call(
                    images.unfold, Values(source), each, first, Values(out), groups=groups,
                    plain=plain, exact=ALL, apart=True,
                )  # fmt: skip


@case(sides=SIDES, how=HOW, width=[1, 16, 37])
def pooled_patches(dtype: Any, sides: list[tuple[int, int]], how: Any, width: int) -> Scene:
    patches, rows = patches_of(sides, how)
    x = extremes(dtype, int(patches.reads[-1]), width)
    dy, back = normal(dtype, len(rows), width, seed=1), patches.reversed()
    peak, place = largest(x, rows)
    pool = images.max_patches, Values(x), patches, room(dy)
    yield Call(*pool, None, plain=(peak,), outputs=2, exact=ALL, apart=True)
    _, place = yield Call(
        *pool, places(dy), plain=(peak, place), outputs=2, exact=ALL, apart=False
    )  # fmt: skip
    at = np.take_along_axis(rows[:, :, None], place[:, None], axis=1)[:, 0]
    plain = np.zeros(x.shape)
    np.add.at(plain, (at, np.arange(width)), dy)
    yield Call(
        images.max_patches_backward, Values(dy), back, Values(place), room(x), plain=plain
    )  # fmt: skip
    x = normal(dtype, *x.shape)
    yield Call(
        images.sum_patches, Values(x), patches, 0.25, room(dy), apart=True,
        plain=0.25 * read(x, rows).sum(axis=1),
    )  # fmt: skip
    each = np.repeat(0.25 * dy[:, None], rows.shape[1], axis=1)
    yield Call(
        images.sum_patches, Values(dy), back, 0.25, room(x), apart=True,
        plain=added(each, rows, len(x)),
    )  # fmt: skip


@case(shape=[(1, 1, 1), (5, 3, 9), (1, 70, 33)])
def swapped(dtype: Any, shape: tuple[int, int, int]) -> Scene:
    x = normal(dtype, *shape)
    plain, flat = x.swapaxes(1, 2).reshape(-1), x.reshape(-1)
    yield Call(images.swap_inner, Values(flat), shape, room(flat), plain=plain, exact=ALL)
