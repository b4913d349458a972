"""Convolutions of images of different sizes: patches unfolded a chunk at a time, and multiplied.

Weights are (O, I, kernel height, kernel width); a patch has the I features of each position side by
side, so products take weights with the positions first, as a weight (O, positions · I) has them.
With G groups, rows have G · I features: a patch has those of each group side by side, and a group's
share of the O outputs reads its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import grouped
from dynbatch.kernels.images import Patches, swap_inner, unfold
from dynbatch.kernels.rows import gather_rows
from dynbatch.kernels.runtime.dispatch import HOST, kernel

# Bytes of a chunk's patches, unless LEAST_ROWS need more: as for the logits of a cross-entropy.
CHUNK_BYTES = 16 << 20
LEAST_ROWS = 256
VECTOR = 16


class Sizes(NamedTuple):
    """Outputs O, inputs I of one group, and positions of a weight."""

    outputs: int
    inputs: int
    positions: int

    @classmethod
    def of(cls, weight: Array, patches: Patches) -> Sizes:
        outputs, *rest = weight.shape
        return cls(outputs, prod(rest) // patches.positions, patches.positions)

    def strides(self, weight: Array) -> tuple[int, int, int]:
        """Elements from an output to the next, from a position, and from an input."""
        row = self.inputs * self.positions
        return (row, self.inputs, 1) if weight.ndim == 2 else (row, 1, self.positions)


def padded(columns: int) -> int:
    """Columns of a weight that is packed: whole vectors of any processor's."""
    return -(-columns // VECTOR) * VECTOR


def chunk_rows(rows: int, width: int, itemsize: int) -> int:
    """Patches of a chunk: chunks are as few as `CHUNK_BYTES` allow, and of about equal size."""
    most = max(LEAST_ROWS, CHUNK_BYTES // max(1, width * itemsize))
    return max(1, -(-rows // max(1, -(-rows // most))))


def workspace(weight: Array, patches: Patches, groups: int = 1) -> int:
    """Elements of scratch for `convolve`, and for `weight_gradient`."""
    outputs, inputs, positions = Sizes.of(weight, patches)
    return _room(weight, patches, groups * inputs, padded(outputs) * inputs * positions)


def workspace_backward(weight: Array, patches: Patches) -> int:
    """Elements of scratch for `convolve_backward`."""
    outputs, inputs, positions = Sizes.of(weight, patches)
    return _room(weight, patches, outputs, outputs * padded(inputs) * positions)


def _room(weight: Array, patches: Patches, features: int, packed: int) -> int:
    """Elements of a weight and a chunk of patches, or, in C, of a packed weight."""
    if patches.are_rows:
        return weight.size
    width, rows = patches.positions * features, int(patches.offsets[-1])
    chunk = min(rows, chunk_rows(rows, width, weight.itemsize)) * width
    return max(weight.size + chunk, packed)


@kernel(c=HOST)
def convolve(
    x: Array, patches: Patches, weight: Array, bias: Array | None, scratch: Array, out: Array,
    groups: int = 1,
) -> None:  # fmt: skip
    """out[m] = W · patch m + b.

    Args:
        x:       (N, G · I).
        weight:  (O, I, …) or (O, positions · I), with as many positions as the patches; contiguous.
        scratch: `workspace` elements.
        out:     (M, O).
    """
    outputs, inputs, positions = Sizes.of(weight, patches)
    matrix = weight
    if weight.ndim > 2:
        matrix = scratch[: weight.size]
        swap_inner(weight.reshape(-1), (outputs, inputs, positions), matrix)
    factors = matrix.reshape(groups, outputs // groups, positions * inputs)
    for part, unfolded in _chunks(x, patches, len(out), scratch[weight.size :], groups):
        grouped.matmul_groups(unfolded, factors, out[part], bias, transpose_b=True)


@kernel(c=HOST)
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
    outputs, inputs, positions = Sizes.of(weight, patches)
    matrix = scratch[: weight.size]
    if weight.ndim > 2:
        swap_inner(weight.reshape(-1), (groups, outputs // groups * inputs, positions), matrix)
    else:
        of_groups = np.arange(outputs * positions).reshape(groups, -1, positions).swapaxes(1, 2)
        gather_rows(weight.reshape(-1, inputs), of_groups.reshape(-1), matrix.reshape(-1, inputs))
    factors = matrix.reshape(groups, positions * outputs // groups, inputs)
    for part, unfolded in _chunks(dy, patches, len(out), scratch[weight.size :], groups):
        grouped.matmul_groups(unfolded, factors, out[part], bias)


@kernel(c=HOST)
def weight_gradient(
    x: Array, patches: Patches, dy: Array, scratch: Array, out: Array, groups: int = 1
) -> None:
    """out = Σ_m dy[m] · patch m, in the layout of the weight.

    Args:
        scratch: `workspace` elements.
        out:     (O, I, …), contiguous.
    """
    outputs, inputs, positions = Sizes.of(out, patches)
    matrix = scratch[: out.size] if out.ndim > 2 else out
    totals = matrix.reshape(groups, outputs // groups, positions * inputs)
    if not len(dy):  # the empty sum
        matrix[...] = 0
    for part, unfolded in _chunks(x, patches, len(dy), scratch[out.size :], groups):
        grouped.outer_groups(unfolded, dy[part], totals, add=part.start > 0)
    if out.ndim > 2:
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
