"""Updates of parameters on a GPU: one launch per dtype, without waiting.

Gradients that were clipped in groups take a launch for each group.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Device, DType, device_of
from dynbatch.kernels.cuda import optimizers
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import ParameterSlice
from dynbatch.optim.norm import GradientNorm

Update = tuple[ParameterSlice, GradientNorm | None]
"""A parameter's update, and what must be finite for it to be done."""


def run_updates(updates: Sequence[Update]) -> None:
    """Start all updates; their arrays are on the GPU, and their rules have one `UpdateRule`."""
    by_device: dict[Device, dict[tuple[DType, int], list[Update]]] = {}
    for part, norm in updates:
        groups = by_device.setdefault(device_of(part.value), {})
        groups.setdefault((part.value.dtype, id(norm)), []).append((part, norm))
    for device, groups in by_device.items():
        device.use()
        for group in groups.values():
            norm = group[0][1]
            optimizers.update([part for part, _ in group], None if norm is None else norm.array)
        queue().flush()
