"""Norms and clipping of gradients on a GPU: launches of `clipping.cu`, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.addresses import element_offsets
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch

THREADS = 256
NORM_THREADS = 1024
CHUNK = 4096  # elements of a gradient to a block, as in clipping.cu


def num_chunks(array: Array) -> int:
    return int(-(-array.size // CHUNK))


def sum_squares(gradients: Sequence[Array], partials: Array) -> None:
    """partials[b] = Σ x² over chunk b of the gradients, one after the other.

    Args:
        gradients: device arrays of one dtype, C-contiguous.
        partials:  (chunks,) float64 of the device.
    """
    _over_chunks("sum_squares", gradients, partials)


def sums(arrays: Sequence[Array], partials: Array) -> None:
    """partials[b] = Σ x over chunk b of the arrays; arguments as those of `sum_squares`."""
    _over_chunks("sums", arrays, partials)


def norm_of(partials: Array, norm: Array) -> None:
    """norm[0] = √Σ partials, all float64 of the device."""
    args = (partials, norm, partials.size)
    launch(partials, "norm_of", (1,), (NORM_THREADS,), args)


def scale_to_norm(gradients: Sequence[Array], norm: Array, max_norm: float) -> None:
    """Every x ← x · min(1, max_norm / (norm + 1e-6)), unless the norm is not finite.

    Args:
        gradients: device arrays of one dtype, C-contiguous.
        norm:      (1,) float64 of the device.
    """
    _over_chunks("scale_to_norm", gradients, norm, max_norm)


def clip_values(gradients: Sequence[Array], limit: float) -> None:
    _over_chunks("clip_values", gradients, limit)


def _over_chunks(kernel: str, arrays: Sequence[Array], out: Array | float, *args: Argument) -> None:
    """Launch a kernel for each run of arrays of one dtype; of sums, each run has its partials."""
    for _, group in groupby(arrays, attrgetter("dtype")):
        gradients = [*group]
        base, counts = gradients[0], [num_chunks(gradient) for gradient in gradients]
        ends = np.cumsum(counts)
        sizes = [gradient.size for gradient in gradients]
        entries = np.column_stack((ends - counts, element_offsets(base, gradients), sizes))
        grid = (int(ends[-1]),)
        launch(base, kernel, grid, (THREADS,), (base, entries, out, *args, len(gradients)))
        if kernel in ("sum_squares", "sums"):
            out = out[grid[0] :]  # type: ignore[index]
