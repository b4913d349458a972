"""`StepCheck`: runs a batch step again on the host, and compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.debugging.difference import Checker, differing, largest, magnitude, rounding, scale_of
from dynbatch.debugging.inlined import InlinedRegion, stacked_rows
from dynbatch.debugging.reference import (
    FlatGradients,
    Moves,
    Readable,
    Reference,
    ReferenceRun,
    on_host,
    totals,
)
from dynbatch.debugging.step_arrays import StepArray, arrays_of, one_by_one
from dynbatch.errors import CheckError
from dynbatch.kernels.arrays import download, split
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.memory import Interval
from dynbatch.nodes.node import Node, heading
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural

REFERENCES: dict[type[Node], Callable[[Any, DType, bool], Reference]] = {
    RegionNode: InlinedRegion, StackCalls: stacked_rows
}  # fmt: skip


class StepCheck:
    """Runs a batch step again on the host, and compares.

    Attributes:
        reference: the second run, from forward to backward.
        launched:  the kernels that ran last, for messages.
    """

    def __init__(self, step: StepRun, checker: Checker) -> None:
        self.step = step
        self.checker = checker
        self.launched = ""
        self.reference: Reference | None = None
        self._arrays = arrays_of(step)

    def forward(self, arena: Array, run: Callable[[], None]) -> None:
        """Run forward, and compare the outputs, and the gradients of a fused step."""
        run()
        self.launched = self.checker.kernels()
        step = self.step
        if step.is_structural:
            (values,) = self._arrays.values()
            moves, blocks = self._moves()
            (expected,) = moves.forward([to_host(block.values().flat) for block in blocks])
            self._compare("moves", values, expected, 0.0)
            return
        xs = self._inputs(arena, step.placement.packings)
        reference = self._new_reference()
        with on_host(step.nodes[0].all_parameters(), self.checker.copies):
            if step.fused:
                assert isinstance(reference, ReferenceRun)
                dy = to_host(step.block.gradients().flat)
                outputs, gradients = reference.forward_backward(xs, dy, self._wanted())
            else:
                outputs = reference.forward(xs)
                if self.checker.rounds:
                    reference.round_saved(step.node_type.narrow_saved(step.batch))
        self.reference = reference if step.batch.keeps else None
        terms = self._terms()
        for values, expected in zip(self._arrays.values(), outputs, strict=True):
            self._compare("forward", values, expected, terms)
        if step.fused:
            self._compare_gradients(arena, gradients, [dy], xs)

    def backward(self, arena: Array, run: Callable[[], None]) -> None:
        """Run backward, and compare the gradients of inputs and parameters."""
        step = self.step
        self.checker.kernels()
        dys = [download(block.gradients().values) for block in step.blocks]  # a region adds to it
        run()
        self.launched = self.checker.kernels()
        # There is none where backward needs no values, and so may come before forward.
        reference = self.reference or self._new_reference()
        retains = step.retains
        inputs = self._inputs(arena, step.backward_placement.packings, retains.input)
        output = to_host(step.block.values().flat) if retains.output else None
        with on_host(step.nodes[0].all_parameters(), self.checker.copies):
            readable = Readable(inputs, output, dys[0].reshape(-1), dys[1:], self._wanted())
            gradients = reference.backward(readable)
        self._compare_gradients(arena, gradients, [*dys, *gradients.sums], inputs)

    def add_gradients(self, arena: Array, run: Callable[[], None]) -> None:
        """Add the gradients of the inputs to their blocks, and compare the sums."""
        expected = self._sums(arena)
        run()
        self.launched = self.checker.kernels()
        for block, (sums, scale) in expected.items():
            self._compare("add", self._arrays.total(block), sums, scale)

    # What the second run gets ---------------------------------------------------------------------

    def _new_reference(self) -> Reference:
        node_type, batch = self.step.node_type, self.step.batch
        together = self.checker.on_device or not node_type.splits
        groups = [self.step.nodes] if together else [[node] for node in self.step.nodes]
        return REFERENCES.get(node_type, ReferenceRun)(groups, batch.dtype, batch.keeps)

    def _inputs(
        self,
        arena: Array,
        packings: Sequence[Interval | None],
        reads: Callable[[int], bool] = lambda position: True,
    ) -> list[Array | None]:
        """The elements of each input as the kernels had them; copies are compared with values."""
        inputs: list[Array | None] = []
        for position, source in enumerate(self.step.sources):
            if not reads(position):
                inputs.append(None)
            elif source.is_view:
                inputs.append(to_host(source.view().values).reshape(-1))
            else:
                packing = packings[position]
                assert packing is not None
                packed = to_host(source.packed(arena, packing.offset).flat)
                values = [to_host(x._block.node_values(x)).ravel() for x in source.nodes]
                what = f"value, copied for {self.step.nodes[0].label()},"
                parts = one_by_one([(x, what, x.shape, None) for x in source.nodes])
                copy = StepArray(position, packed, parts)
                self._compare("packing", copy, np.concatenate(values), 0.0)
                inputs.append(packed)
        return inputs

    def _wanted(self) -> list[bool]:
        return [target is not None for _, target in self.step.gradient_targets()]

    def _moves(self) -> tuple[Moves, list[Block]]:
        """The moves of a structural step, node by node, and the blocks that it reads."""
        numbers: dict[Block, int] = {}
        moves = []
        for node in self.step.nodes:
            assert issubclass(self.step.node_type, Structural)
            for r in self.step.node_type.rectangles_of(node):
                there, here = r.elements()
                number = numbers.setdefault(r.source._block, len(numbers))
                moves.append((number, r.source._start + there, r.target._start + here))
        blocks, size = list(numbers), self.step.block.size
        return Moves(moves, [x.size for x in blocks], size, self.step.batch.dtype), blocks

    def _sums(self, arena: Array) -> dict[Block, tuple[Array, float]]:
        """The expected sum, and the largest term, of each block that this step adds to."""
        sums_of: dict[Block, tuple[Array, float]] = {}

        def begin(block: Block, added: float, is_empty: bool = False) -> Array:
            if block not in sums_of:
                gradient = to_host(block.gradients().flat)
                gradient = np.zeros_like(gradient) if is_empty else gradient.copy()
                sums_of[block] = (gradient, magnitude(gradient))
            gradient, scale = sums_of[block]
            sums_of[block] = (gradient, max(scale, added))
            return gradient

        if self.step.is_structural:
            moves, blocks = self._moves()
            assigned = {
                x for _, target in self.step.gradient_targets() if target for x in target.assigned
            }
            dy = to_host(self.step.block.gradients().flat)
            moved = moves.backward(Readable([], None, dy, [], [])).of_inputs
            for block, dx in zip(blocks, moved.values(), strict=True):
                if block.gradient is not None:
                    begin(block, magnitude(dy), block in assigned)[...] += dx
            return sums_of
        # Other steps write packed gradients into scratch first, which are added node by node.
        for source, target in self.step.gradient_targets():
            if target is None or target.scratch is None:
                continue
            packed = to_host(source.packed(arena, target.scratch.offset).flat)
            dxs = split(packed, [(x.rows * x.width,) for x in source.nodes])
            added = magnitude(packed)
            for x, dx in zip(source.nodes, dxs, strict=True):
                if x._block.gradient is not None:
                    x._block.part(begin(x._block, added), x)[...] += dx.reshape(x.shape)
        return sums_of

    # Comparing ------------------------------------------------------------------------------------

    def _compare_gradients(
        self,
        arena: Array,
        expected: FlatGradients,
        dys: Sequence[Array],
        inputs: Sequence[Array | None],
    ) -> None:
        """Compare the gradients that the second run made of `dys`."""
        scale = scale_of(dys)
        for array in self._arrays.gradients(arena):
            wanted = expected.of_inputs.get(array.key, np.zeros_like(array.flat))
            self._compare("backward", array, wanted, lambda _: scale())
        assert self.step.gradients is not None
        sums, of_parameters = totals(self.step.gradients), expected.of_parameters
        terms = largest(dys) * max(1.0, largest([x for x in inputs if x is not None]))
        for uid in sums.keys() | of_parameters.keys():
            parameter = (sums.get(uid) or of_parameters[uid])[0]
            nothing = (parameter, np.zeros(parameter.shape, parameter.dtype))
            array = self._arrays.of_parameter(*sums.get(uid, nothing))
            wanted = of_parameters.get(uid, nothing)[1].ravel()
            self._compare("backward", array, wanted, terms)

    def _batch_text(self) -> str:
        count = len(self.step.nodes)
        if self.step.node_type is RegionNode:
            return self._arrays.batch_text()
        return (
            f"a batch of {count} node{'s' * (count > 1)}, {self.step.node_type.__name__}, "
            f"first {self.step.nodes[0].label()}"
        )

    def _terms(self) -> Callable[[Node], float] | float:
        """0, or what gives the largest number that a node, or the region of a call, has read."""
        if self.step.node_type.only_moves:
            return 0.0
        first, read = self.step.nodes[0], cache(_largest_read)
        return lambda node: read(node if isinstance(node, Operation) else first)

    def _compare(
        self,
        when: str,
        array: StepArray,
        expected: Array,
        scale: Callable[[Node], float] | float,
    ) -> None:
        """Raise CheckError at the first part that differs.

        Args:
            scale: gives the largest term of a node's numbers.
        """
        if np.array_equal(array.flat, expected, equal_nan=True):
            return
        for part in array.parts:
            actual, wanted = array.flat[part.elements], expected[part.elements]
            terms = scale if isinstance(scale, float) else scale(part.node)
            wrong = differing(actual, wanted, rounding(wanted, terms))
            if wrong.size:
                where = self.checker.difference(part.shape, wrong, actual, wanted)
                kernels = f"; launched: {self.launched}" if self.launched else ""
                raise CheckError(
                    heading(part.node, f"its {part.what} is wrong") + f"\n  {where}\n"
                    f"  in {when} of {self._batch_text()}{kernels}\n"
                    f"  fix:  {self.checker.advice(self.step.node_type)}"
                )


def _largest_read(node: Operation) -> float:
    return largest([to_host(x._block.node_values(x)) for x in node.reads()])
