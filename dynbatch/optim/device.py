"""Updates of parameters on a GPU: one launch per dtype, without waiting.

Gradients that were clipped in groups take a launch for each group.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import DType, device_of
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda import optimizers
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import Rule
from dynbatch.optim.blocks import BlockUpdate
from dynbatch.parameter import RowSparse


def run_updates(updates: Sequence[BlockUpdate]) -> None:
    """Start all updates; their arrays are on the GPU, and their rules use one kernel.

    Raises:
        BackendError: the rule does not name a kernel that has a CUDA version.
    """
    groups: dict[tuple[DType, int], list[BlockUpdate]] = {}
    for update in updates:
        groups.setdefault((update.value.dtype, id(update.norm)), []).append(update)
    for group in groups.values():
        parts = [_part(update) for update in group]
        norm = group[0].norm
        optimizers.update(
            group[0].rule.kernel.__name__, parts, None if norm is None else norm.array
        )
    if groups:
        queue().flush()


def _part(update: BlockUpdate) -> optimizers.ParameterSlice:
    rule, gradient = update.rule, update.gradient
    if not isinstance(rule, Rule):
        raise BackendError(
            f"the optimizer's rule is {rule!r}, which a GPU cannot run.\n"
            "  rule: on a GPU it is a Rule(kernel, numbers) of dynbatch.kernels.optimizers\n"
            '  fix:  train on the CPU, model.to("cpu"), or write the kernel in CUDA too'
        )
    rows = gradient.rows if isinstance(gradient, RowSparse) else None
    values = gradient.values if isinstance(gradient, RowSparse) else gradient
    values = device_of(values).xp.ascontiguousarray(values)
    return optimizers.ParameterSlice(
        update.value, values, update.slots, rule.numbers, rows, every_row=not update.touched
    )
