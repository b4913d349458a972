"""Runs Python's cyclic garbage collector more rarely while there are graphs.

A mini-batch makes thousands of nodes that all live until the graph ends, and none of them is part
of a cycle. The collector looks through them again and again, after every 700 new objects: measured,
a fifth of the time that a graph of trees takes to build. Were the threshold restored as soon as a
graph is closed, the collector would look through all of its nodes then: 0.5 ms of a step of trees.
"""

from __future__ import annotations

import gc
import weakref

from dynbatch.arguments import size

_objects: int | None = 100_000
_alive: list[None] = []  # an entry for each graph that was opened and lives
_before: tuple[int, int, int] | None = None
_raised = 0


def set_gc_threshold(objects: int | None) -> None:
    """How many new objects start a garbage collection while there is a graph.

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


def enter(graph: object) -> None:
    """Raise the threshold when the first graph opens."""
    # No lock, since a collection, and `_leave` with it, may come anywhere. If another thread comes
    # in between, the threshold is at worst restored too early.
    global _before, _raised
    _alive.append(None)
    weakref.finalize(graph, _leave).atexit = False
    threshold = gc.get_threshold()
    if _before is None and _objects is not None and 0 < threshold[0] < _objects:
        _before, _raised = threshold, _objects
        gc.set_threshold(_objects, *threshold[1:])


def _leave() -> None:
    """A graph ends; with the last one the collector is as it was."""
    global _before
    _alive.pop()
    if not _alive and _before is not None:
        before, _before = _before, None
        if gc.get_threshold() == (_raised, *before[1:]):
            gc.set_threshold(*before)
