"""Runs Python's cyclic garbage collector more rarely while there are graphs.

A mini-batch makes thousands of nodes that all live until the graph ends, and none of them is part
of a cycle. The collector looks through them again and again, after every 700 new objects: measured,
a fifth of the time that a graph of trees takes to build. Were the threshold restored as soon as a
graph is closed, the collector would look through all of its nodes then: 0.5 ms of a step of trees.
"""

from __future__ import annotations

import gc
from itertools import starmap
from typing import Self, TypeAlias
from weakref import ref

from dynbatch.arguments import size

Threshold: TypeAlias = tuple[int, int, int]

_objects: int | None = 100_000


class _Raised(starmap):  # type: ignore[type-arg]
    """A raised threshold, which is as it was before when this object is gone.

    It holds one call of `gc.set_threshold`, that it makes at its end. Nothing of this is Python: an
    interrupt that comes inside a finalizer of Python is dropped by the interpreter.
    """

    __del__ = starmap.__next__

    @classmethod
    def to(cls, raised: Threshold, before: Threshold) -> Self:
        """Raise the threshold; one that was set meanwhile stays."""
        # As map(…get, now, now): `iter` asks for the threshold when the call is made.
        now = [iter(gc.get_threshold, ()) for _ in range(2)]
        self = cls(gc.set_threshold, map({raised: before}.get, *now))  # type: ignore[arg-type]
        gc.set_threshold(*raised)
        return self


_latest: ref[_Raised] | None = None


def set_gc_threshold(objects: int | None) -> None:
    """Set how many new objects start a garbage collection while there is a graph.

    The threshold holds from `with db.Graph()` on, until the graph and its nodes are gone, as a rule
    at the next mini-batch; afterwards the collector is as it was. A collector that is disabled, has
    a higher threshold, or is given another one meanwhile, is left alone.

    Args:
        objects: a number of objects, by default 100,000; None leaves the collector alone.

    Raises:
        ArgumentError: it is neither an integer of 1 or more nor None.
    """
    global _objects
    _objects = None if objects is None else size("set_gc_threshold", "objects", objects)


def raised() -> object:
    """The raised threshold of all graphs: it lasts as long as anybody has it."""
    # No lock: if another thread comes in between, the threshold is at worst restored too early.
    global _latest
    shared = None if _latest is None else _latest()
    threshold = gc.get_threshold()
    if shared is None and _objects is not None and 0 < threshold[0] < _objects:
        shared = _Raised.to((_objects, *threshold[1:]), threshold)
        _latest = ref(shared)
    return shared
