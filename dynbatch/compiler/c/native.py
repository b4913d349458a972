"""`NativeLoop`: a program's loop in C, compiled when it is first run and kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from math import prod

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.compiler.arrays import Arrays, Step, panel_elements
from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.c.by_sentence import SentenceText, SentenceTexts
from dynbatch.compiler.c.passes import BackwardText, ForwardText
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op, WeightRows
from dynbatch.compiler.numpy.loop import Numbered, NumpyLoop, RunSteps
from dynbatch.kernels.printed import LoopFunctions, PrintedLoop, location
from dynbatch.kernels.runtime.compiling import compiling
from dynbatch.kernels.runtime.tasks import NativeTask

# Elements of a loop's weights and matrices: a smaller one has run before it is compiled.
WORTH_COMPILING = 1024


class NativeLoop:
    """A loop in C.

    Attributes:
        attends: whether it calls the operators with kernels of their own in C too.
    """

    def __init__(
        self, storage: Storage, backward: BackwardProgram, gradients: Storage,
        numpy: NumpyLoop, attends: bool,
    ) -> None:  # fmt: skip
        self.attends = attends
        self.numpy = numpy
        self._storage = storage
        self._backward = backward
        self._gradients = gradients
        maps = backward.forward.linear_maps
        self._work = sum([op.inputs[0].width * op.output.width for op in maps])
        self._work += sum([prod(op.nest.sizes) for op in backward.forward.ops])

    def functions(self, dtype: DType, in_16_bits: bool = False) -> NativeFunctions | None:
        """The loop's functions for a dtype; None where NumPy runs it.

        Args:
            in_16_bits: whether backward finds in 16 bits what of forward's `left` says.
        """
        if self._work < WORTH_COMPILING:
            return None
        functions = self._printed[in_16_bits].functions(dtype)
        return None if functions is None else NativeFunctions(self, functions)

    def left(self, dtype: DType) -> Collection[str]:
        """The arrays that forward leaves and backward can find in 16 bits."""
        whole_steps = self.attends or not self._backward.forward.generic
        if self.by_sentence is not None or not whole_steps or self.functions(dtype) is None:
            return ()
        return self.texts[1].left

    @cached_property
    def by_sentence(self) -> SentenceTexts | None:
        """The passes of a loop that runs sentence by sentence; None of another."""
        if not self._backward.forward.is_by_sentence:
            return None
        return SentenceTexts(self._backward, self._storage, self._gradients)

    @cached_property
    def texts(self) -> tuple[ForwardText | SentenceText, BackwardText | SentenceText]:
        if self.by_sentence is not None:
            return self.by_sentence.passes
        back = BackwardText(self._backward, self._storage, self._gradients, self.attends)
        return ForwardText(self._backward.forward, self._storage, self.attends), back

    @cached_property
    def source(self) -> str:
        texts = [each.text for each in self.texts]
        head, *rest = self.by_sentence.around if self.by_sentence else ("",)
        return "\n".join(['#include "loop.h"\n', head, *texts, *rest])

    @cached_property
    def _printed(self) -> list[PrintedLoop]:
        """The loop, and the one whose backward finds what forward left in 16 bits."""
        with compiling():
            heads = "", "#define IN_16_BITS\n"
            return [PrintedLoop(head + self.source) for head in heads]


class NativeFunctions:
    """The compiled functions of a loop for one dtype, on arrays by name."""

    def __init__(self, loop: NativeLoop, functions: LoopFunctions) -> None:
        self._loop = loop
        self._functions = functions

    def pack(self, op: Op, panels: Array) -> Iterator[NativeTask]:
        """Tasks that pack the weights of a wide map into panels (N,), for products with rows."""
        start, inner = 0, op.inputs[0].width
        for piece in op.pieces:
            stop = start + panel_elements(inner, piece.width, panels.dtype)
            sizes = (inner, piece.width)
            yield self._functions.pack_weight(sizes, _rows(piece), panels[start:stop])
            start = stop

    def pack_back(self, op: Op, panels: Array) -> Iterator[NativeTask]:
        """Tasks that pack the weights of a wide map for products with its gradients."""
        for piece in op.pieces:
            sizes = (op.output.width, piece.column, piece.width, op.inputs[0].width)
            yield self._functions.pack_terms(sizes, _rows(piece), panels)

    def steps(self, way: int, arrays: Arrays, steps: Sequence[Step] | Array) -> NativeTask:
        """The task that runs steps forward (0), with the maps of streams, or back (1)."""
        ahead = 0 if way else _end(steps)
        places, finds = self._places(way, arrays), int(arrays.get("given", 0))
        rows = np.asarray(steps, np.int64)
        return self._functions.steps(way, places, rows, finds, ahead, arrays.values())

    def again(self, arrays: Arrays, table: Array) -> NativeTask:
        """The task that runs both passes of each stretch of steps: see `c.by_sentence`."""
        places = [self._places(way, arrays) for way in (0, 1)]
        return self._functions.again(places, table, arrays.values())

    def ahead(self, arrays: Arrays) -> None:
        """Make the maps of streams, for all rows at once."""
        rows = len(arrays["X0"]) if "X0" in arrays else 0
        self._bound(0, arrays)([(0, rows, 0, -1)], True)

    def bind(self, way: int, arrays: Arrays) -> RunSteps:
        """A function that runs steps forward (0) or back (1), with weights packed for that pass.

        NumPy runs the operators between the parts of a step.
        """
        run, loop = self._bound(way, arrays), self._loop
        between = [loop.numpy.bind_ops([op], arrays) for op in loop.texts[way].between]

        def run_steps(steps: Sequence[Numbered]) -> None:
            if not between:
                run([step for _, step in steps])
                return
            for t, step in steps[:: -1 if way else 1]:
                run([step], part=0)
                for part, call in enumerate(between, start=1):
                    call(t, step)
                    run([step], part=part)

        return run_steps

    def entry(self, way: int, arrays: Arrays) -> tuple[int, Array, int]:
        """The address of forward (0) or backward (1), its arrays, and the address of products."""
        run, product = self._functions.entry(way)
        return run, self._places(way, arrays), product

    def _places(self, way: int, arrays: Arrays) -> Array:
        """The numbers by which forward (0) or backward (1) finds its arrays."""
        table: list[int] = []
        for name in self._loop.texts[way].slots:
            array = arrays.get(name)
            if isinstance(array, np.ndarray):
                table += location(array)
            elif array is not None and name.startswith("G"):
                table += array.in_c(way) if self._loop.attends else (0, 0)
            else:  # weights that are read where they lie
                table += [0, 0]
        return np.array(table, np.int64)

    def _bound(self, way: int, arrays: Arrays) -> Callable[..., None]:
        """Forward (0) or backward (1) on some arrays."""
        finds = int(arrays.get("given", 0))
        run_rows = self._functions.bind(way, self._places(way, arrays), finds)

        def run(steps: Sequence[Step], ahead: bool = False, part: int = 0) -> None:
            run_rows(np.array(steps, np.int64), _end(steps) if ahead else 0, part)

        return run


def has_steps(op: Op) -> bool:
    """Whether an operator with its own kernels has steps in C: see `Operation.step_scores`."""
    scores = op.node.step_scores(op.memories)
    return scores is not None and scores.in_c(np.dtype(np.float32)) is not None


def _end(steps: Sequence[Step] | Array) -> int:
    """The row behind the last step's: all rows before it are of these steps."""
    return int(steps[-1][1]) if len(steps) else 0


def _rows(piece: WeightRows) -> Array:
    return np.ascontiguousarray(piece.weight.value)[piece.first :]
