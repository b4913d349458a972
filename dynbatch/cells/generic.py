"""Operators of a loop that have no generated code: each step calls the node type's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.cells.program import Op
from dynbatch.kernels import arrays
from dynbatch.nodes.batch import Batch, Gradients
from dynbatch.ragged import Ragged

Array = np.ndarray[Any, np.dtype[Any]]


class Lengths:
    """What a node type may ask of an input when it sizes its arrays."""

    __slots__ = ("rows", "width")

    def __init__(self, rows: int, width: int) -> None:
        self.rows = rows
        self.width = width


class StandIn:
    """One sentence's node in one step: the traced node, with this sentence's lengths."""

    def __init__(self, node: Any, inputs: list[Lengths]) -> None:
        self._node = node
        self.inputs = inputs
        self.rows = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class GenericStep:
    """One such operator in one shard, through all steps.

    Args:
        op:       the operator.
        memories: packed rows of each memory, in the shard's order of sentences.
        sentences: of the shard.
        keeps:    whether backward will follow.
        xp:       array module of the values.
    """

    def __init__(
        self, op: Op, memories: list[Ragged], sentences: int, dtype: Any, keeps: bool, xp: Any = np
    ) -> None:
        self._kind = type(op.node)
        self._origins = [x.base.origin for x in op.inputs]
        self._places = [x.base.place if x.base.origin == "memory" else None for x in op.inputs]
        self._accumulates: tuple[int, ...] = getattr(self._kind, "accumulates", ())
        self._memories = memories
        self._ones = [1] * sentences
        self._ends = np.arange(sentences + 1)
        self._nodes = [
            StandIn(
                op.node,
                [
                    Lengths(memories[x.base.place].lengths[k], x.width)
                    if x.base.origin == "memory"
                    else Lengths(1, x.width)
                    for x in op.inputs
                ],
            )
            for k in range(sentences)
        ]
        self._batch = Batch([op.node], dtype, xp)
        self._batch.cache = {"count": sentences}
        self._batch.keeps = keeps
        self._saved: dict[int, dict[str, Array]] = {}
        self._running: dict[tuple[int, bool], tuple[Ragged, Ragged]] = {}
        self.memory_gradients: list[Ragged] = []

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return self._batch.launches

    def forward(self, t: int, n: int, out: Array, *xs: Any) -> None:
        """y = f(xs) for the n running sentences at step t."""
        batch = self._at(n)
        inputs = [self._ragged(x, n, self._memories) for x in xs]
        batch.inputs = tuple(inputs)
        if batch.keeps:
            sizes = self._kind.saved(batch)
            batch.saved = {name: batch.xp.empty(size, batch.dtype) for name, size in sizes.items()}
            self._saved[t] = batch.saved
        if t == 0:  # later steps have fewer sentences
            batch.scratch = batch.xp.empty(self._kind.workspace(batch), batch.dtype)
        batch.launches += 1
        self._kind.forward(batch, self._rows(out, n), *inputs)

    def backward(
        self, t: int, n: int, dy: Array, y: Any, xs: tuple[Any, ...], dxs: tuple[Any, ...]
    ) -> None:
        """Overwrite the dxs of values; add to the gradients of memories."""
        batch = self._at(n)
        batch.inputs = tuple(None if x is None else self._ragged(x, n, self._memories) for x in xs)
        batch.output = None if y is None else self._rows(y, n)
        batch.saved = self._saved.get(t, {})  # kept: another loss may follow
        batch.accumulate = True
        targets: list[Ragged | None] = []
        added: list[tuple[Ragged, Ragged]] = []
        for position, (x, dx) in enumerate(zip(xs, dxs, strict=True)):
            if self._origins[position] != "memory":
                targets.append(None if dx is None else self._rows(dx, n))
                continue
            total = self._ragged(x, n, self.memory_gradients)
            if position in self._accumulates:
                targets.append(total)
                continue
            of_step = total.like(batch.xp.empty(total.values.shape, batch.dtype))
            targets.append(of_step)
            added.append((total, of_step))
        batch.launches += 1 + len(added)
        self._kind.backward(batch, self._rows(dy, n), *targets)
        for total, of_step in added:
            arrays.accumulate(of_step.values, total.values)

    def finish(self) -> None:
        """After the last step of backward: the rest of the memories' gradients."""
        if self._accumulates:
            targets = [
                self.memory_gradients[x] if isinstance(x, int) else None for x in self._places
            ]
            self._kind.finish(self._batch, *targets)

    def give_gradients_to(self, gradients: Gradients) -> None:
        """Where the node type's parameter gradients go."""
        self._batch.gradients = gradients

    def _at(self, n: int) -> Batch:
        self._batch.nodes = self._nodes[:n]  # type: ignore[assignment]
        return self._batch

    def _ragged(self, x: Any, n: int, memories: list[Ragged]) -> Ragged:
        if not isinstance(x, int):
            return self._rows(x, n)
        key = (x, memories is self._memories)
        whole = memories[x]
        known = self._running.get(key)
        if known is not None and known[0] is whole and len(known[1]) == n:
            return known[1]  # as many sentences as at the step before
        offsets = whole.offsets[: n + 1]
        part = Ragged(whole.values[: int(offsets[-1])], whole.lengths[:n], offsets)
        self._running[key] = (whole, part)
        return part

    def _rows(self, values: Array, n: int) -> Ragged:
        return Ragged(values, self._ones[:n], self._ends[: n + 1])
