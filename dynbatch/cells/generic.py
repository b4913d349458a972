"""Operators of a loop without generated code: each step calls the node type's own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import CPU, Array, Device, DType
from dynbatch.compiler.arrays import memory_rows
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays
from dynbatch.kernels.attention.steps import AttentionSteps
from dynbatch.kernels.rows import add_rows_at, gather_rows
from dynbatch.nodes.batch import Batch, Gradients
from dynbatch.nodes.operation import Operation
from dynbatch.ragged import Ragged


class Lengths(NamedTuple):
    """The attributes of an input from which a node type sizes its arrays."""

    rows: int
    width: int


class StandIn:
    """One sentence's node in one step: the traced node, with this sentence's lengths."""

    def __init__(self, node: Operation, attributes: dict[str, Any], inputs: list[Lengths]) -> None:
        self.__dict__.update(attributes)  # those that are asked for at each step
        self._node = node
        self.inputs = inputs
        self.rows = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


class GenericStep:
    """One operator without generated code in one shard, through all steps.

    If a step's sentences are the first ones, memories are read in place. Values that depend on
    memories alone are then kept, since later steps have fewer sentences.

    Attributes:
        cache: what the node type keeps from step to step.

    Args:
        op:       the operator.
        memories: packed rows of each memory, in the shard's order of sentences.
        sentences: of the shard.
        keeps:    whether backward will follow.
        device:   of the values.
        chosen:   of steps whose sentences are not the first ones in order, or read one memory
            several times: which memories they read.
    """

    def __init__(
        self, op: Op, memories: list[Ragged], sentences: int, dtype: DType, keeps: bool,
        device: Device = CPU,
        chosen: Mapping[int, Array] | None = None,
    ) -> None:  # fmt: skip
        self._kind: type[Operation] = type(op.node)
        self._places = op.memories
        self._accumulates = self._kind.accumulates
        self.memories = memories
        reads_memory = any([memory is not None for memory in self._places])
        self._chosen = chosen if chosen and reads_memory else {}
        self._rows_chosen: dict[tuple[int, int], tuple[Array, list[int]]] = {}
        self._op, self._node = op, op.node
        self._count = len(memories[0]) if reads_memory else sentences
        self._in_c: AttentionSteps | None = None
        self._ones = [1] * sentences
        self._ends = np.arange(sentences + 1)
        self._batch = Batch([op.node], dtype, device)
        self.cache = self._kind.cache_type(sentences)
        self.keeps = keeps  # whether forward keeps values for backward
        self._most = 0  # sentences of the first step that reads memories where they lie
        self._saved: dict[int, dict[str, Array]] = {}
        self._running: dict[tuple[int, bool], tuple[Ragged, Ragged]] = {}
        self.memory_gradients: Sequence[Ragged | None] = []  # None: nobody asks for it

    @cached_property
    def _nodes(self) -> list[StandIn]:
        """A node for each sentence, or each memory; C asks for none."""
        memories, attributes = self.memories, self._node.attributes()
        places = zip(self._op.inputs, self._places, strict=True)
        lengths = [
            [Lengths(1, x.width)] * self._count
            if memory is None
            else [Lengths(rows, x.width) for rows in memories[memory].lengths]
            for x, memory in places
        ]
        return [StandIn(self._node, attributes, list(each)) for each in zip(*lengths, strict=True)]

    def forget(self) -> None:
        """Free the values that forward kept: there will be no backward."""
        self._saved.clear()
        if self._in_c is not None:
            self._in_c.forget()

    def begin(self, first: int, counts: Sequence[int]) -> None:
        """Prepare forward of the steps from `first` on, in C if the operator has such steps.

        Args:
            counts: sentences of each; they are the first ones.
        """
        if self._in_c is None and (scores := self._node.step_scores(self._places)) is not None:
            self._in_c = scores.in_c(self._batch.dtype)
        if self._in_c is not None:
            self._in_c.begin(*self._attended(), first, counts, self.keeps)

    def begin_backward(self, first: int, counts: Sequence[int]) -> None:
        if self._in_c is not None:
            gradients = [self.memory_gradients[x] for x in self._places if x is not None]
            dkeys, dvalues = [None if dx is None else dx.values for dx in gradients]
            keys, values, offsets = self._attended()
            self._in_c.begin_backward(keys, values, offsets, dkeys, dvalues, first, counts)

    def in_c(self, way: int) -> tuple[int, int]:
        """Addresses of forward (0) or backward (1) in C, and of what it gets first."""
        assert self._in_c is not None, "the steps of this operator have no C version"
        return self._in_c.addresses[way], self._in_c.shared

    def _attended(self) -> tuple[Array, Array, Array]:
        keys, values = [self.memories[x] for x in self._places if x is not None]
        return keys.values, values.values, keys.offsets

    def forward(self, t: int, n: int, out: Array, *xs: Any) -> None:
        """y = f(xs) for the n running sentences at step t."""
        if self._in_c is not None:
            self._in_c.forward(t, n, out, xs[0])
            return
        batch = self._at(t, n)
        inputs = [self._ragged(t, x, n) for x in xs]
        batch.inputs = tuple(inputs)
        if self.keeps:
            sizes = self._kind.saved(batch)
            batch.saved = {name: batch.xp.empty(size, batch.dtype) for name, size in sizes.items()}
            self._saved[t] = batch.saved
        if n > self._most or t in self._chosen:
            elements = self._kind.workspace(batch)
            if elements > batch.scratch.size:
                batch.scratch = batch.xp.empty(elements, batch.dtype)
            if t not in self._chosen:
                self._most = n
        self._kind.forward_batch(batch, self._rows(out, n), *inputs)

    def backward(
        self, t: int, n: int, dy: Array, y: Any, xs: tuple[Any, ...], dxs: tuple[Any, ...]
    ) -> None:
        """Overwrite the dxs of values; add to the gradients of memories."""
        if self._in_c is not None:
            self._in_c.backward(t, n, dy, xs[0], dxs[0])
            return
        batch = self._at(t, n)
        batch.inputs = tuple([None if x is None else self._ragged(t, x, n) for x in xs])
        batch.output = None if y is None else self._rows(y, n)
        batch.saved = self._saved.get(t, {})  # kept: another loss may follow
        batch.accumulate = t not in self._chosen
        targets: list[Ragged | None] = []
        added: list[tuple[int, Ragged]] = []
        for position, (x, dx) in enumerate(zip(xs, dxs, strict=True)):
            if self._places[position] is None:
                targets.append(None if dx is None else self._rows(dx, n))
                continue
            if self.memory_gradients[x] is None:
                targets.append(None)
                continue
            if batch.accumulate and position in self._accumulates:
                targets.append(self._gradient(x, n))
                continue
            packed = batch.inputs[position]
            assert packed is not None
            of_step = packed.like(batch.xp.empty(packed.values.shape, batch.dtype))
            targets.append(of_step)
            added.append((x, of_step))
        self._kind.backward_batch(batch, self._rows(dy, n), *targets)
        for x, of_step in added:
            if t in self._chosen:
                rows, _ = self._rows_of(t, x)
                add_rows_at(of_step.values, rows, self.memory_gradients[x].values)  # type: ignore[union-attr]
            else:
                arrays.accumulate(of_step.values, self._gradient(x, n).values)  # type: ignore[union-attr]

    def sum_up(self) -> None:
        """Sum what steps of backward left: those before them follow, with arrays of their own.

        The memories' gradients get the sums at last. Adding them chunk by chunk, several operators
        would add to a memory in an order that depends on the chunks, and so on the mini-batch.
        """
        if self._in_c is not None:
            self._in_c.sum_up()
            self._add_vector(self._in_c)

    def _add_vector(self, steps: AttentionSteps) -> None:
        if self._node.vector is not None:
            self._batch.parameter_gradients().add(self._node.vector, steps.dvector)
            steps.dvector[...] = 0

    def finish(self) -> None:
        """Add the rest of the memories' gradients after the last step of backward."""
        if self._in_c is not None:
            self._in_c.finish()
            self._add_vector(self._in_c)
        elif self._accumulates:
            targets = [None if x is None else self._gradient(x, self._most) for x in self._places]
            self._batch.cache, self._batch.accumulate = self.cache, True
            self._kind.finish(self._batch, *targets)

    def give_gradients_to(self, gradients: Gradients) -> None:
        """Set the receiver of the node type's parameter gradients."""
        self._batch.gradients = gradients

    def _at(self, t: int, n: int) -> Batch:
        batch, chosen = self._batch, self._chosen.get(t)
        batch.keeps = self.keeps
        if chosen is None:
            batch.nodes = self._nodes[:n]
            batch.cache = self.cache
        else:
            batch.nodes = [self._nodes[k] for k in chosen.tolist()]
            batch.cache = self._kind.cache_type(n)  # other memories than those of the step before
        return batch

    def _ragged(self, t: int, x: Any, n: int) -> Ragged:
        if not isinstance(x, int):
            return self._rows(x, n)
        if t not in self._chosen:
            return self._first(x, n, self.memories[x], False)
        rows, lengths = self._rows_of(t, x)
        values = self.memories[x].values
        chosen = self._batch.xp.empty((rows.size, values.shape[1]), self._batch.dtype)
        gather_rows(values, rows, chosen)
        return Ragged(chosen, lengths)

    def _rows_of(self, t: int, x: int) -> tuple[Array, list[int]]:
        if (t, x) not in self._rows_chosen:
            rows, lengths = memory_rows(self.memories[x], self._chosen[t])
            self._rows_chosen[t, x] = (rows, lengths.tolist())
        return self._rows_chosen[t, x]

    def _gradient(self, x: int, n: int) -> Ragged | None:
        whole = self.memory_gradients[x]
        return None if whole is None else self._first(x, n, whole, True)

    def _first(self, x: int, n: int, whole: Ragged, is_gradient: bool) -> Ragged:
        known = self._running.get((x, is_gradient))
        if known is not None and known[0] is whole and len(known[1]) == n:
            return known[1]  # as many sentences as at the step before
        offsets = whole.offsets[: n + 1]
        part = Ragged(whole.values[: int(offsets[-1])], whole.lengths[:n], offsets)
        self._running[x, is_gradient] = (whole, part)
        return part

    def _rows(self, values: Array, n: int) -> Ragged:
        return Ragged(values, self._ones[:n], self._ends[: n + 1])
