"""`scan`: a cell's loop over the tokens of one sentence; `Scan` runs it for all sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

import numpy as np

from dynbatch.arguments import switch
from dynbatch.cells.cell import Cell
from dynbatch.cells.flops import backward_flops, forward_flops
from dynbatch.cells.scan.arguments import (
    ScanForm,
    as_memories,
    as_sentences,
    as_state,
    as_steps,
    form_of,
    shape_of,
    steps_of_matrices,
)
from dynbatch.cells.scan.backward import ScanBackward
from dynbatch.cells.scan.by_sentence import SentenceRun
from dynbatch.cells.scan.cuda.run import DeviceScanRun
from dynbatch.cells.scan.plain import plain_scan
from dynbatch.cells.scan.prefix import choices, sqrt_steps
from dynbatch.cells.scan.run import ScanRun, lengths_of
from dynbatch.compiler.arrays import elements_of
from dynbatch.compiler.compiled import CompiledCell
from dynbatch.compiler.prologue import Prologue
from dynbatch.errors import DtypeError
from dynbatch.indexing import repeat
from dynbatch.kernels.runtime.tasks import Written
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.node import ROWS, Node, Owner, Shape
from dynbatch.nodes.operation import INDEX_BYTES, Operation, Retain
from dynbatch.nodes.plain import is_plain
from dynbatch.nodes.shape.reshape import reshape
from dynbatch.nodes.shape.structure import port_of
from dynbatch.nodes.signature import intern_signature
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged

# Of the prefix layout: the order; a sentence's number and length.
TABLES_A_TOKEN, TABLES_A_SENTENCE = 1, 2


class Scan(Operation):
    """The recurrence of a cell along one sentence.

    recompute: steps of a chunk, "sqrt", or 0; see `dynbatch.cells.scan.prefix`.
    Inputs: the program's streams (T, D), then initial state parts that are not zero, then vectors
        that stay the same, which are parts of the state too, then memories.
    Value:  the program's exports side by side, (T, ΣE). Ports: the state after the last token.
    Shape:  streams (T, D), states (H,), memories (M, E) -> (T, ΣE).
    Batches with:  every other Scan of the same compiled cell, direction, kinds of initial state and
        `recompute`.
    Kernels:  generated for its cell: a loop over the steps in NumPy or C; on a GPU one or two a
        step, beside the products of states with weights.
    """

    __slots__ = ("cell", "given_states", "length", "recompute", "reverse", "uid")
    static = ("uid", "reverse", "given_states", "recompute")
    retains = Retain(inputs=True)
    recomputes = True
    writes_tasks = True
    cell: CompiledCell
    uid: int
    reverse: bool
    given_states: tuple[bool, ...]
    length: int
    recompute: int | str

    def infer_shape(self, *shapes: Shape) -> Shape:
        return (self.length, self.cell.program.width)

    def signature(self) -> int:
        # The compiled cell fixes all widths and parameters.
        key = (Scan, self.uid, self.reverse, self.given_states, self.recompute)
        return intern_signature(key)

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["compiled cell", "reverse", "given initial states", "recompute"]

    def all_parameters(self) -> tuple[Parameter, ...]:
        return self.cell.parameters

    def port_widths(self) -> tuple[int, ...]:
        return tuple([state.width for state in self.cell.program.states])

    @classmethod
    def memory_rows(cls, batch: Batch) -> list[int]:
        """The rows of each memory, of all sentences."""
        first = batch.first
        begin = len(first.inputs) - len(first.cell.program.memories)
        return [sum(batch.input_rows(number)) for number in range(begin, len(first.inputs))]

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        batch = sizes.batch
        return forward_flops(batch.first.cell, sizes.rows, cls._rows_read(batch), batch.dtype)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        batch = sizes.batch
        streams = [k for k in range(len(batch.first.cell.program.streams)) if wanted[k]]
        memories = cls._rows_read(batch)
        return backward_flops(batch.first.cell, sizes.rows, memories, batch.dtype, streams)

    @staticmethod
    def _rows_read(batch: Batch) -> list[list[int]]:
        first = batch.first
        begin = len(first.inputs) - len(first.cell.program.memories)
        places = range(begin, len(first.inputs))
        lengths = batch.lengths if places else []
        return [repeat(batch.input_rows(number), lengths).tolist() for number in places]

    @classmethod
    def recompute_of(cls, nodes: Sequence[Scan]) -> int:
        steps = nodes[0].recompute
        if steps != "sqrt":
            return int(steps)
        return sqrt_steps(np.array([node.length for node in nodes]))

    @classmethod
    def recompute_choices(cls, batch: Batch) -> list[int]:
        return choices(lengths_of(batch))

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return _runner(batch).saved(batch)

    @classmethod
    def narrow_saved(cls, batch: Batch) -> Collection[str]:
        """The names of the loop's values, but for the states from which it runs again."""
        return () if batch.recompute else batch.first.cell.values_left(batch.device.is_cuda)

    @classmethod
    def read_narrow(cls, batch: Batch) -> Collection[str]:
        runs_in_c = _runner(batch) is ScanRun and not batch.recompute
        return batch.first.cell.in_c.left(batch.dtype) if runs_in_c else ()

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        tokens = int(lengths_of(batch).sum())
        return INDEX_BYTES * (TABLES_A_TOKEN * tokens + TABLES_A_SENTENCE * len(batch.nodes))

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return elements_of(_runner(batch).rooms(batch, backward=False))

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return elements_of(_runner(batch).rooms(batch, backward=True))

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> Written:
        run = _runner(batch)(batch, y, xs)
        batch.memo["run"] = run
        return run.forward(y)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> Written:
        run: ScanRun | DeviceScanRun = batch.memo["run"]
        if isinstance(run, SentenceRun | DeviceScanRun):
            return run.backward(batch, dy, dxs)
        return ScanBackward(run, batch, dy, dxs).run()


