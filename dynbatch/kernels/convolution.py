"""Convolutions of images of different sizes: patches unfolded a chunk at a time, and multiplied.

Weights are (O, I, kernel height, kernel width); a patch has the I features of each position side by
side, so products take weights with the positions first. With G groups, rows have G · I features: a
patch has those of each group side by side, and a group's share of the O outputs reads its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from dynbatch.backend import Array
from dynbatch.kernels import grouped
from dynbatch.kernels.images import Patches, swap_inner, unfold

# Bytes of a chunk's patches, unless LEAST_ROWS need more: as for the logits of a cross-entropy.
CHUNK_BYTES = 16 << 20
LEAST_ROWS = 256


class Sizes(NamedTuple):
    """Outputs O, inputs I of one group, and positions of a weight."""

    outputs: int
    inputs: int
    positions: int

    @classmethod
    def of(cls, weight: Array) -> Sizes:
        outputs, inputs, *kernel = weight.shape
        return cls(outputs, inputs, prod(kernel))


def chunk_rows(rows: int, width: int, itemsize: int) -> int:
    """Patches of a chunk: chunks are as few as `CHUNK_BYTES` allow, and of about equal size."""
    most = max(LEAST_ROWS, CHUNK_BYTES // max(1, width * itemsize))
    return max(1, -(-rows // max(1, -(-rows // most))))


def workspace(weight: Array, patches: Patches, groups: int = 1) -> int:
    """Elements of scratch for `convolve`, and for `weight_gradient`."""
    sizes = Sizes.of(weight)
    return prod(sizes) + _room(patches, groups * sizes.inputs, weight.itemsize)


def workspace_backward(weight: Array, patches: Patches) -> int:
    """Elements of scratch for `convolve_backward`."""
    sizes = Sizes.of(weight)
    return prod(sizes) + _room(patches, sizes.outputs, weight.itemsize)


def _room(patches: Patches, features: int, itemsize: int) -> int:
    """Elements of a chunk of patches."""
    if patches.are_rows:
        return 0
    width, rows = patches.positions * features, int(patches.offsets[-1])
    return min(rows, chunk_rows(rows, width, itemsize)) * width


def convolve(
    x: Array, patches: Patches, weight: Array, bias: Array | None, scratch: Array, out: Array,
    groups: int = 1,
) -> None:  # fmt: skip
    """out[m] = W · patch m + b.

    Args:
        x:       (N, G · I).
        weight:  (O, I, …), with as many positions as the patches; contiguous.
        scratch: `workspace` elements.
        out:     (M, O).
    """
    outputs, inputs, positions = Sizes.of(weight)
    matrix = scratch[: weight.size]
    swap_inner(weight.reshape(-1), (outputs, inputs, positions), matrix)
    factors = matrix.reshape(groups, outputs // groups, positions * inputs)
    for part, unfolded in _chunks(x, patches, len(out), scratch[weight.size :], groups):
        grouped.matmul_groups(unfolded, factors, out[part], bias, transpose_b=True)


def convolve_backward(
    dy: Array, patches: Patches, weight: Array, scratch: Array, out: Array, groups: int = 1,
    bias: Array | None = None,
) -> None:  # fmt: skip
    """out[n] = Σ Wᵀ dy over the positions of row n in the patches that hold it, + b.

    That is the transposed convolution of dy.

    Args:
        dy:      (M, O).
        patches: those of `convolve`, reversed.
        scratch: `workspace_backward` elements.
        out:     (N, G · I).
        bias:    (G · I,).
    """
    outputs, inputs, positions = Sizes.of(weight)
    matrix = scratch[: weight.size]
    swap_inner(weight.reshape(-1), (groups, outputs // groups * inputs, positions), matrix)
    factors = matrix.reshape(groups, positions * outputs // groups, inputs)
    for part, unfolded in _chunks(dy, patches, len(out), scratch[weight.size :], groups):
        grouped.matmul_groups(unfolded, factors, out[part], bias)


def weight_gradient(
    x: Array, patches: Patches, dy: Array, scratch: Array, out: Array, groups: int = 1
) -> None:
    """out = Σ_m dy[m] · patch m, in the layout of the weight.

    Args:
        scratch: `workspace` elements.
        out:     (O, I, …), contiguous.
    """
    outputs, inputs, positions = Sizes.of(out)
    matrix = scratch[: out.size]
    totals = matrix.reshape(groups, outputs // groups, positions * inputs)
    for part, unfolded in _chunks(x, patches, len(dy), scratch[out.size :], groups):
        grouped.outer_groups(unfolded, dy[part], totals, add=part.start > 0)
    swap_inner(matrix, (outputs, positions, inputs), out.reshape(-1))


def _chunks(
    x: Array, patches: Patches, count: int, room: Array, groups: int
) -> Iterator[tuple[slice, Array]]:
    """The patches in chunks, unfolded in `room`; where each is a row of x, x itself."""
    if patches.are_rows:
        yield slice(0, count), x
        return
    width = patches.positions * x.shape[1]
    rows = chunk_rows(count, width, x.itemsize)
    for start in range(0, count, rows):
        part = slice(start, min(count, start + rows))
        unfolded = room[: (part.stop - start) * width].reshape(-1, width)
        unfold(x, patches, start, unfolded, groups)
        yield part, unfolded
