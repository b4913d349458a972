"""`RunPlanner`: from what is asked for to a plan of the whole run, bytes included.

Without a limit a run is one part. With one, the cheapest way found that fits: the mini-batch as a
whole, with forwards that run again in backward (`fitting`); if that is not enough in 2 parts, in 4,
and so on down to single sentences, whose gradients add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dynbatch.backend import Device, DType
from dynbatch.batcher.planning.memory_plan import MemoryPlan, plan_memory
from dynbatch.batcher.planning.preparation import Preparation
from dynbatch.batcher.planning.recompute_search import FAR, Candidate, RecomputeSearch
from dynbatch.batcher.planning.stages import StepGraph
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.schedule.schedule import schedule
from dynbatch.batcher.steps.alias import AliasStep, are_aliases
from dynbatch.batcher.steps.step import StepRun
from dynbatch.errors import MemoryLimitError
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation


@dataclass(frozen=True)
class Request:
    """What a run is asked for.

    Args:
        nodes: what to compute, in so many parts: lists of nodes in a topological order, the last of
            which reads the others. A list may depend on the lists before it having been taken.
        loss:  backward starts here, or None.
        kept:  their values and gradients outlive the run.
        limit: bytes of all arenas, or None.
        ends:  what the loss is made of: one of these must lead to a gradient (see `reach`).
        graph_nodes: all of the graph, needed or not.
        micro_batches: how many there can be, and why not more, for errors; asked for only where it
            matters.
    """

    nodes: Callable[[int], Iterable[Sequence[Operation]]]
    loss: Node | None = None
    kept: Sequence[Node] = ()
    limit: int | None = None
    ends: Sequence[Node] = ()
    graph_nodes: Sequence[Node] = ()
    micro_batches: Callable[[], tuple[int, str]] = lambda: (1, "")


class RunPlan(NamedTuple):
    """A run, before its first kernel.

    Args:
        scheduled: when its batches were known, by perf_counter.
        saving:    what it does to hold less, as text.
    """

    preparation: Preparation
    memory: MemoryPlan
    scheduled: float
    saving: str


class RunPlanner:
    """Plans the runs of one graph.

    Args:
        device:   where the runs are.
        dtype:    of all values.
        policy:   a name of `policies.POLICIES`, or a function.
        trains:   whether a backward may follow a run.
        in_place: whether kernels may write over what they read for the last time.
    """

    def __init__(
        self, device: Device, dtype: DType, policy: str | Policy, trains: bool, in_place: bool
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._policy = policy
        self._trains = trains
        self._in_place = in_place
        self._stages = 0

    def plan(self, request: Request, past: Sequence[StepRun], held: int) -> RunPlan:
        """All of a run but its arena. Nodes know their blocks afterwards, or `forget` it.

        Args:
            past: steps that ran before in this graph, in order.
            held: bytes of their arenas.

        Raises:
            MemoryLimitError: nothing found fits the limit; it says the least that would.
        """
        preparation = Preparation()
        try:
            if request.limit is not None:
                return self._plan_within(preparation, request, past, held)
            scheduled = self._prepare(preparation, request, 1)
            graph = self._graph(preparation, request, past)
            memory = plan_memory(graph, in_place=self._in_place)
            return RunPlan(preparation, memory, scheduled, "")
        except BaseException:
            preparation.forget()
            raise

    def _plan_within(
        self, preparation: Preparation, request: Request, past: Sequence[StepRun], held: int
    ) -> RunPlan:
        """The cheapest plan that fits: in one part, in 2, in 4, and so on.

        At first only where it seems possible; if nothing is found, then whatever was left out.
        """
        assert request.limit is not None
        room = (request.limit - held) // self._dtype.itemsize
        left_out: list[int] = []
        smallest: list[MemoryPlan] = []
        floor = 0
        for thorough in (False, True):
            for count in tuple(left_out) if thorough else _counts(request.micro_batches):
                if not thorough and floor > FAR * room * count:
                    left_out.append(count)
                    continue
                preparation.forget()
                scheduled = self._prepare(preparation, request, count)
                graph = self._graph(preparation, request, past)
                search = RecomputeSearch(graph, preparation.by_part, self._in_place, room)
                found = search.fit()
                floor = floor or (search.floor if found is None else 0)
                is_far = found is None and search.floor > FAR * room
                if is_far and (thorough or request.micro_batches()[0] == 1):
                    found, is_far = search.fit_thoroughly(), False
                if found is not None:
                    return RunPlan(preparation, found.plan, scheduled, _saving_text(found, count))
                if is_far:
                    left_out.append(count)
                else:
                    smallest.append(search.smallest.plan)
        least = min([plan.placed().elements for plan in smallest])
        raise _too_low(request, held + least * self._dtype.itemsize, held)

    def _graph(
        self, preparation: Preparation, request: Request, past: Sequence[StepRun]
    ) -> StepGraph:
        loss = None if request.loss is None else request.loss._block
        kept = [node._block for node in request.kept if node._block is not None]
        return StepGraph(preparation.parts_in_order, past, loss, self._trains, kept)

    def _prepare(self, preparation: Preparation, request: Request, count: int) -> float:
        kept = {node.index for node in request.kept}
        for nodes in request.nodes(count):
            preparation.nodes += nodes
            if nodes:
                plan = schedule(nodes, self._policy)
                if preparation.plans:
                    plan = replace(plan, part=len(preparation.plans))
                preparation.plans.append(plan)
                runs = []
                begin = time.perf_counter()
                for step in plan.steps:
                    members = [nodes[i] for i in step.nodes]
                    run = (
                        AliasStep(members)
                        if are_aliases(members, kept)
                        else StepRun(members, self._dtype, self._device.xp)
                    )
                    runs.append(run)
                    end = time.perf_counter()
                    run.prepare_seconds, begin = end - begin, end
                preparation.parts.append([[runs[i] for i in stage] for stage in plan.stages])
            else:
                preparation.parts.append([])
            for stage in preparation.parts[-1]:
                for run in stage:
                    run.stage = self._stages
                self._stages += 1
        return time.perf_counter()


def _counts(most_of: Callable[[], tuple[int, str]]) -> Iterator[int]:
    """1, 2, 4, … and at last as many as there can be, which is asked for only then."""
    yield 1
    most, _ = most_of()
    count = 2
    while count < most:
        yield count
        count *= 2
    if most > 1:
        yield most


def _saving_text(fit: Candidate, count: int) -> str:
    split = f"{count} micro-batches" if count > 1 else ""
    return "; ".join([text for text in (split, str(fit)) if text])


def _too_low(request: Request, least: int, held: int) -> MemoryLimitError:
    most, whole = request.micro_batches()
    kept = f", {held:,} of them held by earlier runs of the graph" if held else ""
    rule = f"\n  rule: the mini-batch cannot be split: {whole}" if whole else ""
    return MemoryLimitError(
        f"backward: memory_limit is {request.limit:,} bytes, and this graph needs {least:,} at the "
        f"least{kept}: all that can be is freed and recomputed, in up to {most} "
        f"micro-batch{'es' * (most > 1)}.{rule}\n"
        f"  fix:  memory_limit={least} or more, or shorter sentences",
        least,
    )
