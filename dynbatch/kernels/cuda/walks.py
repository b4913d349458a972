"""Launches of the two loops over ragged segments that most kernels use: grids and offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from inspect import signature
from typing import Any, cast

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.addresses import row_address
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.matrices import Matrices, Segments
from dynbatch.kernels.move import row_index
from dynbatch.kernels.runtime.dispatch import ELEMENTS, ROWS, Walk
from dynbatch.ragged import offsets_of

Reduction = Callable[[Array, Segments, Array], None]
"""Reduces rows within segments to its third argument."""

# Warps of a block: each does a short segment, or all share a long one.
ROWS_OF_BLOCK = 8
THREADS = 256
# Few segments get a block each, so that all multiprocessors have work.
MANY_BLOCKS = 1024
# Elements of one column that a thread reduces alone, as in segments.cuh.
TINY = 16
# Rows of a segment that one block reduces, of one column and of several. Longer segments are
# reduced in parts of so many rows, then the parts: that takes another launch, and more blocks.
PART = 16384
PART_OF_COLUMNS = 256
# Columns of a matrix that a warp reduces, as in segments.cuh.
TILE_COLUMNS = 32
# Elements of a block that goes through all of them, as in segments.cuh.
TILE = 1024


def segment_blocks(segments: int) -> int:
    """The number of blocks for the segments, at most `ROWS_OF_BLOCK` segments each."""
    return max(-(-segments // ROWS_OF_BLOCK), min(segments, MANY_BLOCKS))


def row_grid(
    rows: int, width: int, threads: int = THREADS
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and block of a kernel that gives each element of a matrix a thread.

    A block is as wide as a row, and the remaining threads take further rows.
    """
    across = min(threads, 1 << max(0, width - 1).bit_length())
    down = threads // across
    return (-(-rows // down), -(-width // across)), (across, down)


def segment_table(offsets: Array) -> tuple[Array | None, int]:
    """The offsets as a table for the kernel, or None and the length that all segments have.

    Raises:
        ShapeError: an offset does not fit the table.
    """
    if len(offsets) < 2:
        return None, 0
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if not offsets[0] and (lengths == length).all():
        return None, length
    _require_room(int(offsets[-1]))
    return offsets, length


def _require_room(elements: int) -> None:
    if elements >= 1 << 31:
        raise ShapeError(
            f"segments of {elements} rows or elements in one batch.\n"
            f"  rule: segments of different lengths hold less than {1 << 31} together\n"
            "  fix:  a smaller mini-batch"
        )


def matrix_table(matrices: Matrices) -> Array:
    """The (K + 1, 5) table of matrices of different widths, as `Segments` in segments.cuh reads it.

    Raises:
        ShapeError: an element does not fit the table.
    """
    rows, widths = matrices.rows, matrices.widths
    elements, first, sums = [offsets_of(sizes) for sizes in (rows * widths, rows, widths)]
    _require_room(int(elements[-1]))
    tiles = offsets_of(-(-widths // TILE_COLUMNS))
    return np.column_stack((elements, first, sums, np.append(widths, 0), tiles))


def over_segments(
    name: str, arrays: tuple[Array | None, ...], offsets: Segments, width: int, *more: Argument
) -> None:
    """Launch a kernel made of `run_segments`, whose parameters are

    arrays..., offsets, length, segments, width, more...
    """
    like = cast(Array, arrays[0])
    if isinstance(offsets, Matrices):
        matrices = matrix_table(offsets)
        tiles = int(matrices[-1, 4])
        args = (*arrays, matrices, 0, len(matrices) - 1, 0, *more)
        launch(like, name, (segment_blocks(tiles),), (32, ROWS_OF_BLOCK), args)
        return
    table, length = segment_table(offsets)
    segments = len(offsets) - 1
    blocks = segment_blocks(segments)
    if width == 1 and table is None and length <= TINY:
        blocks = -(-segments // THREADS)
    args = (*arrays, table, length, segments, width, *more)
    launch(like, name, (blocks, -(-width // 32)), (32, ROWS_OF_BLOCK), args)


def over_elements(
    name: str, arrays: tuple[Argument, ...], offsets: Segments, out: Array, *more: Argument
) -> None:
    """Launch a kernel made of `over_elements` of `out`, (N, width) or (N,), whose parameters are

    arrays..., out, offsets, length, segments, width, total, more...
    """
    if isinstance(offsets, Matrices):
        table: Array | None = matrix_table(offsets)
        length, width, count = 0, 0, len(offsets.rows)
    else:
        table, length = segment_table(offsets)
        width, count = out.shape[1] if out.ndim == 2 else 1, len(offsets) - 1
    args = (*arrays, out, table, length, count, width, out.size, *more)
    launch(out, name, (-(-out.size // TILE),), (THREADS,), args)


def launch_of(kernel: Callable[..., None], walk: Walk) -> Callable[..., None]:
    """The launch of the CUDA kernel that has the name and parameters of a NumPy kernel.

    It takes its arguments by position. CUDA has arrays first, then what `over_segments`, or
    `over_elements`, tells, then numbers. A kernel by rows has them in any order: see `_over_rows`;
    one of elements without segments has the arrays, and `count`.
    """
    name, parameters = kernel.__name__, list(signature(kernel).parameters)
    declared = source.home(name).kernels[name]
    of_cuda = [each.name for each in declared]
    if walk is ROWS:
        return wraps(kernel)(partial(_over_rows, name, parameters, of_cuda))
    if of_cuda == [*parameters, "count"]:
        real = [each.type for each in declared].index("REAL")
        return wraps(kernel)(partial(_over_arrays, name, real))
    first, last = ("out", "total") if walk is ELEMENTS else ("offsets", "width")
    before, after = of_cuda[: of_cuda.index(first)], of_cuda[of_cuda.index(last) + 1 :]
    arrays, numbers = [[parameters.index(each) for each in names] for names in (before, after)]
    offsets, out = parameters.index("offsets"), parameters.index("out")

    @wraps(kernel)
    def launch_by_name(*values: Any) -> None:
        arguments, more = tuple([values[k] for k in arrays]), [values[k] for k in numbers]
        if walk is ELEMENTS:
            over_elements(name, arguments, values[offsets], values[out], *more)
        else:
            over_segments(name, arguments, values[offsets], values[out].shape[1], *more)

    return launch_by_name


def _over_arrays(name: str, real: int, *arrays: Array) -> None:
    """Launch a kernel made of `map_elements` of arrays of one size, of which one is of REAL."""
    like = arrays[real]
    launch(like, name, (-(-like.size // TILE),), (THREADS,), (*arrays, like.size))


def _over_rows(name: str, parameters: list[str], of_cuda: list[str], *values: Any) -> None:
    """Launch a kernel that gives each column of each row, or segment, a thread: see `row_grid`.

    It has the parameters of the NumPy kernel, `count` and `width`; of segments a table `offsets`
    and their `length`. The rows of `x` may lie anywhere where there is an `x_stride`.
    """
    known = dict(zip(parameters, values, strict=True))
    rows: Array = known["out" if "out" in known else "rows"]
    count, width = rows.shape
    if "offsets" in known:
        count = len(known["offsets"]) - 1
        known["offsets"], known["length"] = segment_table(known["offsets"])
    for x in [each for each in parameters if f"{each}_stride" in of_cuda]:
        known[x], known[f"{x}_stride"] = row_address(known[x])
    known |= {"count": count, "width": width}
    launch(rows, name, *row_grid(count, width), tuple([known[each] for each in of_cuda]))


@lru_cache(maxsize=64)
def parts_of_rows(rows: int) -> Array:
    """Offsets of parts of at most `PART_OF_COLUMNS` of so many rows.

    The same array for the same number, which a flush brings up once for all that read it.
    """
    parts = np.append(np.arange(0, rows, PART_OF_COLUMNS), rows)
    parts.flags.writeable = False
    return parts


def split_segments(offsets: Array, most: int) -> tuple[Array, Array]:
    """Offsets of parts of at most `most` rows, and offsets of each segment's parts."""
    counts = -(-np.diff(offsets) // most)
    parts = np.append(row_index(offsets[:-1], counts, most), offsets[-1])
    return parts, offsets_of(counts)


def reduce_parts(rows: Array, offsets: Segments, reduce: Reduction) -> tuple[Array, Segments]:
    """Partial results as rows, in segments short enough for one block, for the last `reduce`."""
    if isinstance(offsets, Matrices):
        return _reduce_parts_of_matrices(rows, offsets, reduce)
    width = rows.shape[1]
    most = PART if width == 1 else PART_OF_COLUMNS
    while int(np.diff(offsets).max(initial=0)) > most:
        parts, offsets = split_segments(offsets, most)
        partial = queue().empty((len(parts) - 1, width), rows.dtype)
        reduce(rows, parts, partial)
        rows = partial
    return rows, offsets


def _reduce_parts_of_matrices(
    rows: Array, matrices: Matrices, reduce: Reduction
) -> tuple[Array, Matrices]:
    """`reduce_parts` for matrices of different widths."""
    while int(matrices.rows.max(initial=0)) > PART_OF_COLUMNS:
        counts = -(-matrices.rows // PART_OF_COLUMNS)
        widths = np.repeat(matrices.widths, counts)
        starts = row_index(np.zeros_like(counts), counts, PART_OF_COLUMNS)
        left = np.repeat(matrices.rows, counts) - starts
        partial = queue().empty((int(widths.sum()), 1), rows.dtype)
        reduce(rows, Matrices(np.minimum(left, PART_OF_COLUMNS), widths), partial)
        rows, matrices = partial, Matrices(counts, matrices.widths)
    return rows, matrices
