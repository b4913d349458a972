"""Regular expressions of an adapter's configuration, matched in bounded time.

A configuration is read from folders that nobody has checked, and Python's `re` may take years for
`(a+)+b`. What follows from an expression is here, part by part, the set of all places where a match
may end: of a name with n letters at most n + 1, however many ways lead to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

Places = frozenset[int]

MOST_PARTS = 100_000
"""Parts of an expression, and members of its classes, that are gone through for a name."""

_parse: Callable[[str], Any] = import_module("re._parser").parse  # the one of `re` itself
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip
_EDGES = {
    "AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A", "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B", "AT_END": "$", "AT_END_STRING": r"\Z",
}  # fmt: skip

_LETTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_KNOWN = (
    *_LETTERS, "BRANCH", "SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT", "AT", "ASSERT", "ASSERT_NOT",
)  # fmt: skip


class Unbounded(ValueError):
    """An expression that is not matched part by part, or has too many parts."""


def is_full_match(pattern: str, name: str) -> bool:
    """Whether a regular expression stands for a whole name, as `re.fullmatch` tells it.

    Raises:
        re.error:  it is not an expression.
        Unbounded: it refers back, looks behind or sets flags; or it is too long.
    """
    return len(name) in _Match(name).ends(_parsed(pattern), frozenset((0,)))


@lru_cache(64)
def _parsed(pattern: str) -> Any:
    tree = _parse(pattern)
    if tree.state.flags & ~re.UNICODE:
        raise Unbounded("it sets flags")
    _check(tree)
    return tree


def _check(value: Any) -> None:
    """Raise `Unbounded` if an expression has a part that is not known here, at any depth."""
    for part in value:
        kind, of_part = part
        if str(kind) not in _KNOWN or (str(kind).startswith("ASSERT") and of_part[0] < 0):
            raise Unbounded(f"it has a part of kind {str(kind).lower()}")
        if str(kind) == "SUBPATTERN" and (of_part[1] or of_part[2]):
            raise Unbounded("it sets flags")
        if isinstance(of_part, tuple) and str(kind) not in ("RANGE", "AT"):
            below = of_part[1] if str(kind) == "BRANCH" else [of_part[-1]]
            for each in below:
                _check(each)


class _Match:
    def __init__(self, text: str) -> None:
        self._text = text
        self._left = MOST_PARTS

    def ends(self, parts: Any, places: Places) -> Places:
        """The places where matches of all parts may end that begin at one of some places."""
        for kind, value in parts:
            self._left -= 1
            if self._left < 0:
                raise Unbounded("it has too many parts")
            if not places:
                break
            places = self._after(str(kind), value, places)
        return places

    def _after(self, kind: str, value: Any, places: Places) -> Places:
        if kind in _LETTERS:
            self._left -= len(value) if kind == "IN" else 0
            length = len(self._text)
            return frozenset(
                [k + 1 for k in places if k < length and _has(kind, value, self._text[k])]
            )
        if kind == "BRANCH":
            return frozenset().union(*[self.ends(each, places) for each in value[1]])
        if kind == "SUBPATTERN":
            return self.ends(value[3], places)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, repeated = value
            return self._repeated(int(least), int(most), repeated, places)
        if kind == "AT":
            edge = re.compile(_EDGES[str(value)])
            return frozenset([k for k in places if edge.match(self._text, k)])
        wanted = kind == "ASSERT"
        return frozenset(
            [k for k in places if bool(self.ends(value[1], frozenset((k,)))) == wanted]
        )

    def _repeated(self, least: int, most: int, parts: Any, places: Places) -> Places:
        """Places only grow: after as many rounds as there are letters nothing is new."""
        reached = places if not least else frozenset[int]()
        for count in range(1, min(most, 2 * len(self._text) + 2 + min(least, 1)) + 1):
            following = self.ends(parts, places)
            if count >= least or following == places:
                following -= reached
                reached |= following
            if not following:
                break
            places = following
        return reached


def _has(kind: str, value: Any, letter: str) -> bool:
    """Whether a letter is one of those that a part stands for."""
    if kind == "ANY":
        return letter != "\n"
    if kind == "LITERAL":
        return ord(letter) == int(value)
    if kind == "NOT_LITERAL":
        return ord(letter) != int(value)
    if kind == "RANGE":
        return bool(value[0] <= ord(letter) <= value[1])
    if kind == "CATEGORY":
        return re.match(_CATEGORIES[str(value)], letter) is not None
    is_negated = str(value[0][0]) == "NEGATE"
    members = value[1:] if is_negated else value
    return any([_has(str(each), of, letter) for each, of in members]) != is_negated
