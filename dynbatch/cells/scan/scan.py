"""`Scan`: a cell's loop over the tokens of one sentence, for all sentences at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.cells.scan import arrays as scan_arrays
from dynbatch.cells.scan import chunks as segments
from dynbatch.cells.scan.backward import ScanBackward
from dynbatch.cells.scan.cuda.run import DeviceScanRun
from dynbatch.cells.scan.run import ScanRun
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.nodes.base import INDEX_BYTES, Node, Retain, Shape, intern_signature
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged

# Of the prefix layout: order, inverse and previous; a sentence's number, length and last step.
TABLES_A_TOKEN, TABLES_A_SENTENCE = 3, 3


class Scan(Node):
    """The recurrence of a cell along one sentence.

    recompute: steps of a segment, "sqrt", or 0; see `dynbatch.cells.scan.chunks`. On a GPU there is
        no such route: everything is kept.
    Inputs: the program's streams (T, D), then initial state parts that are not zero, then memories.
    Value:  the program's exports side by side, (T, ΣE). Ports: the state after the last token.
    Batches with:  every other Scan of the same compiled cell, direction, kinds of initial state and
        `recompute`.
    """

    __slots__ = ("cell", "given_states", "length", "recompute", "reverse", "uid")
    static = ("uid", "reverse", "given_states", "recompute")
    retains = Retain(inputs=True)
    recomputes = True
    cell: CompiledCell
    uid: int
    reverse: bool
    given_states: tuple[bool, ...]
    length: int
    recompute: int | str

    def infer_shape(self, *shapes: Shape) -> Shape:
        return (self.length, sum([v.width for v in self.cell.program.exports]))

    def signature(self) -> int:
        # The compiled cell fixes all widths and parameters.
        key = (Scan, self.uid, self.reverse, self.given_states, self.recompute)
        return intern_signature(Scan, key)

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["compiled cell", "reverse", "given initial states", "recompute"]

    def all_parameters(self) -> tuple[Parameter, ...]:
        return self.cell.all_parameters()

    def parameters(self) -> tuple[Parameter, ...]:
        return self.cell.parameters()

    def port_widths(self) -> tuple[int, ...]:
        return tuple([state.width for state in self.cell.program.states])

    @classmethod
    def recompute_of(cls, nodes: Sequence[Node]) -> int:
        steps = nodes[0].recompute  # type: ignore[attr-defined]
        if steps != "sqrt":
            return int(steps)
        return segments.sqrt_steps(np.array([node.length for node in nodes]))  # type: ignore[attr-defined]

    @classmethod
    def recompute_choices(cls, batch: Batch) -> list[int]:
        if batch.xp is not np:
            return []
        return segments.choices(scan_arrays.lengths_of(batch))

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        if batch.xp is np:
            return scan_arrays.saved(batch)
        rows = int(scan_arrays.lengths_of(batch).sum())
        packed = batch.first.cell.on_device.loop.places.packed
        return {b.name: (rows, b.width) for b in packed}

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        tokens = int(scan_arrays.lengths_of(batch).sum())
        return INDEX_BYTES * (TABLES_A_TOKEN * tokens + TABLES_A_SENTENCE * len(batch.nodes))

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        if batch.xp is np:
            return scan_arrays.elements(batch, backward=False)
        return DeviceScanRun.elements(batch, backward=False)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        if batch.xp is np:
            return scan_arrays.elements(batch, backward=True)
        return DeviceScanRun.elements(batch, backward=True)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        run = (ScanRun if batch.xp is np else DeviceScanRun)(batch, y, xs)
        batch.memo["run"] = run
        run.forward(y)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        run: ScanRun | DeviceScanRun = batch.memo["run"]
        if isinstance(run, ScanRun):
            ScanBackward(run, batch, dy, dxs).run()
        else:
            run.backward(batch, dy, dxs)
