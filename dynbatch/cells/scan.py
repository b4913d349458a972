"""`Scan`: a cell's loop over the tokens of one sentence, for all sentences at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.cells.compiled import CompiledCell
from dynbatch.cells.cuda.run import DeviceScanRun
from dynbatch.cells.run import ScanRun
from dynbatch.nodes.base import Node, Retain, Shape, intern_signature
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class Scan(Node):
    """The recurrence of a cell along one sentence.

    Inputs: the program's streams (T, D), then initial state parts that are not zero, then memories.
    Value:  the program's exports side by side, (T, ΣE). Ports: the state after the last token.
    Batches with:  every other Scan of the same compiled cell, direction and kinds of initial state.
    """

    __slots__ = ("cell", "given_states", "length", "reverse", "uid")
    static = ("uid", "reverse", "given_states")
    retains = Retain(inputs=True)
    cell: CompiledCell
    uid: int
    reverse: bool
    given_states: tuple[bool, ...]
    length: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        return (self.length, sum([v.width for v in self.cell.program.exports]))

    def signature(self) -> int:
        # The compiled cell fixes all widths and parameters.
        return intern_signature(Scan, (Scan, self.uid, self.reverse, self.given_states))

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["compiled cell", "reverse", "given initial states"]

    def all_parameters(self) -> tuple[Parameter, ...]:
        return self.cell.all_parameters()

    def parameters(self) -> tuple[Parameter, ...]:
        return self.cell.parameters()

    def port_widths(self) -> tuple[int, ...]:
        return tuple([state.width for state in self.cell.program.states])

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        rows = sum([node.length for node in batch.nodes])  # type: ignore[attr-defined]
        cell: CompiledCell = batch.first.cell
        packed = cell.storage.packed if batch.xp is np else cell.on_device.loop.places.packed
        return {b.name: (rows, b.width) for b in packed}

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return _run_type(batch).elements(batch, backward=False)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return _run_type(batch).elements(batch, backward=True)

    @classmethod
    def forward(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        run = _run_type(batch)(batch, y, xs)
        batch.memo["run"] = run
        run.forward(y)

    @classmethod
    def backward(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        run: ScanRun | DeviceScanRun = batch.memo["run"]
        run.backward(batch, dy, dxs)


def _run_type(batch: Batch) -> type[ScanRun] | type[DeviceScanRun]:
    return ScanRun if batch.xp is np else DeviceScanRun
