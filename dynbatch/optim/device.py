"""Updates of parameters on a GPU: one launch per dtype, without waiting.

Gradients that were clipped in groups take a launch for each group.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Device, DType, device_of
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda import optimizers
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import ParameterSlice, Rule
from dynbatch.optim.norm import GradientNorm

Update = tuple[ParameterSlice, GradientNorm | None]
"""A parameter's update, and what must be finite for it to be done."""


def run_updates(updates: Sequence[Update]) -> None:
    """Start all updates; their arrays are on the GPU, and their rules use one kernel.

    Raises:
        BackendError: the rule does not name a kernel that has a CUDA version.
    """
    by_device: dict[Device, dict[tuple[DType, int], list[Update]]] = {}
    for part, norm in updates:
        groups = by_device.setdefault(device_of(part.value), {})
        groups.setdefault((part.value.dtype, id(norm)), []).append((part, norm))
    for device, groups in by_device.items():
        device.use()
        for group in groups.values():
            (first, norm), parts = group[0], [part for part, _ in group]
            optimizers.update(_kernel(first), parts, None if norm is None else norm.array)
        queue().flush()


def _kernel(part: ParameterSlice) -> str:
    if isinstance(part.rule, Rule):
        return part.rule.kernel.__name__
    raise BackendError(
        f"the optimizer's rule is {part.rule!r}, which a GPU cannot run.\n"
        "  rule: on a GPU it is a Rule(kernel, numbers) of dynbatch.kernels.optimizers\n"
        '  fix:  train on the CPU, model.to("cpu"), or write the kernel in CUDA too'
    )
