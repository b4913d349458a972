"""Names of a family's parameters beside those in its checkpoints: one table to read and to write.

A key is the name of one of our parameters, a value says where it is in the file. In both, `*`
stands for a number, the same on both sides, and `{}` for weight or bias:

    {"layers.*.self_attn.in_proj_{}": joined("h.*.attn.q.{}", "h.*.attn.k.{}", "h.*.attn.v.{}"),
     "layers.*.linear1.{}": "h.*.mlp.c_fc.{}"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ArgumentError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """The entry of a parameter in a file.

    Args:
        names:      of its tensors there; the rows of several stand one below the other in ours.
        rows:       of each of several; equal numbers by default.
        transposed: matrices are stored (in, out), as GPT-2's; vectors as they are.
        as_row:     a vector (D,) is stored (1, D).
        shift:      ours is the stored number and this one: scales of norms are stored less 1.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] | None = None
    transposed: bool = False
    as_row: bool = False
    shift: float = 0.0

    def parts(self, array: Array) -> list[Array]:
        """Views of the parameter's array, in the form of each tensor of the file."""
        ends = np.cumsum(self._rows(len(array)))
        parts = np.split(array, ends[:-1]) if len(self.names) > 1 else [array]
        if self.transposed:
            parts = [part.T for part in parts]
        return [part[None] for part in parts] if self.as_row else parts

    def whole(self, tensor: Array) -> Array:
        """The parameter's array, a view of its only tensor."""
        tensor = tensor[0] if self.as_row else tensor
        return tensor.T if self.transposed else tensor

    def shapes(self, shape: Shape) -> list[Shape]:
        """The shapes of the file's tensors for a parameter's."""
        parts = [(rows, *shape[1:]) for rows in self._rows(shape[0])]
        if self.transposed:
            parts = [part[::-1] for part in parts]
        return [(1, *part) for part in parts] if self.as_row else parts

    def _rows(self, total: int) -> tuple[int, ...]:
        rows = self.rows or (total // len(self.names),) * len(self.names)
        if sum(rows) != total:
            raise ArgumentError(f"{self.names}: rows {rows} for a parameter of {total} rows")
        return rows


Table = Mapping[str, str | Stored]


def joined(*names: str, rows: tuple[int, ...] | None = None) -> Stored:
    """A parameter whose rows are those of several tensors, one below the other."""
    return Stored(names, rows)


def transposed(name: str) -> Stored:
    """A parameter whose matrix is stored (in, out)."""
    return Stored((name,), transposed=True)


def as_row(name: str) -> Stored:
    """A vector (D,) that is stored (1, D)."""
    return Stored((name,), as_row=True)


def less_one(name: str) -> Stored:
    """A scale that is stored as its difference from 1."""
    return Stored((name,), shift=1.0)


def find(table: Table, name: str) -> Stored:
    """The entry of one of our parameters, its names filled in.

    Raises:
        ArgumentError: the table has none.
    """
    for pattern, value in table.items():
        if match := _expression(pattern).fullmatch(name):
            stored = Stored((value,)) if isinstance(value, str) else value
            return replace(stored, names=tuple([_filled(n, match.groups()) for n in stored.names]))
    raise ArgumentError(f"the table of names has no entry for the parameter {name!r}")


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a name is one of those meant; `**` at the end stands for any rest."""
    return any([_expression(pattern).fullmatch(name) for pattern in patterns])


def pattern_of(name: str) -> str:
    """The pattern for a parameter and those like it, in other layers and of its module.

    Example:
        >>> pattern_of("encoder.layers.3.norm1.bias")
        'encoder.layers.*.norm1.{}'
    """
    return re.sub(r"(?<=\.)(weight|bias)$", "{}", re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*\*", "(?s:.*)").replace(r"\*", "([0-9]+)")
    return re.compile(escaped.replace(r"\{\}", "(weight|bias)"))


def _filled(pattern: str, groups: tuple[str, ...]) -> str:
    parts = iter(groups)
    return re.sub(r"\*|\{\}", lambda place: next(parts), pattern)
