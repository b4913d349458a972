"""`RunPlanner`: plans a whole run from a request, memory included.

Without a limit a run is one part. With one, the cheapest way found that fits: the mini-batch as a
whole, with forwards that run again in backward (`recompute_search`); if that is not enough in 2
parts, in 4, and so on down to single sentences, whose gradients add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dynbatch.batcher.planning.memory_plan import MemoryPlan, plan_memory
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.batcher.planning.recompute_search import FAR, Candidate, RecomputeSearch
from dynbatch.batcher.planning.stages import StepGraph, stage_label
from dynbatch.batcher.steps.preparation import PartNodes, Preparation
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.blocks.call import BlockCall
from dynbatch.errors import MemoryLimitError, NoGradientError
from dynbatch.nodes.node import Node


@dataclass(frozen=True)
class Request:
    """The request for a run.

    Args:
        parts: what to compute, in so many parts, the last of which reads the others. One may depend
            on those before it having been taken.
        loss:  backward starts here, or None.
        kept:  their values and gradients outlive the run.
        limit: bytes of all arenas, or None.
        ends:  what the loss is made of; see `require_gradients`.
        graph_nodes: makes a list of all of the graph, needed or not.
        micro_batches: how many there can be, why not more, and which sentence is the largest, for
            errors; asked for only where it matters.
        staying: of a run that no backward follows, further nodes whose values outlive it; those of
            others are freed after their last reader.
    """

    parts: Callable[[int], Iterable[PartNodes]]
    loss: Node | None = None
    kept: Sequence[Node] = ()
    limit: int | None = None
    ends: Sequence[Node] = ()
    graph_nodes: Callable[[], Sequence[Node]] = tuple
    micro_batches: Callable[[], tuple[int, str, int]] = lambda: (1, "", 0)
    staying: Sequence[Node] = ()


class RunPlan(NamedTuple):
    """The plan of a run; `saving` says how it needs less memory, for `limit` bytes at most.

    `recompute_share` is the cost of what is recomputed, as a share of that of forward.
    """

    preparation: Preparation
    memory: MemoryPlan
    saving: str
    limit: int | None
    recompute_share: float = 0.0

    def use(self, itemsize: int, held_bytes: int) -> Callable[[], MemoryUse]:
        """The memory use of the run, added up on demand; it keeps no step alive.

        Args:
            itemsize:   bytes of an element.
            held_bytes: arenas of earlier runs.
        """
        memory = self.memory
        distinct = sum([block.size for block in memory.blocks if not block.is_form])
        return partial(
            MemoryUse.of,
            [*memory.intervals, *memory.scratch],
            [
                (stage_label(stage, memory.graph), [s.node_type for s in stage.steps])
                for stage in memory.stages
            ],
            itemsize,
            held_bytes=held_bytes,
            arena_bytes=(memory.elements + memory.scratch_elements) * itemsize,
            tables_bytes=self._tables_bytes(),
            blocks_bytes=held_bytes + distinct * itemsize,
            saving=self.saving,
            limit=self.limit,
            recompute_share=self.recompute_share,
        )

    def _tables_bytes(self) -> int:
        """Bytes of index tables on the host; those of a GPU are counted as they are uploaded."""
        steps = [step for step in self.preparation.steps if not step.batch.device.is_cuda]
        return sum([step.node_type.index_bytes(step.batch) for step in steps])


Prepare = Callable[[int], Preparation]


class RunPlanner:
    """Plans the runs of one graph.

    Args:
        trains:   whether a backward may follow a run.
        itemsize: bytes of an element.
        in_place: whether kernels may write over what they read for the last time.
        rounds:   whether values are rounded to bfloat16.
    """

    def __init__(self, trains: bool, itemsize: int, in_place: bool, rounds: bool = False) -> None:
        self._trains = trains
        self._itemsize = itemsize
        self._in_place = in_place
        self._rounds = rounds

    def plan(
        self, prepare: Prepare, request: Request, past: Sequence[StepRun], held: int
    ) -> RunPlan:
        """Plan all of a run but its arena.

        Args:
            prepare: puts what is asked for into batches, in so many parts.
            past:    steps that ran before in this graph, in order.
            held:    bytes of their arenas.

        Raises:
            MemoryLimitError: nothing found fits the limit; it says the least that would.
        """
        if request.limit is not None:
            return self._plan_within(prepare, request, past, held)
        with prepare(1) as preparation:
            graph = self._graph(preparation, request, past)
            return RunPlan(preparation, plan_memory(graph, in_place=self._in_place), "", None)

    def _plan_within(
        self, prepare: Prepare, request: Request, past: Sequence[StepRun], held: int
    ) -> RunPlan:
        """The cheapest plan that fits: in one part, in 2, in 4, and so on.

        At first only where it seems possible; if nothing is found, then whatever was left out.
        """
        assert request.limit is not None
        room = (request.limit - held) // self._itemsize
        left_out: list[int] = []
        least: dict[int, int] = {}  # elements, by the number of parts
        floor = 0

        def search(count: int, fit: Fit) -> RunPlan | RecomputeSearch:
            """The run in so many parts, or what found none that fits."""
            with prepare(count) as preparation:
                graph = self._graph(preparation, request, past)
                search = RecomputeSearch(graph, preparation.by_part, self._in_place, room)
                candidate = fit(search)
            if candidate is None:
                preparation.forget()
                return search
            split = f"{count} micro-batches" if count > 1 else ""
            saving = "; ".join(filter(None, [split, str(candidate)]))
            forward = sum([s.node_type.operations(s.batch) for s in preparation.steps])
            again = sum([option.cost for option in candidate.options])
            share = again / forward if forward else 0.0
            return RunPlan(preparation, candidate.plan, saving, request.limit, share)

        # A search takes long and rarely helps where the smallest peak is far above the limit: such
        # counts of parts wait until all others have failed.
        for thorough in (False, True):
            for count in tuple(left_out) if thorough else _counts(request.micro_batches):
                if not thorough and floor > FAR * room * count:
                    left_out.append(count)
                    continue
                is_last = thorough or request.micro_batches()[0] == 1
                run = search(count, partial(RecomputeSearch.fit, thorough=is_last))
                if isinstance(run, RunPlan):
                    return run
                floor = floor or run.floor
                if not is_last and run.floor > FAR * room:
                    left_out.append(count)
                else:
                    least[count] = run.smallest.plan.placed().elements
        # What an error would call the least is looked for once more, and longer.
        for count in [n for n, size in least.items() if size <= FAR * min(least.values())]:
            run = search(count, RecomputeSearch.fit_by_descent)
            if isinstance(run, RunPlan):
                return run
            least[count] = run.smallest.elements
        raise _too_low(request, held + min(least.values()) * self._itemsize, held)

    def _graph(
        self, preparation: Preparation, request: Request, past: Sequence[StepRun]
    ) -> StepGraph:
        loss = None if request.loss is None else request.loss._block
        kept = [node._block for node in request.kept if node._block is not None]
        staying = [node for node in request.staying if node._block is not None]
        kept += [node._block.base for node in staying]
        # Further results of a call may wait for a later run to be asked for.
        calls = [node for node in staying if isinstance(node, BlockCall)]
        kept += [result.block.base for call in calls for result in call.places]
        parts = preparation.parts_in_order
        return StepGraph(parts, past, loss, self._trains, kept, self._rounds)


Fit = Callable[[RecomputeSearch], Candidate | None]


def _counts(most_of: Callable[[], tuple[int, str, int]]) -> Iterator[int]:
    """1, 2, 4, … and finally the largest possible number, which is computed only then."""
    yield 1
    most, *_ = most_of()
    count = 2
    while count < most:
        yield count
        count *= 2
    if most > 1:
        yield most


def _too_low(request: Request, least: int, held: int) -> MemoryLimitError:
    most, whole, sentence = request.micro_batches()
    largest = f", sentence {sentence} the largest of them" if most > 1 else ""
    kept = f", {held:,} of them held by earlier runs of the graph" if held else ""
    rule = f"\n  rule: the mini-batch cannot be split: {whole}" if whole else ""
    return MemoryLimitError(
        f"memory_limit is {request.limit:,} bytes, and this graph needs {least:,} at the "
        f"least{kept}: everything possible is freed and recomputed, in up to {most} "
        f"micro-batch{'es' * (most > 1)}{largest}.{rule}\n"
        f"  fix:  memory_limit={least} or more, or shorter sentences",
        least,
    )


def _leads_to_gradient(request: Request) -> bool:
    """Whether one of `request.ends` itself does, and not only others that share their batches."""
    seen = {node.index for node in request.ends}
    kept = {node.index for node in request.kept} - seen
    stack = [*request.ends]
    while stack:
        node = stack.pop()
        if node.index in kept:
            return True
        if not getattr(node, "differentiable", True):
            continue
        if any([not parameter.frozen for parameter in node.all_parameters()]):
            return True
        for x in node.inputs:
            if x.index not in seen:
                seen.add(x.index)
                stack.append(x)
    return False


def require_gradients(request: Request, graph: StepGraph) -> None:
    """Raise `NoGradientError` unless one of `request.ends` leads to a parameter or to a kept node.

    Args:
        graph: the steps of the run and of those before it.
    """
    if not request.ends:
        return
    blocks = {node._block for node in request.ends}
    steps = [*graph.past, *graph.new]
    makers = [step for step in steps if not blocks.isdisjoint(step.blocks)]
    reaches_one = any([step.parameters or graph.needs_gradient(step) for step in makers])
    if reaches_one and _leads_to_gradient(request):
        return
    read = {p.uid: p for node in request.graph_nodes() for p in node.all_parameters()}
    why = ""
    if all([parameter.frozen for parameter in read.values()]):
        why = "; every parameter that the graph reads is frozen"
    if not read:
        why = "; the graph reads no parameter"
    raise NoGradientError(
        f"backward: {request.ends[0].label()} depends on no parameter that is trained, and on no "
        f"kept node{why}.\n"
        "  rule: gradients are computed for parameters and for kept nodes\n"
        "  fix:  compute the loss from nodes that read parameters: node.value and F.input\n"
        "        cut the graph; keep() a node before backward to get its gradient"
    )