def _runner(batch: Batch) -> type[ScanRun] | type[DeviceScanRun]:
    if batch.device.is_cuda:
        return DeviceScanRun
    return SentenceRun if SentenceRun.runs(batch.first.cell, batch.dtype) else ScanRun


@dataclass(slots=True)
class ScanKind:
    """The common part of a graph's scans that run one program in one way.

    params: what the cell was compiled with; held, so that its identity stays its own.
    """

    cell: CompiledCell
    given: tuple[bool, ...]
    reverse: bool
    recompute: int | str
    params: object
    width: int
    sig: int

    def scan(self, graph: Owner, inputs: tuple[Node, ...], length: int) -> Scan:
        """A scan of these streams, given states and memories."""
        node = Scan.__new__(Scan)
        node.cell = cell = self.cell
        node.uid = cell.uid
        node.reverse = self.reverse
        node.given_states = self.given
        node.recompute = self.recompute
        node.length = length
        node.complete_as(inputs, graph, 2, length, self.width, ROWS, self.sig)
        return node


State = TypeVar("State")


@overload
def scan(
    cell: Cell[tuple[Any, State]], xs: object, init: object, params: object = ...,
    memory: object = ..., reverse: bool = ..., recompute: int | str | None = ...,
    return_state: Literal[True] = ...,
) -> tuple[Node, State]: ...  # fmt: skip


@overload
def scan(
    cell: Cell[tuple[Any, Any]], xs: object, init: object, params: object = ...,
    memory: object = ..., reverse: bool = ..., recompute: int | str | None = ..., *,
    return_state: Literal[False],
) -> Node: ...  # fmt: skip


