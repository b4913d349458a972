"""`StepRun`: one batch step on its way through a run, with its places in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dynbatch.backend import Array, Device, DType
from dynbatch.batcher.steps.block import OF_STEPS, BatchInput, Block
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.batcher.steps.placement import (
    NO_BACKWARD,
    NOWHERE,
    BackwardPlacement,
    GradientTarget,
    Placement,
    halves,
)
from dynbatch.batcher.steps.places import freed, move_gradients_back, move_rectangles
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.kernels.runtime.tasks import Written
from dynbatch.memory import Interval
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import Flops
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.shape.structure import Structural
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged

Span = tuple[str, float, float]
"""What ran ("forward", "backward" or "add gradients"), and from when to when by perf_counter."""


class Needs(NamedTuple):
    """The needs of forward besides values, according to its node type.

    saved:     rows and widths of what it saves for backward, by name.
    workspace: elements of scratch.
    """

    saved: Mapping[str, tuple[int, int]]
    workspace: int


NOTHING = Needs({}, 0)
ALL_INPUTS = Retain(inputs=True)


class StepRun:
    """A batch step: its nodes, inputs, output block, and what its kernels cost.

    `flops` are those of forward and backward, as far as reports asked for them, by the number of
    times that backward ran, and the inputs whose gradient it made.

    `planned` says which batch of which plan it runs, counted from 0: a block's batch is several
    steps. `prepare_seconds` is what it took to make the step; `spans` are the times its kernels
    ran. A region of calls counts as the nodes, batches and least batches of its calls. `enter` and
    `enter_backward` tell it where a memory plan has put the arrays of a pass: `placement` and
    `backward_placement`.
    """

    __slots__ = (
        "_label", "_needs", "_needs_backward", "backward_placement", "batch", "block", "blocks",
        "copied_bytes", "flops", "fused", "gradients", "is_structural", "lower_bound", "node_type",
        "nodes", "num_batches", "num_nodes", "parameters", "placement", "planned",
        "prepare_seconds", "scratch", "sources", "spans", "stage",
    )  # fmt: skip

    def __init__(self, nodes: Sequence[Operation], dtype: DType, device: Device) -> None:
        first = nodes[0]
        self.nodes = nodes
        self.node_type = type(first)
        self.block = Block(nodes)
        self.blocks = [self.block, *self.block.ports]  # all that the step writes
        self.batch = Batch(nodes, dtype, device, self.node_type.recompute_of(nodes))
        self.is_structural = issubclass(self.node_type, Structural)
        self.parameters: tuple[Parameter, ...] = first.parameters()
        region = first.region if isinstance(first, RegionNode) else None
        self.num_nodes = len(nodes) if region is None else region.count
        self.num_batches = 1 if region is None else len(region.batches)
        self.lower_bound = 1 if region is None else region.lower_bound
        self.fused = False
        self.stage = 0
        self.planned = (0, 0)
        self.prepare_seconds = 0.0
        self.spans: list[Span] = []
        self.copied_bytes = 0
        self.placement = NOWHERE
        self.backward_placement = NO_BACKWARD
        self.gradients: StepGradients | None = None
        self.scratch: Array | None = None
        self._label = ""
        self.flops: dict[tuple[int, tuple[bool, ...]], tuple[Flops, Flops]] = {}
        self._needs: dict[tuple[bool, int], Needs] = {}  # by settings of the batch
        self._needs_backward: dict[int, int] = {}
        self.sources = [BatchInput(places) for places in self._places(nodes)]

    def _places(self, nodes: Sequence[Operation]) -> Sequence[Sequence[Any]]:
        """The values that make up each packed input of these nodes."""
        if isinstance(nodes, Members):
            return nodes.sources(self.node_type)
        return self.node_type.sources(nodes)

    def bind(self, nodes: Sequence[Operation]) -> None:
        """Run these nodes next: their sizes, and the places of their inputs, are the last ones'."""
        self.nodes = self.batch.nodes = nodes
        self.block.hold(nodes)
        self._label, self.spans, self.prepare_seconds = "", [], 0.0
        self.copied_bytes = self.batch.launches = 0
        if not all([source.is_of_steps for source in self.sources]):
            for source, places in zip(self.sources, self._places(nodes), strict=True):
                source.nodes = places

    def rest(self) -> None:
        """Let go of all nodes and arrays; `bind` must follow before it runs again."""
        if isinstance(self.nodes, Members):
            self.nodes.rest()
        else:
            for node in self.nodes:
                node._block = None
            for block in self.blocks:
                block.nodes = ()
            self.nodes = self.batch.nodes = ()
        for source in self.sources:
            if not source.is_of_steps:
                source.nodes = ()
        moves = self.batch.memo.get("rectangles") if self.is_structural else None
        self.let_go()
        ends = [x for move in moves or () for x in (move.sources, move.targets)]
        if ends and all([isinstance(x, OF_STEPS) for x in ends]):
            self.batch.memo["rectangles"] = moves

    def let_go(self) -> None:
        """Cut the references to arrays."""
        for block in self.blocks:
            block.array = block.gradient = block._view = None
        batch = self.batch
        batch.saved.clear()
        batch.memo.clear()
        batch.ports, batch.port_gradients, batch.inputs, batch.output = [], [], (), None
        self.scratch = self.gradients = batch.gradients = batch._scratch = None

    def is_inside(self, block: Block) -> bool:
        """Whether one of its blocks is of values inside of calls, which nobody else can read."""
        return isinstance(self.nodes, Members) and block not in self.nodes.batch.result_blocks

    @property
    def label(self) -> str:
        """The name of the step in errors of the device: its first node, and how many there are."""
        if not self._label:
            self._label = f"{self.nodes[0].label()}, in a batch of {len(self.nodes)}"
        return self._label

    @property
    def work(self) -> int:
        """Elements read and written: decides whether a thread of its own is worth it."""
        work: int = self.block.size + sum([source.size for source in self.sources])
        return work

    def needs(self, keeps: bool, recompute: int) -> Needs:
        """The needs of a forward with these settings of its batch."""
        if self.is_structural:
            return NOTHING
        needs = self._needs.get((keeps, recompute))
        if needs is None:
            batch, kind = self.batch.like(keeps, recompute), self.node_type
            needs = Needs(kind.saved(batch) if keeps else {}, kind.workspace(batch))
            self._needs[keeps, recompute] = needs
        return needs

    def needs_backward(self, recompute: int) -> int:
        """Elements of scratch of a backward with this setting of its batch."""
        if self.is_structural:
            return 0
        needs = self._needs_backward.get(recompute)
        if needs is None:
            batch = self.batch.like(self.batch.keeps, recompute)
            needs = self._needs_backward[recompute] = self.node_type.workspace_backward(batch)
        return needs

    @property
    def retains(self) -> Retain:
        """The values that backward reads besides the output's gradient."""
        return self.node_type.reads_in_backward(self.batch)

    def read_by_backward(self) -> list[Block]:
        """The blocks whose values backward needs."""
        retains = self.retains
        blocks = [self.block] if retains.output else []
        if retains.inputs and not self.is_structural:
            sources = [x for k, x in enumerate(self.sources) if retains.input(k)]
            blocks += [block for source in sources for block in source.blocks]
        return blocks

    def reads_narrow_input(self, backward: bool) -> bool:
        """Whether a pass can read its one input in 16 bits, where that lies in one block."""
        is_view = len(self.sources) == 1 and self.sources[0].is_view
        return is_view and self.node_type.reads_narrow_input(self.batch, backward)

    def readers(self, position: int) -> list[tuple[Operation, Any]]:
        """The reading node of each place that an input is packed from, in order."""
        places = self.sources[position].nodes
        if not self.node_type.splits:
            return [(self.nodes[0], x) for x in places]
        if self.node_type.variadic:
            return [(node, x) for node in self.nodes for x in node.reads()]
        return list(zip(self.nodes, places, strict=True))

    def enter(self, placement: Placement, arena: Array) -> None:
        """Forward runs next, with its arrays there in the arena."""
        self.placement = placement
        for block, interval in zip(self.blocks, placement.blocks, strict=True):
            block.array, block.start = arena, interval.offset
        self.batch.keeps, self.batch.recompute = placement.keeps, placement.recompute

    def enter_backward(self, placement: BackwardPlacement) -> None:
        """Backward runs in this run, with its arrays there in the arena."""
        self.backward_placement = placement
        self.batch.adds = any([target is not None and target.adds for target in placement.targets])
        self.gradients = StepGradients(set(placement.owned), placement.deferred)

    # Kernels --------------------------------------------------------------------------------------

    def forward(self, arena: Array) -> Written | None:
        """Pack the inputs and run the batched forward (with its gradient, if fused).

        Returns:
            what is still to be done, if it is only written down.
        """
        begin, written = time.perf_counter(), None
        if issubclass(self.node_type, Structural):
            self.copied_bytes += move_rectangles(self.node_type.moves(self.batch))
            self.batch.launches += 1
        else:
            xs = self._inputs(arena, self.placement, ALL_INPUTS)
            self.place_saved(arena)
            y = self.block.values()
            self.batch.ports = [port.values() for port in self.block.ports]
            self.batch.begin(self.batch.launches + 1)
            if self.fused:
                self.batch.gradients = self.gradients
                dy = self.block.gradients()
                self.node_type.forward_backward(self.batch, y, xs, dy, self.target_views(arena))
            else:
                written = self.node_type.forward_batch(self.batch, y, *xs)
        return self._ending(written, "forward", begin)

    def backward(self, arena: Array) -> Written | None:
        """Run the batched backward into direct or scratch targets; see `forward`."""
        begin = time.perf_counter()
        left, placement = self.placement, self.backward_placement
        if left.saved and not self.batch.saved:
            raise freed(self.nodes[0])
        batch = self.batch
        for name, (_, rows, width) in left.saved.items() if left.narrow else ():
            if name in left.narrow and name not in left.widened:
                short = halves(arena, left.narrow[name].offset, rows * width)
                batch.saved[name] = short.reshape(rows, width)
        batch.inputs = tuple(self._inputs(arena, placement, self.retains))
        batch.output = self.block.values() if placement.output else None
        batch.gradients = self.gradients
        batch.port_gradients = [port.gradients() for port in self.block.ports]
        batch.begin(batch.launches + 1)
        if placement.workspace is not None:
            batch.scratch = _part(arena, placement.workspace)
        dxs = self.target_views(arena)
        written = self.node_type.backward_batch(batch, self.block.gradients(), *dxs)
        return self._ending(written, "backward", begin)

    def _ending(self, written: Written | None, what: str, begin: float) -> Written | None:
        """Note the time when it ends."""
        if written is None:
            self.spans.append((what, begin, time.perf_counter()))
        else:
            written.at_last(lambda: self.spans.append((what, begin, time.perf_counter())))
        return written

    def add_gradients(self, arena: Array) -> None:
        """Bring the gradients of the inputs from scratch to where they belong."""
        begin = time.perf_counter()
        if issubclass(self.node_type, Structural):
            targets = self.backward_placement.targets
            assigned = [target.assigned for target in targets if target is not None]
            moves = self.node_type.moves(self.batch)
            self.copied_bytes += move_gradients_back(moves, frozenset().union(*assigned))
            self.batch.launches += 1
        else:
            for source, target in self.gradient_targets():
                if target is not None and target.scratch is not None:
                    self.copied_bytes += source.unpack_gradients(arena, target.scratch.offset)
                    self.batch.launches += 1
        self.spans.append(("add gradients", begin, time.perf_counter()))

    # Places ---------------------------------------------------------------------------------------

    def _inputs(
        self, arena: Array, placement: Placement | BackwardPlacement, reads: Retain
    ) -> list[Any]:
        """The inputs that a pass reads, as views or packed by copies; None for the others."""
        if placement.narrow_input is not None:  # the one input in 16 bits
            (source,) = self.sources
            short = halves(arena, placement.narrow_input.offset, source.blocks[0].size)
            return [source.view_of(short)]
        xs: list[Ragged | None] = []
        for k, (source, interval) in enumerate(zip(self.sources, placement.packings, strict=True)):
            if not reads.input(k):
                xs.append(None)
            elif source.is_view:
                xs.append(source.view())
            else:
                assert interval is not None
                packed, copied = source.pack(arena, interval.offset)
                self.copied_bytes += copied
                self.batch.launches += 1
                xs.append(packed)
        return xs

    def place_saved(self, arena: Array) -> None:
        """Have what forward leaves, and its workspace, where the plan has put them."""
        for name, (interval, rows, width) in self.placement.saved.items():
            self.batch.saved[name] = _part(arena, interval).reshape(rows, width)
        if self.placement.workspace is not None:
            scratch = arena if self.scratch is None else self.scratch
            self.batch.scratch = _part(scratch, self.placement.workspace)

    def gradient_targets(self) -> Iterable[tuple[BatchInput, GradientTarget | None]]:
        """The inputs, and where the gradient of each is written to."""
        return zip(self.sources, self.backward_placement.targets, strict=True)

    def target_views(self, arena: Array) -> list[Ragged | None]:
        views: list[Ragged | None] = []
        for source, target in self.gradient_targets():
            if target is None:
                views.append(None)
            elif target.direct:
                views.append(source.gradient_view())
            else:
                assert target.scratch is not None
                views.append(source.packed(arena, target.scratch.offset))
        return views


def _part(arena: Array, place: Interval) -> Array:
    return arena[place.offset : place.offset + place.size]
