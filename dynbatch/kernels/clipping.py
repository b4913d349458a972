"""Norms and clipping of gradients: on a GPU all of one dtype in a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from dynbatch.backend import Array, Device, device_of
from dynbatch.kernels.cuda import clipping as on_device
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.runtime.stream import HostCopy
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
        norm: a number; of arrays on a GPU (1,) float64 there.
    """
    if not isinstance(norm, float):
        on_device.scale_to_norm(sorted(arrays, key=_type), norm, max_norm)
    elif (scale := max_norm / (norm + 1e-6)) < 1.0:
        for values in arrays:
            np.multiply(values, scale, out=values)


def clip_values(arrays: Sequence[Array], limit: float) -> None:
    """Clip every v to [-limit, limit], of arrays on one device; NaN stays NaN."""
    if arrays and not isinstance(arrays[0], np.ndarray):
        on_device.clip_values(sorted(arrays, key=_type), limit)
        return
    for values in arrays:
        np.clip(values, -limit, limit, out=values)


class Totals:
    """Σ v², or Σ v, of each array; those on a GPU are on their way until they are read.

    Args:
        arrays:  C-contiguous, of any devices and dtypes.
        squared: whether numbers are squared.
        sent:    False copies nothing to the host before it is read, which then waits for all work.
    """

    def __init__(self, arrays: Sequence[Array], squared: bool = True, sent: bool = True) -> None:
        on_host: Callable[[Array], float] = sum_squares if squared else _sum
        start = on_device.sum_squares if squared else on_device.sums
        self._totals = [on_host(x) if isinstance(x, np.ndarray) else 0.0 for x in arrays]
        self._late: list[tuple[list[int], list[int], Array, HostCopy | None]] = []
        devices: dict[Device, list[int]] = {}
        for k, array in enumerate(arrays):
            if not isinstance(array, np.ndarray):
                devices.setdefault(device_of(array), []).append(k)
        for device, numbers in devices.items():
            numbers.sort(key=lambda k: _type(arrays[k]))
            ends = np.cumsum([on_device.num_chunks(arrays[k]) for k in numbers]).tolist()
            partials = device.xp.empty(ends[-1], "float64")
            start([arrays[k] for k in numbers], partials)
            copy = HostCopy(partials) if sent else None
            self._late.append((numbers, ends, partials, copy))

    def norm(self) -> Array:
        """√Σ of all, of arrays on one GPU, as (1,) float64 there."""
        ((_, _, partials, _),) = self._late
        norm: Array = device_of(partials).xp.empty(1, "float64")
        on_device.norm_of(partials, norm)
        return norm

    def read(self) -> list[float]:
        """The total of each array."""
        for numbers, ends, partials, copy in self._late:
            parts = np.split(to_host(partials) if copy is None else copy.read(), ends)
            for k, part in zip(numbers, parts, strict=False):
                self._totals[k] = float(part.sum())
        return self._totals


def _type(array: Array) -> str:
    return array.dtype.char


def _sum(values: Array) -> float:
    return float(np.sum(values, dtype=np.float64))
