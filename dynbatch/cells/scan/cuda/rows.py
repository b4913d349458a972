"""`ScanRows`: the rows of one chunk of a batch of scans on a GPU, in prefix layout, by address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.cuda.rows import LoopRows, RowsOfSteps
from dynbatch.cells.scan.prefix import Shard
from dynbatch.cells.scan.run import ScanBatch
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.ir import Origin, Value
from dynbatch.kernels.runtime.device_loops import DeviceMatrix, RowGathers
from dynbatch.ragged import Ragged


class ScanRows(LoopRows):
    """The addresses of the values of a batch of scans, or of a chunk of its steps.

    Args:
        shard: order of rows; `steps` says which of them a step has.
        left:  the parts of the state that the chunk before changed, by number; of the first none.

    Attributes:
        finds:    which parts of the state the chunk's first step finds other than zeros.
        matrices: gradients of the state, C0 … and N0 …, change places after each step.
    """

    def __init__(self, run: ScanBatch, shard: Shard, left: Mapping[int, Array]) -> None:
        loop: Loop = run.cell.on_device.loop
        super().__init__(loop, run.batch.dtype, shard.steps)
        self.shard = shard
        self.sentences = shard.sentences
        self.finds = tuple([True] * len(run.given)) if shard.first else run.given
        self._found = left
        self._others = {a: b for pair in loop.carried for a, b in (pair, pair[::-1])}

    def start(
        self, run: ScanBatch, weights: Mapping[str, Array], gathers: RowGathers, fills: bool
    ) -> None:
        """Streams in prefix order, initial states, weights: for either pass.

        Args:
            run:     has the packed inputs.
            weights: the arrays of `wide_rooms`.
            fills:   whether they are filled; later chunks and backward find them so.
        """
        for k, stream in enumerate(run.streams):
            gathers.pick(stream.values, self.shard.order, self.array(f"X{k}"))
        for k, init in enumerate(run.inits):
            if k in self._found or init is None:
                self.add({f"I{k}": self._found.get(k)})
            else:
                gathers.pick(init.values, self.sentences, self.array(f"I{k}"))
        self.add_weights(weights, gathers if fills else None)

    def gather_found(self, inits: Sequence[Ragged | None], gathers: RowGathers) -> None:
        """Bring the states as every step found them, which weights' gradients need, together."""
        for part in self.loop.backward_program.found_states():
            earlier, init = self.shard.earlier(), inits[part]
            before, first = earlier < 0, self._found.get(part)
            if not self.shard.first:
                earlier[before] = -1 - self.sentences[-1 - earlier[before]]
                first = None if init is None else init.values
            state = self.whole(self.loop.program.following[part])
            gathers.pick(state, earlier, self.array(f"H{part}"), first)

    def multiplied(self, value: Value) -> Array:
        base = value.base
        if base.origin is not Origin.STATE:
            return super().multiplied(value)
        zeros = self.steps[0][2] if self.steps and not self.finds[base.number] else 0
        return self.array(f"H{base.number}")[zeros:, value.column : value.column + value.width]

    # Where things are -----------------------------------------------------------------------------

    def left(self, part: int) -> Array:
        """The gradient of a part of the state that the first step found."""
        return self.array(self.in_turn(self.loop.carried[part][0], -1))

    def in_turn(self, name: str, t: int) -> str:
        return self._others.get(name, name) if (len(self.steps) - 1 - t) % 2 else name

    def base_of(self, name: str, order: Array | None = None) -> int | Array | None:
        other = self._others.get(name)
        if other is None or order is None:
            return super().base_of(name)
        is_other = (len(self.steps) - 1 - order) % 2
        return np.where(is_other, self.matrix(other).address, self.matrix(name).address)

    def of_steps(self, value: Value, order: Array) -> RowsOfSteps:
        base, before = value.base, self.table[order, 2]
        if base.origin is not Origin.STATE:
            return super().of_steps(value, order)
        left, init = self.loop.program.following[base.number], self.matrices[f"I{base.number}"]
        if left is base:  # no step changes it
            address = 0 if init is None else init.part(0, value.column, value.width).address
            return RowsOfSteps(np.full(order.size, address, np.int64), base.width)
        rows = self._rows_of(left.base, left.column + value.column, order, before)
        is_first = before < 0
        if not is_first.any():
            return rows
        if init is None:
            return RowsOfSteps(np.where(is_first, 0, rows.addresses), rows.stride)
        start = init.part(0, value.column, value.width).address
        stride = rows.stride
        if stride != init.stride:
            stride = np.where(is_first, init.stride, stride)
        return RowsOfSteps(np.where(is_first, start, rows.addresses), stride)

    def of_step(self, value: Value, t: int) -> DeviceMatrix | None:
        """A value's rows in step t; None for a state that is all zeros, or an unwanted gradient."""
        p, base = self.steps[t][3], value.base
        if base.origin is not Origin.STATE:
            return super().of_step(value, t)
        left = self.loop.program.following[base.number]
        if p < 0 or left is base:
            init = self.matrices[f"I{base.number}"]
            return init and init.part(0, value.column, value.width)
        return self._part(left.base, left.column + value.column, value.width, t, p)
