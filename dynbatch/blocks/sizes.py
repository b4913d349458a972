"""Sizes of a block's arguments that vary, and the sizes in its program that follow from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Pattern = tuple[int, ...]
"""For each size of the arguments the position of the size that it equals; its own where it is free.

A negative entry -n - 1 stands for the constant n.
"""

Sizes = tuple[int, ...]
"""What `arguments.sizes_of` gives for the arguments of one call."""

SMALL = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
OTHERS = (8, 3, 14, 6, 21, 4, 26, 10, 33, 12, 40, 9)
STEP = 4
MOST_TIED = 4
"""Of so many sizes that equal another one each group is tried on its own."""


def keeps(pattern: Pattern, sizes: Sizes) -> bool:
    """Whether the sizes of a call are tied so."""
    return sizes == tuple([sizes[k] if k >= 0 else -k - 1 for k in pattern])


def free_positions(pattern: Pattern) -> list[int]:
    return [k for k, leader in enumerate(pattern) if leader == k]


def filled(pattern: Pattern, values: Sequence[int]) -> Sizes:
    """All sizes, from the values of the free ones."""
    value_of = dict(zip(free_positions(pattern), values, strict=True))
    return tuple([value_of[leader] if leader >= 0 else -leader - 1 for leader in pattern])


def patterns_to_try(sizes: Sizes, node_sizes: int) -> list[Pattern]:
    """Patterns that these sizes keep to: all free, then equal ones tied, then others constant.

    Args:
        node_sizes: how many of the sizes, the first ones, are those of nodes.
    """
    count = len(sizes)
    tied = [sizes.index(size) for size in sizes]
    alone = [tied.count(leader) == 1 for leader in tied]
    arrays_fixed = [
        -size - 1 if alone[k] and k >= node_sizes else tied[k] for k, size in enumerate(sizes)
    ]
    rows_fixed = [
        -1 - 1 if size == 1 and k < node_sizes else arrays_fixed[k] for k, size in enumerate(sizes)
    ]
    candidates = [tuple(range(count)), tuple(tied), tuple(arrays_fixed), tuple(rows_fixed)]
    return [p for p in dict.fromkeys(candidates) if keeps(p, sizes)]


def looser(pattern: Pattern) -> Iterator[Pattern]:
    """Patterns with one more free size: a constant that varies, or equal ones in two groups."""
    for k, leader in enumerate(pattern):
        if leader < 0:
            yield (*pattern[:k], k, *pattern[k + 1 :])
        if leader == k:
            followers = [other for other in range(k + 1, len(pattern)) if pattern[other] == k]
            for count in range(1, len(followers) + 1):
                for group in itertools.combinations(followers[:MOST_TIED], count):
                    yield tuple([group[0] if n in group else p for n, p in enumerate(pattern)])


class Fit:
    """Integers as affine functions of the free sizes: n = Σ c_k s_k + c.

    Args:
        points: sizes at which the integers are known: first some point, then for each free size
            one that is larger by `STEP` in this size alone, then others to verify with.
    """

    def __init__(self, points: Sequence[Sequence[int]]) -> None:
        self._points = np.array(points, np.int64).reshape(len(points), -1)

    def constant(self, value: int) -> tuple[int, ...]:
        return (*[0] * self._points.shape[1], value)

    def coefficients(self, values: Sequence[int]) -> tuple[int, ...] | None:
        """The c_k, and c at the end; None if no such function gives the values."""
        count = self._points.shape[1]
        observed = np.array(values, np.int64)
        steps = observed[1 : 1 + count] - observed[0]
        if (steps % STEP).any():
            return None
        slopes = steps // STEP
        constant = observed[0] - self._points[0] @ slopes
        if ((self._points @ slopes + constant) != observed).any():
            return None
        return (*slopes.tolist(), int(constant))


def points_for(count: int, base: Sequence[int], others: Sequence[int]) -> list[tuple[int, ...]]:
    """Sizes to trace with, as `Fit` wants them."""
    first = tuple(base[:count])
    moved = [(*first[:k], first[k] + STEP, *first[k + 1 :]) for k in range(count)]
    return [first, *moved, tuple(others[:count])]


def bases(actual: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Sizes to begin with and sizes to verify with: small ones, smaller ones, and near a call's."""
    yield SMALL, OTHERS
    yield range(1, len(actual) + 1), range(len(actual) + 2, 2, -1)
    near = [max(1, size - STEP - k) for k, size in enumerate(actual)]
    yield near, actual


CONTAINERS = list, tuple, dict, range, slice


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A value of the same form, made of `CONTAINERS`, with other leaves."""
    if not isinstance(value, CONTAINERS):
        return change(value)
    if isinstance(value, range | slice):
        ends = [mapped(change, part) for part in (value.start, value.stop, value.step)]
        return type(value)(*ends)
    if isinstance(value, dict):
        return {name: mapped(change, part) for name, part in value.items()}
    parts = [mapped(change, part) for part in value]
    if isinstance(value, list):
        return parts
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a value, in order."""
    leaves: list[Any] = []
    mapped(lambda leaf: leaves.append(leaf) or leaf, value)  # type: ignore[func-returns-value]
    return leaves


def _is_size(leaf: Any) -> bool:
    return isinstance(leaf, int | np.integer) and not isinstance(leaf, bool)


def integers_of(value: Any) -> list[int] | None:
    """The integers that a value is made of, in order; None where it is not made of integers."""
    leaves = leaves_of(value)
    if not all([_is_size(leaf) or leaf is None or isinstance(leaf, bool) for leaf in leaves]):
        return None
    return [int(leaf) for leaf in leaves if _is_size(leaf)]


def with_integers(value: Any, integers: Iterator[int]) -> Any:
    """A value of the same form, made of other integers."""
    return mapped(lambda leaf: next(integers) if _is_size(leaf) else leaf, value)


def skeleton(value: Any) -> Any:
    """A value with every integer replaced by 1: what must be equal for affine integers."""
    return with_integers(value, itertools.repeat(1))
