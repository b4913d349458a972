"""`RunRecord`: the data of reports, which outlives a graph's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.execution.record import GraphStatistics, RunTimes, seconds_between
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.step_run import Span, StepRun
from dynbatch.blocks.call import BlockResult
from dynbatch.cells.calls.call import ResultPart
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.scan.scan import Scan
from dynbatch.compiler.compiled import CompiledLoop
from dynbatch.kernels.runtime.compiling import seconds_compiling
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.kernels.runtime.workers import ThreadSpan
from dynbatch.nodes.flops import NO_FLOPS, BatchSizes, Flops
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.signature import without_reach
from dynbatch.parameter import Parameter
from dynbatch.reporting.padded_rows import TYPES, padded_rows
from dynbatch.reporting.whole import joined_signature, structure_of_runs

Names = dict[int, tuple[str, tuple[int, ...]]]
"""Name and shape of parameters by uid."""


class Known(NamedTuple):
    """Parameters' names, and the parameters that each signature reads."""

    names: Names
    owned: dict[int, Names]


class StepRecord(NamedTuple):
    """One batch step in the table; `width` is 0 where the nodes' widths differ.

    `planned` is the number of its plan, and of its batch there. An operator of a block names it.

    A region of calls has `batches` of its own: `inside` are cell and number of calls of each, and
    `depths` of each table of calls its number and the least and greatest depth.
    `loops` are its compiled cells, and `on_device` whether they run on a GPU.

    `padded_rows` are those at the ends of sentences that look like padding, of what is given.

    `bytes` are those of the values and parameters that forward reads, and of those that it writes.
    `products` are the names of what multiplies, the type or operators of its loops, each with
    whether the factors are two values.
    `node_names` are the names that were given to its nodes, in their order.
    """

    kind: str
    signature: int
    planned: tuple[int, int]
    nodes: int
    rows: int
    width: int
    copied_bytes: int
    launches: int
    prepare_seconds: float
    spans: Sequence[Span]
    parameters: Names
    batches: int
    lower_bound: int
    inside: Sequence[tuple[str, int]]
    depths: Sequence[tuple[int, int, int]]
    loops: Sequence[CompiledLoop]
    on_device: bool
    flops: Flops
    flops_backward: Flops
    padded_rows: int
    bytes: int
    products: Sequence[tuple[str, bool]]
    node_names: Sequence[str]

    @property
    def remarks(self) -> str:
        """The operators that the compiled cells go without."""
        texts = [str(loop.simplified) for loop in self.loops]
        return "; ".join(dict.fromkeys(filter(None, texts)))

    @property
    def batches_text(self) -> str:
        """The batches of a region of calls, as "3 batches (lower bound 3)"."""
        if not self.inside:
            return ""
        return f"{self.batches} batch{'es' * (self.batches > 1)} (lower bound {self.lower_bound})"

    @property
    def seconds(self) -> float:
        return sum([seconds_between(a, b) for what, a, b in self.spans if what == "forward"])

    @property
    def seconds_backward(self) -> float:
        """Seconds of backward, and of adding up its gradients, without those of compiling."""
        return sum([seconds_between(a, b) for what, a, b in self.spans if what != "forward"])


