"""Operators, brackets and built-in functions of Python on a node.

An operator is a function of `F`, found by its name: those functions make nodes.
"""

# The functions have their types where they are defined; here they are found by name.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynbatch.errors import DtypeError
from dynbatch.nodes.syntax.methods import Methods, N
from dynbatch.nodes.syntax.registry import FUNCTIONS


class OperatorMethods(Methods[N]):
    """Base of `Node`: operators, and errors with the fix where Python asks what no node answers."""

    __slots__ = ()

    def __add__(self, other: object) -> N:
        return FUNCTIONS["add"](self, other)

    __radd__ = __add__

    def __sub__(self, other: object) -> N:
        return FUNCTIONS["subtract"](self, other)

    def __rsub__(self, other: object) -> N:
        return FUNCTIONS["subtract"](other, self)

    def __mul__(self, other: object) -> N:
        return FUNCTIONS["multiply"](self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> N:
        return FUNCTIONS["divide"](self, other)

    def __rtruediv__(self, other: object) -> N:
        return FUNCTIONS["divide"](other, self)

    def __matmul__(self, other: object) -> N:
        return FUNCTIONS["matmul"](self, other)

    def __neg__(self) -> N:
        return FUNCTIONS["negative"](self)

    def __pow__(self, exponent: object) -> N:
        return FUNCTIONS["pow"](self, exponent)

    def __rpow__(self, other: object) -> N:
        return FUNCTIONS["pow"](other, self)

    def __gt__(self, other: object) -> N:
        return FUNCTIONS["greater"](self, other)

    def __ge__(self, other: object) -> N:
        return FUNCTIONS["greater_equal"](self, other)

    def __lt__(self, other: object) -> N:
        return FUNCTIONS["less"](self, other)

    def __le__(self, other: object) -> N:
        return FUNCTIONS["less_equal"](self, other)

    def __getitem__(self, rows: Any) -> N:
        if type(rows) is int and self.ndim == 2 and 0 <= rows < self.rows:
            return FUNCTIONS["row"](self, rows)
        return FUNCTIONS["getitem"](self, rows)

    def __iter__(self) -> Iterator[N]:
        fix = "F.split(x, sizes, dim=0), or [x[t] for t in range(len(x))]; a recurrence is db.scan"
        if self.ndim == 1:
            fix = "F.chunk(x, 2) cuts a vector; the state of an LSTM is a pair (h, c), of a GRU h"
        raise DtypeError.at_caller(f"{self!r} is not iterable.\n  fix:  {fix}")

    def __bool__(self) -> bool:
        raise DtypeError.at_caller(
            f"{self!r} has no truth value: nothing has been computed yet.\n"
            "  fix:  decide on node.value, which runs the graph up to here; an empty sentence is\n"
            "        node.rows == 0; a missing one is None"
        )

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DtypeError.at_caller(
                f"{self!r} is a scalar and has no length.\n"
                "  fix:  F.stack makes a vector of scalars"
            )
        return self.shape[0]
