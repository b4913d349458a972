"""The calls of a region in order of creation, and their names in messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynbatch.backend import Array
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.region import CallRegion
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.region_run import RegionRun
from dynbatch.cells.calls.table import ValueHandle
from dynbatch.kernels.runtime.transfer import to_host


def region_node(step: StepRun) -> RegionNode:
    """The one node of a region's step."""
    (node,) = step.nodes
    assert isinstance(node, RegionNode)
    return node


def calls_of(region: CallRegion) -> list[tuple[int, int, ValueHandle]]:
    """The calls of a region in order of creation: group, row in the group's order, and the call."""
    calls = [
        (number, row, group.table.call(table_row))
        for number, group in enumerate(region.groups)
        for row, table_row in enumerate(group.rows.tolist())
    ]
    return sorted(calls, key=lambda each: each[2].index)


def gradients_of_calls(
    step: StepRun,
) -> Iterator[tuple[int, int, ValueHandle, Array, dict[int, Array]]]:
    """`calls_of` a region that has run back, the last first, each with gradients inside of it.

    They are on the host: of what the call returned, side by side, and of its streams by number.
    """
    run: RegionRun[Any] = step.batch.memo["run"]
    of_groups = [group.gradients() for group in run.groups]
    for number, row, call in reversed(calls_of(run.region)):
        results, arguments = of_groups[number]
        streams = {k: to_host(arguments[k][row]) for k in sorted(arguments)}
        yield number, row, call, to_host(results[row]), streams


def result_names(call: ValueHandle) -> list[str]:
    count = len(call.shapes)
    return ["result"] if count == 1 else [f"result {k}" for k in range(count)]


def calls_text(node: RegionNode) -> str:
    batches = len(node.region.batches)
    return f"{batches} batch{'es' * (batches > 1)} of {node.region.count} {node.label()}"


def argument_name(call: ValueHandle, stream: int) -> str:
    """The name of a call's stream: its argument, and the value's number."""
    names = [
        f"argument {number}" + (f"[{leaf}]" if count > 1 else "")
        for number, count in enumerate(call.origin.forms)
        for leaf in range(count)
    ]
    matrices = call.origin.matrices
    vectors = [name for name, is_matrix in zip(names, matrices, strict=True) if not is_matrix]
    return vectors[stream] if stream < len(vectors) else "a value computed from its memory"