class RunRecord(NamedTuple):
    """The data of reports. It outlives the graph's nodes.

    `begin` is when the graph was made. Where `is_cuda`, times are those of the host, which makes
    the launches and does not wait for the GPU. `threads` are what they did in work that was shared;
    None if nobody asked (`Graph(profile=True)`). `matmul` is what factors of products with weights
    are rounded to, `precision` what values are.
    """

    statistics: GraphStatistics
    plans: Sequence[Plan]
    numbers: Sequence[bytes]
    rows: Sequence[StepRecord]
    runs: Sequence[RunTimes]
    begin: float
    is_cuda: bool
    threads: Sequence[ThreadSpan] | None = None
    matmul: str = FULL
    precision: str = FULL

    def rows_with(self, signatures: Iterable[int]) -> list[StepRecord]:
        """The rows of nodes that have these signatures in plans."""
        those = set(map(without_reach, signatures))
        return [row for row in self.rows if row.signature in those]

    @property
    def known(self) -> Known:
        """The parameters that the signatures of all batches stand for."""
        return Known(
            {uid: name for row in self.rows for uid, name in row.parameters.items()},
            {row.signature: row.parameters for row in self.rows},
        )

    @property
    def row_numbers(self) -> list[int | None]:
        """The first row of each batch of all plans; None for a batch that has none."""
        first: dict[tuple[int, int], int] = {}
        for number, row in enumerate(self.rows):
            first.setdefault(row.planned, number)
        return [
            first.get((run, number))
            for run, plan in enumerate(self.plans)
            for number in range(len(plan.steps))
        ]

    @property
    def lower_bound(self) -> int:
        """The fewest batches possible, had all nodes run at once, in one part, without early reads.

        Per signature, the batches that one of its batches makes (those of a block's operators, or
        of a region's calls) times its longest chain.
        """
        made: dict[tuple[int, int], int] = {}  # by plan and batch there; none of what only names
        for row in self.rows:
            made[row.planned] = made.get(row.planned, 1) + row.lower_bound - 1
        most: dict[int, int] = {}
        for (run, number), batches in made.items():
            signature = self.plans[run].steps[number].signature
            if len(self.plans) > 1:
                signature = without_reach(signature)
            most[signature] = max(most.get(signature, 0), batches)
        if len(self.plans) == 1:
            chains = self.plans[0].longest_chains
        else:
            chains = structure_of_runs(self.numbers).longest_chains()
            most |= self._batches_of_phases()
        return sum([chain * most.get(signature, 0) for signature, chain in chains.items()])

    def _batches_of_phases(self) -> dict[int, int]:
        """The fewest batches of all calls of each phase, by the signature that joins them."""
        runs: dict[tuple[int, int], int] = {}
        depths: dict[tuple[int, int], set[int]] = {}
        for row in self.rows:
            if row.inside:
                joined = joined_signature(row.signature)
                run = joined, row.planned[0]
                runs[run] = runs.get(run, 0) + row.lower_bound
                for table, least, most in row.depths:
                    depths.setdefault((joined, table), set()).update(range(least, most + 1))
        by_chain: Counter[int] = Counter()
        for (joined, _), of_table in depths.items():
            by_chain[joined] += len(of_table)
        for (joined, _), batches in runs.items():
            by_chain[joined] = max(by_chain[joined], batches)
        return by_chain

    @property
    def host_share(self) -> float:
        """The share, 0 to 1, of the runs' time without a batch: planning, placing, finishing."""
        spent = self.statistics.host_seconds + self.statistics.kernel_seconds
        return self.statistics.host_seconds / spent if spent else 0.0

    @property
    def mean_batch(self) -> float:
        """The mean number of nodes per batch."""
        return self.statistics.nodes / max(1, self.statistics.batches)

    @property
    def build_seconds(self) -> float:
        """Seconds from the graph's beginning to its first run: the user's code and making nodes."""
        return seconds_between(self.begin, self.runs[0].begin) if self.runs else 0.0

    @property
    def compile_seconds(self) -> float:
        """Compiling and loading, from making the graph to its last run: in no other time."""
        return seconds_compiling(self.begin, self.runs[-1].end) if self.runs else 0.0


def record_of(executor: Executor, built_from: float) -> RunRecord:
    """The record of all runs; `built_from` is the time when the graph was made."""
    return RunRecord(
        executor.statistics,
        executor.plans,
        executor.numbers,
        executor.rows(),
        executor.times,
        built_from,
        executor.device.is_cuda,
        executor.threads,
        executor.matmul,
        executor.precision,
    )


def rows_of(steps: Sequence[StepRun]) -> list[StepRecord]:
    user_names: dict[int, list[str]] = {}
    graph: Any = steps[0].nodes[0].graph if steps else None
    for index, name in graph.names.items() if steps else ():
        node = graph.nodes[index]
        ran = node.call if isinstance(node, ResultPart | BlockResult) else node
        user_names.setdefault(ran.index, []).append(name)
    return [_row_of(step, user_names) for step in steps]


