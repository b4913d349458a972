"""Bytes of parameters and of their gradients, which a plan of the arena leaves out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dynbatch.backend import Array, Device
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import NUMBER_BYTES


def parameter_bytes(steps: Iterable[StepRun]) -> int:
    """Bytes of all parameters that some steps read, each once."""
    read = {p.uid: p for step in steps for p in step.nodes[0].all_parameters()}
    return sum([parameter.nbytes for parameter in read.values()])


def gradient_bytes(steps: Iterable[StepRun], device: Device) -> int:
    """Bytes of the gradients that backward of some steps leaves for parameters that have none.

    Args:
        device: where the parameters are; the numbers of sparse rows stay on the host.
    """
    trained: dict[int, Parameter] = {}
    rows_of: dict[int, list[Array]] = {}
    dense: set[int] = set()
    for step in steps:
        for parameter in step.parameters:
            trained[parameter.uid] = parameter
            rows = step.node_type.gradient_rows(step.batch)
            if rows is None:
                dense.add(parameter.uid)
            else:
                rows_of.setdefault(parameter.uid, []).append(rows)
    total = 0
    for uid, parameter in trained.items():
        if uid in dense:
            total += parameter.nbytes
        else:
            number = 0 if device.is_cuda else NUMBER_BYTES
            a_row = parameter.shape[1] * parameter.dtype.itemsize + number
            total += a_row * _num_trained(parameter, rows_of[uid])
    return total


def _num_trained(parameter: Parameter, rows: list[Array]) -> int:
    """The number of distinct rows that are not frozen."""
    distinct = np.unique(np.concatenate(rows))
    frozen = parameter.row_is_frozen
    return int(distinct.size if frozen is None else np.count_nonzero(~frozen[distinct]))
