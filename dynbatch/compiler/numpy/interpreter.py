"""Runs the calls of a step on the arrays of one shard.

A view of all rows is cut once for a run; of a step its rows are left to take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from dynbatch.compiler.buffers import Columns, Role, array_name
from dynbatch.compiler.numpy.calls import KernelCall
from dynbatch.compiler.numpy.views import CallConstant, ColumnView, cut
from dynbatch.parameter import Array

Step = tuple[int, int, int, int]
Numbered = tuple[int, Step]
RunStep = Callable[[int, Step], None]
"""Runs a step, given its number and its rows."""


class Instructions:
    """Calls whose operands have numbers.

    Args:
        following: where the state lies that a step leaves.
    """

    def __init__(self, calls: Sequence[KernelCall], following: Sequence[Columns]) -> None:
        operands = list(dict.fromkeys([x for call in calls for x in call.operands]))
        views = [x for x in operands if isinstance(x, ColumnView)]
        states = [x for x in views if x.buffer.role is Role.STATE]
        packed = [x for x in views if x.buffer.packed]
        temporary = [x for x in views if not x.buffer.packed and x not in states]
        self._following = following
        self._fixed = [x for x in operands if not isinstance(x, ColumnView) and x not in ("t", "n")]
        self._packed, self._temporary, self._states = map(_by_axis, (packed, temporary, states))
        groups = [*self._packed, *self._temporary, *self._states]
        order = ["t", "n", *self._fixed, *[view for group in groups for view in group]]
        number = {x: k for k, x in enumerate(order)}
        self._calls = [
            (call.function, _picker([number[x] for x in call.operands])) for call in calls
        ]

    def bind(self, arrays: dict[str, Any]) -> RunStep:
        """What runs the calls on these arrays."""
        fixed = [x.value if isinstance(x, CallConstant) else arrays[str(x)] for x in self._fixed]
        packed, packed_planes = _cut(self._packed, arrays)
        temporary, temporary_planes = _cut(self._temporary, arrays)
        initial, left = self._initial_states(arrays), self._left_states(arrays)
        calls = self._calls

        def run(t: int, step: Step) -> None:
            start, end, count, before = step
            rows, first = slice(start, end), slice(count)
            found = first if before < 0 else slice(before, before + count)
            states, state_planes = initial if before < 0 else left
            operands = [
                t, count, *fixed,
                *[array[rows] for array in packed], *[array[:, rows] for array in packed_planes],
                *[array[first] for array in temporary],
                *[array[:, first] for array in temporary_planes],
                *[array[found] for array in states], *[array[:, found] for array in state_planes],
            ]  # fmt: skip
            for function, pick in calls:
                function(*pick(operands))

        return run

    def _initial_states(self, arrays: dict[str, Any]) -> list[list[Array]]:
        names = {x.buffer.name: array_name(Role.INITIAL_STATE, x.buffer.label)
                 for group in self._states for x in group}  # fmt: skip
        return _cut(self._states, {name: arrays[initial] for name, initial in names.items()})

    def _left_states(self, arrays: dict[str, Any]) -> list[list[Array]]:
        """The states as steps leave them, packed."""
        parts = {x.buffer.name: self._following[int(x.buffer.label)]
                 for group in self._states for x in group}  # fmt: skip
        packed = {name: cut(arrays[at.buffer.name], ColumnView(*at)) for name, at in parts.items()}
        return _cut(self._states, packed)


def _by_axis(views: list[ColumnView]) -> tuple[list[ColumnView], list[ColumnView]]:
    """Views of plain rows, and those in planes."""
    return [x for x in views if not x.plane], [x for x in views if x.plane]


def _cut(
    groups: tuple[list[ColumnView], list[ColumnView]], arrays: dict[str, Any]
) -> list[list[Array]]:
    return [[cut(arrays[view.buffer.name], view) for view in group] for group in groups]


def _picker(numbers: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the operands of these numbers."""
    if len(numbers) == 1:
        (number,) = numbers
        return lambda operands: (operands[number],)
    return itemgetter(*numbers)
