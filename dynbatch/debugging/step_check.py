"""`StepCheck`: runs a batch step again on the host, and compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.block import Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.debugging.difference import Checker, differing, largest, magnitude, rounding, scale_of
from dynbatch.debugging.reference import ReferenceRun, elements, on_host, totals
from dynbatch.errors import CheckError
from dynbatch.kernels.arrays import download, split
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.nodes.node import Node, Shape, heading
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural
from dynbatch.parameter import Parameter


class ComparedArray(NamedTuple):
    """A part of an array to compare, its owner and name; `scale` gives the largest term."""

    node: Node
    what: str
    shape: Shape
    scale: Callable[[], float]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


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
        self.reference: ReferenceRun | None = None

    def forward(self, arena: Array, run: Callable[[], None]) -> None:
        """Run forward, and compare the outputs, and the gradients of a fused step."""
        run()
        self.launched = self.checker.kernels()
        step = self.step
        if step.is_structural:
            self._check_moves()
            return
        xs = self._inputs(arena, step.placement.packings)
        reference = self._new_reference()
        dxs: list[Array | None] = []
        with on_host(step.nodes[0].all_parameters(), self.checker.copies):
            if step.fused:
                dy = to_host(step.block.gradients().flat)
                outputs, dxs, sink = reference.forward_backward(xs, dy, self._wanted())
                expected_sums = totals(sink)
            else:
                outputs = reference.forward(xs)
                if self.checker.rounds:
                    reference.round_saved(step.node_type.narrow_saved(step.batch))
        self.reference = reference if step.batch.keeps else None
        for number, (block, expected) in enumerate(zip(step.blocks, outputs, strict=True)):
            name = f"last state {number - 1}" if number else "value"
            pieces = [
                ComparedArray(
                    node, name, (block.width,) if number else node.shape, partial(self._terms, node)
                )
                for node in step.nodes
            ]
            self._compare("forward", pieces, to_host(block.values().flat), expected)
        if step.fused:
            self._compare_gradients(arena, dxs, [dy])
            self._compare_parameters(expected_sums, [dy], xs)

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
        packings = [
            x if retains.input(k) else None for k, x in enumerate(step.backward_placement.packings)
        ]
        inputs = self._inputs(arena, packings, retains.input)
        output = to_host(step.block.values().flat) if retains.output else None
        with on_host(step.nodes[0].all_parameters(), self.checker.copies):
            dxs, sink = reference.backward(
                inputs, output, dys[0].reshape(-1), dys[1:], self._wanted()
            )
            expected_sums = totals(sink)
        self._compare_gradients(arena, dxs, dys)
        self._compare_parameters(expected_sums, dys, inputs)

    def add_gradients(self, arena: Array, run: Callable[[], None]) -> None:
        """Add the gradients of the inputs to their blocks, and compare the sums."""
        expected = self._sums(arena)
        run()
        self.launched = self.checker.kernels()
        for block, (wanted, scale) in expected.items():
            what = f"gradient, after {self.step.nodes[0].label()} added to it,"
            width = block.width if block.nodes[0]._block is not block else 0
            pieces = [
                ComparedArray(node, what, (width,) if width else node.shape, partial(float, scale))
                for node in block.nodes
            ]
            self._compare("add", pieces, to_host(block.gradients().flat), wanted)

    # What the second run gets ---------------------------------------------------------------------

    def _new_reference(self) -> ReferenceRun:
        together = self.checker.on_device or not self.step.node_type.splits
        groups = [self.step.nodes] if together else [[node] for node in self.step.nodes]
        return ReferenceRun(groups, self.step.batch.dtype, self.step.batch.keeps)

    def _inputs(
        self,
        arena: Array,
        packings: Sequence[int | None],
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
                packed = to_host(source.packed(arena, packing).flat)
                values = [to_host(x._block.node_values(x)).ravel() for x in source.nodes]
                what = f"value, copied for {self.step.nodes[0].label()},"
                pieces = [ComparedArray(x, what, x.shape, float) for x in source.nodes]
                self._compare("packing", pieces, packed, np.concatenate(values))
                inputs.append(packed)
        return inputs

    def _wanted(self) -> list[bool]:
        return [target is not None for _, target in self.step.gradient_targets()]

    def _check_moves(self) -> None:
        expected = np.full(self.step.block.size, np.nan, self.step.batch.dtype)
        copies: dict[Block, Array] = {}
        for _, source, rows, columns in self._rectangles():
            if source not in copies:
                copies[source] = to_host(source.values().flat)
            expected[columns] = copies[source][rows]
        pieces = [ComparedArray(node, "value", node.shape, float) for node in self.step.nodes]
        self._compare("moves", pieces, to_host(self.step.block.values().flat), expected)

    def _rectangles(self) -> Iterable[tuple[Node, Block, Array, Array]]:
        """Node by node: the block that is read, elements there, and elements of the output."""
        for node in self.step.nodes:
            assert issubclass(self.step.node_type, Structural)
            for r in self.step.node_type.rectangles_of(node):
                there, here = elements(r)
                yield node, r.source._block, r.source._start + there, r.target._start + here

    def _sums(self, arena: Array) -> dict[Block, tuple[Array, float]]:
        """The expected sum, and the largest term, of each block that this step adds to."""
        sums_of: dict[Block, tuple[Array, float]] = {}

        def begin(block: Block, is_empty: bool) -> Array:
            if block not in sums_of:
                gradient = to_host(block.gradients().flat)
                gradient = np.zeros_like(gradient) if is_empty else gradient.copy()
                sums_of[block] = (gradient, magnitude(gradient))
            return sums_of[block][0]

        if self.step.is_structural:
            assigned = {
                block
                for _, target in self.step.gradient_targets()
                if target
                for block in target.assigned
            }
            dy = to_host(self.step.block.gradients().flat)
            for _, block, there, here in self._rectangles():
                if block.gradient is not None:
                    begin(block, block in assigned)[there] += dy[here]
            return {
                block: (sums, max(scale, magnitude(dy))) for block, (sums, scale) in sums_of.items()
            }
        # Other steps write packed gradients into scratch first, which are added node by node.
        for source, target in self.step.gradient_targets():
            if target is None or target.scratch is None:
                continue
            packed = to_host(source.packed(arena, target.scratch).flat)
            dxs = split(packed, [(x.rows * x.width,) for x in source.nodes])
            for x, dx in zip(source.nodes, dxs, strict=True):
                block = x._block
                if block.gradient is not None:
                    sums = begin(block, False)
                    block.part(sums, x)[...] += dx.reshape(x.shape)
                    sums_of[block] = (sums, max(sums_of[block][1], magnitude(packed)))
        return sums_of

    # Comparing ------------------------------------------------------------------------------------

    def _compare_gradients(
        self, arena: Array, dxs: Sequence[Array | None], dys: Sequence[Array]
    ) -> None:
        views, scale = self.step.target_views(arena), scale_of(dys)
        for position, (view, dx) in enumerate(zip(views, dxs, strict=True)):
            if view is None or dx is None:
                continue
            pieces = [
                ComparedArray(node, f"gradient of {x.label()}", x.shape, scale)
                for node, x in self.step.readers(position)
            ]
            self._compare("backward", pieces, to_host(view.values).reshape(-1), dx)

    def _compare_parameters(
        self,
        expected_sums: dict[int, tuple[Parameter, Array]],
        dys: Sequence[Array],
        inputs: Sequence[Array | None],
    ) -> None:
        assert self.step.gradients is not None
        sums = totals(self.step.gradients)
        scale = largest(dys) * max(1.0, largest([x for x in inputs if x is not None]))
        node = self.step.nodes[0]
        for uid in sums.keys() | expected_sums.keys():
            parameter = (sums.get(uid) or expected_sums[uid])[0]
            nothing = (parameter, np.zeros(parameter.shape, parameter.dtype))
            actual, expected = sums.get(uid, nothing)[1], expected_sums.get(uid, nothing)[1]
            what = f"gradient for parameter {parameter.name!r}"
            piece = ComparedArray(node, what, parameter.shape, partial(float, scale))
            self._compare("backward", [piece], actual.ravel(), expected.ravel())

    def _batch_text(self) -> str:
        count = len(self.step.nodes)
        return (
            f"a batch of {count} node{'s' * (count > 1)}, {self.step.node_type.__name__}, "
            f"first {self.step.nodes[0].label()}"
        )

    def _terms(self, node: Operation) -> float:
        return largest([to_host(x._block.node_values(x)) for x in node.reads()])

    def _compare(
        self, when: str, pieces: Sequence[ComparedArray], actual: Array, expected: Array
    ) -> None:
        """Raise CheckError at the first piece that differs."""
        if np.array_equal(actual, expected, equal_nan=True):
            return
        start = 0
        for piece in pieces:
            part = slice(start, start + piece.size)
            start = part.stop
            tolerance = rounding(expected[part], piece.scale())
            wrong = differing(actual[part], expected[part], tolerance)
            if wrong.size:
                where = self.checker.difference(piece.shape, wrong, actual[part], expected[part])
                kernels = f"; launched: {self.launched}" if self.launched else ""
                raise CheckError(
                    heading(piece.node, f"its {piece.what} is wrong") + f"\n  {where}\n"
                    f"  in {when} of {self._batch_text()}{kernels}\n"
                    f"  fix:  {self.checker.advice(self.step.node_type)}"
                )
