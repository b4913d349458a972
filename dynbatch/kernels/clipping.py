"""Norms and clipping of gradients: on a GPU all of one dtype in a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from dynbatch.backend import Array, Device, DType, device_of
from dynbatch.kernels.cuda import clipping as on_device
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.runtime.stream import HostCopy, stream_of
from dynbatch.kernels.runtime.transfer import to_host

# OpenBLAS cuts longer dot products between its threads, and the sum would depend on their number.
_DOT_ELEMENTS = 8192


@kernel(c=HOST)
def sum_squares(values: Array) -> float:
    """Σ v²: float dot products over short runs, added in float64. Repeats bit for bit."""
    flat = values.reshape(-1)
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, _DOT_ELEMENTS):
            run = flat[start : start + _DOT_ELEMENTS]
            square = float(np.dot(run, run))
            if not isfinite(square):  # float32 overflows at |v| > 1.8e19, though the norm may not
                square = float(np.dot(run, run.astype(np.float64)))
            total += square
    return total


def scale_to_norm(arrays: Sequence[Array], norm: Array | float, max_norm: float) -> None:
    """Every v ← v · min(1, max_norm / (norm + 1e-6)); on a GPU not if the norm is not finite.

    Args:
        arrays: of one device, as those of `clip_values`.
        norm:   a number; on a GPU (1,) float64 there.
    """
    if not isinstance(norm, float):
        for group in _by_dtype(arrays):
            on_device.scale_to_norm([arrays[k] for k in group], norm, max_norm)
    elif (scale := max_norm / (norm + 1e-6)) < 1.0:
        for values in arrays:
            np.multiply(values, scale, out=values)


def clip_values(arrays: Sequence[Array], limit: float) -> None:
    """Clip every v to [-limit, limit]; NaN stays NaN."""
    if arrays and device_of(arrays[0]).is_cuda:
        for group in _by_dtype(arrays):
            on_device.clip_values([arrays[k] for k in group], limit)
        return
    for values in arrays:
        np.clip(values, -limit, limit, out=values)


class Totals:
    """Σ v², or Σ v, of each array; those on a GPU are on their way until they are read.

    Args:
        arrays:  C-contiguous, of any devices and dtypes.
        squared: whether numbers are squared.
    """

    def __init__(self, arrays: Sequence[Array], squared: bool = True) -> None:
        on_host: Callable[[Array], float] = sum_squares if squared else _sum
        start = on_device.sum_squares if squared else on_device.sums
        self._totals = [on_host(x) if isinstance(x, np.ndarray) else 0.0 for x in arrays]
        self._partials: list[tuple[list[int], list[int], Array]] = []
        self._copies: list[HostCopy | None] = []
        devices: dict[Device, list[int]] = {}
        for k, array in enumerate(arrays):
            if not isinstance(array, np.ndarray):
                devices.setdefault(device_of(array), []).append(k)
        for device, of_device in devices.items():
            groups = _by_dtype([arrays[k] for k in of_device])
            numbers = [of_device[k] for group in groups for k in group]
            counts = [on_device.num_chunks(arrays[k]) for k in numbers]
            partials, first = device.xp.empty(sum(counts), "float64"), 0
            for group in groups:
                group_arrays = [arrays[of_device[k]] for k in group]
                end = first + sum(map(on_device.num_chunks, group_arrays))
                start(group_arrays, partials[first:end])
                first = end
            self._partials.append((numbers, counts, partials))

    def send(self) -> Totals:
        """Start the copies to the host: reading waits for them and for nothing later."""
        copies = [stream_of(device_of(x)).host_copy(x) for _, _, x in self._partials]
        self._copies = copies
        return self

    def norm(self) -> Array:
        """√Σ of all, of arrays on one GPU, as (1,) float64 there."""
        ((_, _, partials),) = self._partials
        norm: Array = device_of(partials).xp.empty(1, "float64")
        on_device.norm_of(partials, norm)
        return norm

    def read(self) -> list[float]:
        """The total of each array."""
        copies = self._copies or [None] * len(self._partials)
        for (numbers, counts, partials), copy in zip(self._partials, copies, strict=True):
            parts = np.split(to_host(partials) if copy is None else copy.read(), np.cumsum(counts))
            for k, part in zip(numbers, parts, strict=False):
                self._totals[k] = float(part.sum())
        return self._totals


def _by_dtype(arrays: Sequence[Array]) -> list[list[int]]:
    """The numbers of the arrays of each dtype."""
    groups: dict[DType, list[int]] = {}
    for k, array in enumerate(arrays):
        groups.setdefault(array.dtype, []).append(k)
    return [*groups.values()]


def _sum(values: Array) -> float:
    return float(np.sum(values, dtype=np.float64))
