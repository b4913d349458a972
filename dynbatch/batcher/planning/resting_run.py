"""`RestingRun`: steps and memory plan of a closed graph, for the next graph of the same structure.

Most training steps of a model whose sentences have equal lengths differ in ids alone: batches,
views, places in memory and what runs when are the same. Such a run is planned once. It is kept from
the second time on that its structure comes, by the program of a block among its nodes, since only
calls of that can bring it again.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np

from dynbatch.batcher.planning.run_plan import Request, RunPlan
from dynbatch.batcher.schedule.schedule import numbers_of
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.preparation import PartNodes, Preparation, forget
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.blocks.call import BlockCall, BlockResult
from dynbatch.blocks.operators import STREAM
from dynbatch.blocks.program import BlockProgram
from dynbatch.blocks.resumed_call import ResumedCall
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural
from dynbatch.recent import Recent, free_at_fork

MOST = 4
"""Runs that rest in one program."""

_lock = free_at_fork(threading.Lock())
_seen: Recent[int, bool] = Recent(64)  # hashes of structures


class RunKey(NamedTuple):
    """All that a run's plan follows from, and the program that keeps such runs.

    numbers: `numbers_of` its nodes.
    """

    program: BlockProgram
    numbers: bytes
    known: Hashable


class RestingRun:
    """A planned run without nodes and arrays.

    Args:
        key:  what it follows from.
        plan: of a run that is the only one of its graph.
    """

    def __init__(self, key: RunKey, plan: RunPlan) -> None:
        self.key = key
        self._plan = plan
        self._schedule = plan.preparation.plans[0]
        self._parts = plan.preparation.parts
        self._steps: dict[int, list[StepRun]] = {}
        for step in plan.preparation.steps:
            self._steps.setdefault(step.planned[1], []).append(step)
        steps = plan.preparation.steps
        first: list[Operation] = [step.nodes[0] for step in steps]
        self._parameters = {p.uid: p for node in first for p in node.all_parameters()}
        self._frozen = self._states()
        self.parameters = [*self._parameters.values()]
        self.recording: Any = None  # what the executor remembers of it

    def _states(self) -> list[tuple[bool, bool]]:
        """Whether each parameter is frozen, and whether it has no gradient."""
        return [(p.frozen, p.grad is None) for p in self._parameters.values()]

    def suits(self) -> bool:
        """Whether the parameters are as they were when the run was planned."""
        return self._frozen == self._states()

    def of(self, nodes: Sequence[Operation]) -> RunPlan:
        """The plan, to run these nodes; in case of an error they are as before."""
        preparation = Preparation()
        preparation.nodes, preparation.parts = [*nodes], self._parts
        preparation.plans, preparation.numbers = [self._schedule], [self.key.numbers]
        with preparation:
            for number in [number for stage in self._schedule.stages for number in stage]:
                batch = [nodes[i] for i in self._schedule.steps[number].nodes]
                self._bind(self._steps.get(number, []), batch)
        preparation.scheduled = time.perf_counter()
        return self._plan._replace(preparation=preparation)

    def _bind(self, steps: Sequence[StepRun], batch: Sequence[Operation]) -> None:
        if isinstance(batch[0], BlockResult):
            for node in cast("Sequence[BlockResult]", batch):
                node.take_place()
        elif isinstance(batch[0], BlockCall):
            members = cast(Members, steps[0].nodes).batch
            members.bind(cast("Sequence[BlockCall]", batch))
            for step in steps:
                step.bind(step.nodes)
            members.settle()
        else:
            (step,) = steps
            step.bind(batch)

    def rest(self) -> None:
        """Let go of the nodes that it ran."""
        for step in chain(*self._steps.values()):
            step.rest()
        self._plan = self._plan._replace(preparation=Preparation())

    def forget(self) -> None:
        """Cut the references that lead in circles; it cannot run again."""
        for step in chain(*self._steps.values()):
            forget(step)


def keep(run: RestingRun) -> None:
    """Have a run that rests at hand for the next graph like its own."""
    with _lock:
        resting = run.key.program.resting
        others = [resting.pop(next(iter(resting))) for _ in range(len(resting) + 1 - MOST)]
        resting[run.key.known] = run
    for other in others:
        other.forget()


def take(key: RunKey) -> RestingRun | None:
    """A run that was kept, if there is one, for the caller alone."""
    with _lock:
        run: RestingRun | None = key.program.resting.pop(key.known, None)
    if run is not None and not run.suits():
        run.forget()
        return None
    return run


def key_of(part: PartNodes, request: Request, settings: Hashable) -> RunKey | None:
    """The key of a run; None where it cannot come again, or has come for the first time.

    Args:
        part:     its nodes.
        settings: of the graph and of kernels.
    """
    nodes, roots = part
    call = next((node for node in nodes if isinstance(node, BlockCall)), None)
    if call is None:
        return None
    numbers = numbers_of(nodes, roots)
    sizes = array("q", [size for node in nodes for size in (node.rows, node.width)]).tobytes()
    kept = tuple([node.index for node in request.kept])
    begin = settings, numbers, sizes, kept
    if _seen.find(hash(begin)) is None:
        _seen.enter(hash(begin), True)
        return None
    try:
        known = (*begin, *[_known(node) for node in nodes])
        hash(known)
    except (NotAlike, TypeError):  # an attribute that has no hash
        return None
    return RunKey(call.program, numbers, known)


class NotAlike(Exception):
    """A node whose run may follow from what no key tells."""


def _known(node: Operation) -> Hashable:
    """Key of all that a node's steps and places follow from, beside signature, inputs and size."""
    kind = type(node)
    if not kind.is_built_in and not isinstance(node, BlockCall):
        raise NotAlike
    if isinstance(node, RegionNode | ResumedCall):
        raise NotAlike
    if isinstance(node, BlockCall):
        if node.program.follows_arrays:
            raise NotAlike
        told = node.told
        of_arrays = [tuple(map(_form, values)) for values in told.given]
        of_operators = [(at, _form(value)) for at, value in told.values.items()]
        return node.free, tuple(of_arrays), tuple(of_operators), tuple(told.sizes.items())
    values = _attributes_of(cast(Hashable, kind))
    content = issubclass(kind, Structural)
    return tuple([_form(value, content) for value in values(node)])


@cache
def _attributes_of(kind: type[Operation]) -> Callable[[Operation], Sequence[Any]]:
    names = sorted(kind._attribute_names() - {STREAM})
    if len(names) < 2:
        return lambda node: [getattr(node, name, None) for name in names]
    return cast(Callable[[Operation], Sequence[Any]], attrgetter(*names))


def _form(value: Any, content: bool = False) -> Hashable:
    """A value, or the shape and dtype of an array, with all of a mask or if its content matters."""
    if isinstance(value, np.ndarray):
        char = value.dtype.char
        return value.shape, char, value.tobytes() if content or char == "?" else b""
    if isinstance(value, tuple | list):
        return tuple([_form(each, content) for each in value])
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    return value.index if isinstance(value, Node) else value
