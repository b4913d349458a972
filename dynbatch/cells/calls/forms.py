"""Forms: the widths and structure of a cell's arguments and results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dynbatch.nodes.node import Node

_form_ids = itertools.count(1)

NodeTree: TypeAlias = "Node | tuple[NodeTree, ...]"
"""A node, or a nested tuple of nodes."""

NO_FORM = -1
"""The form id of a node that is not a call's argument; see `table.ValueHandle`."""


Returned = TypeVar("Returned")
"""What a user's function returns, and so what a call of its cell gives: nodes, tuples of nodes."""

CellFunction: TypeAlias = Callable[..., Any]
"""A user's function of nodes, tuples of nodes and parameters."""


@dataclass(frozen=True)
class MatrixForm:
    """The form of a matrix of any number of rows."""

    width: int


Form: TypeAlias = "int | MatrixForm | tuple[Form, ...]"
"""A vector's width, 0 for a scalar, a `MatrixForm`, or a tuple of forms."""

ResultForm: TypeAlias = "int | tuple[ResultForm, ...]"
"""The form of a cell's result, without matrices."""


def leaves(value: Any) -> list[Any]:
    """The parts of a form, or of a value, that are not tuples, in order."""
    if not isinstance(value, tuple):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def build(form: Form, values: Iterator[Node]) -> NodeTree:
    """The values, one for each leaf, in the structure of the form."""
    if not isinstance(form, tuple):
        return next(values)
    return tuple(
        [build(part, values) if isinstance(part, tuple) else next(values) for part in form]
    )


class FormIds(dict[Form, int]):
    """Integers for the forms of one graph, equal for equal forms and unique among graphs."""

    def __missing__(self, form: Form) -> int:
        form_id = self[form] = next(_form_ids)
        return form_id


class PartSlot(NamedTuple):
    """A part of a returned tuple: its first leaf, the integer of its form, and the form.

    `table.ValueHandle` tells of these; the form itself is there if the part is a tuple.
    """

    first: int
    form_id: int
    form: tuple[ResultForm, ...] | None


def part_slots(form: tuple[ResultForm, ...], first: int, form_ids: FormIds) -> list[PartSlot]:
    slots = []
    for part in form:
        slots.append(PartSlot(first, form_ids[part], part if isinstance(part, tuple) else None))
        first += len(leaves(part))
    return slots