def scan(
    cell: Cell[Any],
    xs: object,
    init: object,
    params: object = None,
    memory: object = None,
    reverse: bool = False,
    recompute: int | str | None = None,
    return_state: bool = True,
) -> Any:
    """Run a cell along one sentence.

    Args:
        cell:    a `Cell`.
        xs:      the sentence, (T, D); or a tuple of several with equally many rows, whatever their
                 widths: the cell's first argument is then a tuple of a token of each.
        init:    the first state: a node or parameter, (D,), (d, e) or (H, d, e); a width, or
                 `db.zeros(d, e)`, for zeros; a tuple for several parts.
        params:  what the cell gets as its third argument: a module, a namespace, a dict, a list,
                 a single parameter.
        memory:  what every step of this sentence reads: a matrix node to attend to, or a vector;
                 a tuple for several.
        reverse: run from the last token to the first; outputs stay in the sentence's order.
        recompute: what backward makes again rather than find it kept. None keeps everything that it
                 reads, for an LSTM about seven vectors a token; of a state that is a matrix it is
                 as 16, of a large one as less, and 0 keeps each. A number of steps S keeps the
                 state once in S steps of the longest sentences, and runs forward again S steps at a
                 time; 1 keeps little else than states, "sqrt" takes √T for T tokens a sentence in
                 the mean. Gradients are the same but for rounding.
        return_state: False returns the outputs alone, and makes no nodes of the last state.

    Returns:
        outputs (T, E), and the state after the last step in the form of `init`. A sentence of
        length 0 gives (0, E) and its initial state.

    Raises:
        ShapeError: `xs` is not a matrix, or several of different lengths; a part of `init` is
            none; or the cell breaks its rules (see `cell`).
        DtypeError: `cell` is not a cell, or `xs` or `memory` is not a node.
        GraphError: the cell reads a value, sets a parameter, or uses a node from outside it; or on
            a GPU it has matrices beside weights of its step, or too large for a block.
        ValueError: `recompute` is none of these.

    Source: Chen et al. 2016, arXiv:1604.06174, of keeping one state in √T.
    """
    if not isinstance(cell, Cell):
        raise DtypeError.at_caller(
            f"scan: {cell!r} is not a cell.\n  fix:  decorate the function with @db.cell"
        )
    sentences = as_sentences(xs)
    graph = sentences[0].graph
    parts, single = as_state(init, graph)
    steps = steps_of_matrices(parts) if recompute is None else as_steps(recompute)
    memories = () if memory is None else as_memories(memory)
    nodes = [p for p in parts if isinstance(p, Node)]
    widths: Any = sentences[0].width
    if len(sentences) > 1 or type(xs) is tuple:
        widths = tuple([x.width for x in sentences])
    key = (
        cell, id(params), widths, single,
        tuple([(p.shape,) if isinstance(p, Node) else p for p in parts]) if nodes else parts,
        cell.memory_forms(memories) if memories else (), bool(reverse), steps,
    )  # fmt: skip
    kind = graph.programs.get(key)
    if kind is None:
        states = form_of(parts)
        compiled = cell.compiled(graph, ScanForm(widths, states, single), memories, params)
        if graph.device is not None and graph.device.is_cuda:
            compiled.require_device(cell.__name__, graph.dtype)
        held = [True] * len(compiled.program.held_nodes)
        are_given = tuple([*[isinstance(p, Node) for p in parts], *held])
        sig = intern_signature((Scan, compiled.uid, bool(reverse), are_given, steps))
        width = compiled.program.width
        kind = ScanKind(compiled, are_given, bool(reverse), steps, params, width, sig)
        graph.programs[key] = kind
    if is_plain.get():
        results = plain_scan(
            cell.function, kind.cell, xs, sentences, (parts, single), params, memories, reverse
        )
        return results if return_state else results[0]
    nodes = [p if p.ndim == 1 else reshape(p, (p.rows * p.width,)) for p in nodes]
    if kind.cell.reads_as_given:
        outputs = node = kind.scan(graph, (*sentences, *nodes, *memories), sentences[0].rows)
    else:
        prologue = Prologue(kind.cell, sentences, memories)
        streams, kept = prologue.streams(), prologue.memories()
        node = kind.scan(graph, (*streams, *nodes, *prologue.held(), *kept), sentences[0].rows)
        outputs = prologue.epilogue(node)
    if return_state is not True and not switch("scan", "return_state", return_state):
        return outputs
    widths = [state.width for state in kind.cell.program.states]
    last: tuple[Node, ...] = tuple([port_of(node, k, widths[k]) for k in range(len(parts))])
    if not all([type(part) is int for part in parts]):
        last = tuple([reshape(x, shape_of(p)) for x, p in zip(last, parts, strict=True)])
    return outputs, last[0] if single else last