def _row_of(step: StepRun, given: Mapping[int, Sequence[str]]) -> StepRecord:
    """The row of a step, where these names were given to nodes, by the index of what ran."""
    first = step.nodes[0]
    rows, width = sum(step.block.lengths), step.block.width
    parameters, loops = first.all_parameters(), _loops(first)
    flops, flops_backward = _flops_of(step, rows)
    inside: Sequence[tuple[str, int]] = ()
    depths: Sequence[tuple[int, int, int]] = ()
    if isinstance(first, RegionNode):
        widths = {group.cell.width for group in first.region.groups}
        rows, width = first.region.count, widths.pop() if len(widths) == 1 else 0
        inside, depths = first.batch_sizes(), first.depths()
    return StepRecord(
        _kind_of(step),
        first.sig,
        step.planned,
        step.num_nodes,
        rows,
        width,
        step.copied_bytes,
        step.batch.launches,
        step.prepare_seconds,
        step.spans,
        names_of(parameters),
        step.num_batches,
        step.lower_bound,
        inside,
        depths,
        loops,
        step.batch.device.is_cuda,
        flops,
        flops_backward,
        padded_rows(step) if step.node_type in TYPES else 0,
        _bytes_of(step, parameters),
        [*_products(step, flops, loops)] if flops.products or loops else (),
        [name for index in step_indices(step) for name in given.get(index, ())] if given else (),
    )


def _products(
    step: StepRun, flops: Flops, loops: Sequence[CompiledLoop]
) -> Iterator[tuple[str, bool]]:
    """The names of what multiplies in a step, and whether the factors are two values."""
    first = step.nodes[0]
    if flops.products:
        name = first.label() if isinstance(first, RegionNode) else step.node_type.__name__
        yield name, step.node_type.multiplies_values
    for operator in [op.node for loop in loops for op in loop.generic.values()]:
        if operator.multiplies_values:
            yield type(operator).__name__, True


def step_indices(step: StepRun) -> list[int]:
    """The indices of the graph's nodes that a step ran: of calls, where it ran a part of them."""
    first = step.nodes[0]
    if isinstance(step.nodes, Members):
        return [call.index for call in step.nodes.batch.calls]
    if isinstance(first, RegionNode):
        return [call.index for call, _ in first.calls()]
    return [node.index for node in step.nodes]


def _flops_of(step: StepRun, rows: int) -> tuple[Flops, Flops]:
    """Operations of forward, once however often memory has made it run, and of backward."""
    if step.node_type.only_moves:
        return NO_FLOPS, NO_FLOPS
    times = [what for what, _, _ in step.spans].count("backward") or int(step.fused)
    targets = step.backward_placement.targets
    wanted = tuple([target is not None for target in targets]) if times else ()
    known = step.flops.get((times, wanted))
    if known is None:
        inputs = [source.size for source in step.sources]
        sizes = BatchSizes(step.batch, rows, step.block.size, inputs)
        backward = NO_FLOPS
        if times:
            backward = step.node_type.flops_backward(sizes, wanted).times(times)
        known = step.flops[times, wanted] = step.node_type.flops(sizes), backward
    return known


def _bytes_of(step: StepRun, parameters: Sequence[Parameter]) -> int:
    """Bytes that a step reads and writes; a step that only moves reads as much as it writes."""
    elements: int = 2 * step.block.size
    if not step.node_type.only_moves:
        read = sum([source.size for source in step.sources])
        elements = step.block.size + read + sum([p.size for p in parameters])
    return elements * step.batch.dtype.itemsize


def _loops(node: Operation) -> Sequence[CompiledLoop]:
    if isinstance(node, RegionNode):
        return [group.cell for group in node.region.groups]
    return [node.cell] if isinstance(node, Scan) else []


def _kind_of(step: StepRun) -> str:
    first = step.nodes[0]
    if isinstance(first, RegionNode):
        return first.label()
    name = step.node_type.__name__ + (" +grad" if step.fused else "")
    if isinstance(step.nodes, Members):
        return f"{type(step.nodes.batch.calls[0]).__name__}: {name}"
    return name


def names_of(parameters: Sequence[Parameter]) -> Names:
    return {p.uid: (p.name, p.shape) for p in parameters}
