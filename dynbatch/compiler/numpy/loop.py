"""`NumpyLoop`: both passes of a loop as calls of NumPy. They run on one shard of a mini-batch.

Rows are in prefix layout. Arrays by name, as `buffers.LETTERS` has them: X streams, P and T values,
W weights (K, O), b biases, I initial states, all zeros unless `given`; for backward V weights
(O, K), dY and C gradients from outside and from the step after, D and E gradients of values, H
states as every step found them, dX gradients of streams; G operators with own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dynbatch.compiler.arrays import Arrays, stream_map
from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.differentiate import BackwardProgram
from dynbatch.compiler.ir import Op
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.numpy.calls import KernelCall, OperatorCalls
from dynbatch.compiler.numpy.interpreter import Instructions, Numbered
from dynbatch.compiler.numpy.views import ValuePlaces
from dynbatch.compiler.program import numbered


class NumpyLoop:
    """A loop's passes.

    Attributes:
        step, step_back: calls of a forward step, and of a step back.
        scratch: buffers that backward needs beside those of its values.
        weight_planes: of backward, width of the planes of V by its number; 0 for plain rows.
    """

    def __init__(
        self, program: LoopProgram, storage: Storage, backward: BackwardProgram, gradients: Storage
    ) -> None:
        self._program = program
        self._storage = storage
        self._maps = numbered(program.linear_maps)
        generic = numbered(program.generic)
        following = [storage.columns_of(value) for value in program.following]
        writer = OperatorCalls(ValuePlaces(storage), self._maps, generic)
        self.step = _calls(writer, program.ops)
        from_zeros = [call for op in program.ops for call in writer.calls(op, from_zeros=True)]
        self._step = Instructions(self.step, following)
        self._step_from_zeros = Instructions(from_zeros, following)
        writer = OperatorCalls(ValuePlaces(gradients, storage), self._maps, generic)
        self.step_back = _calls(writer, backward.ops)
        self.scratch = list(writer.scratch.values())
        self.weight_planes = writer.weight_planes
        self._step_back = Instructions(self.step_back, following)
        # Nothing asks for the gradient of a state that was not given.
        ops = [op for op in backward.ops if not (op.source and op.source.reads_state)]
        self._last_back = Instructions(_calls(writer, ops), following)

    def ahead(self, arrays: Arrays) -> None:
        """The wide maps of streams, for all rows at once."""
        for op in self._program.stream_maps:
            number, buffer = self._maps[id(op)], self._storage.buffer_of(op.output)[0]
            out = arrays[buffer.name]
            stream_map(arrays[f"X{op.inputs[0].number}"], arrays[f"W{number}"], out)
            if op.has_bias:
                np.add(out, arrays[f"b{number}"], out)

    def bind_forward(self, arrays: Arrays) -> Callable[[Iterable[Numbered]], None]:
        """What runs steps, each with its number, on these arrays."""
        run = self._step.bind(arrays)
        first = self._step_from_zeros.bind(arrays) if self._skips_zeros(arrays) else run

        def forward(steps: Iterable[Numbered]) -> None:
            for t, step in steps:
                (first if step[3] < 0 else run)(t, step)

        return forward

    def bind_backward(self, arrays: Arrays) -> Callable[[Sequence[Numbered]], None]:
        """What runs steps in reverse on these arrays."""
        run = self._step_back.bind(arrays)
        first = self._last_back.bind(arrays) if self._skips_zeros(arrays) else run

        def backward(steps: Sequence[Numbered]) -> None:
            for t, step in reversed(steps):
                (first if step[3] < 0 else run)(t, step)

        return backward

    def _skips_zeros(self, arrays: Arrays) -> bool:
        """Whether the first step finds a state of zeros."""
        return bool(self._program.states) and not arrays["given"]

    def __str__(self) -> str:
        parts = {"in a step": self.step, "in a step back": self.step_back}
        return "\n".join(
            ["\n".join([f"# {part}", *map(str, calls)]) for part, calls in parts.items()]
        )


def _calls(writer: OperatorCalls, ops: Sequence[Op]) -> list[KernelCall]:
    return [call for op in ops for call in writer.calls(op)]
