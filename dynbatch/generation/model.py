"""`Continuation`: a model's functions, as they run on a sentence's next rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import refused
from dynbatch.backend import Array, Device
from dynbatch.blocks.arguments import Arguments, sizes_of
from dynbatch.blocks.block import BlockFunction
from dynbatch.blocks.call import results_of
from dynbatch.blocks.operators import NOTHING
from dynbatch.blocks.program import BlockProgram
from dynbatch.compiler.traced import is_unchanged
from dynbatch.errors import GraphError
from dynbatch.generation.history import History
from dynbatch.generation.pages import Caches
from dynbatch.generation.prepared import PreparedStep, value_of
from dynbatch.generation.recurrences import as_loops
from dynbatch.generation.resumed import CacheSlot, Resumed, SlotKind, resumed
from dynbatch.generation.spare import SpareSentences
from dynbatch.generation.step_rows import StepRows, keep_given
from dynbatch.graph import Graph
from dynbatch.kernels.packed import PackedWeights, packing
from dynbatch.kernels.runtime.precision import FULL, SHORT, of_matmul, of_values
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.memory.pool import pool_of
from dynbatch.named_parameters import graph_dtype
from dynbatch.nodes.node import Node

KEPT_STEPS = 8  # prepared steps that are kept, each for another number of sentences
TRACED = 5  # ids of the sentence that a function is traced with


class Continuation:
    """A model, run on some rows of many sentences.

    A decoder has `logits(graph, ids)`, (T, V) for the token after each of T, or is called so. An
    encoder-decoder has `encode(graph, source)`, a node or several, `decode(graph, ids, *encoded)`
    (T, D), `predict(hidden)`, the logits, `start`, its decoder's first id, and `end`, where it has
    one, the id that ends a sentence.

    Args:
        matmul:    of its graphs (see `Graph`); by default as `precision`.
        precision: of the rows that are kept for later ones, "float32" or "bfloat16".

    Raises:
        ArgumentError: it has none of these; or `precision` is unknown, or its parameters are not
            float32.
        GraphError:    it is not causal, or its operators depend on lengths or on ids.
    """

    def __init__(self, model: Any, matmul: str | None = None, precision: str = FULL) -> None:
        self._model = model
        self._matmul = of_matmul(matmul, precision)
        self.has_source = has_source(model)
        if not self.has_source and not hasattr(model, "logits") and not callable(model):
            raise refused(
                type(model).__name__, "it has no logits, and cannot be called",
                "a decoder has logits(graph, ids) -> (T, V), the scores of the token after each",
                "write that method",
            )  # fmt: skip
        self._block = BlockFunction(decoded_logits if self.has_source else logits_of)
        self._programs: dict[int, Resumed] = {}
        self._kept: tuple[tuple[CacheSlot, ...], int] | None = None  # by the program, and its width
        # By the number of sentences, latest last; and the latest of those that are not kept.
        self._steps: OrderedDict[int, PreparedStep] = OrderedDict()
        self._passing: PreparedStep | None = None
        self._spare: SpareSentences | None = None
        self.device, self.dtype = _place_of(model)
        self._is_short = any([parameter.is_short for parameter in model.parameters()])
        self._precision = of_values(precision, self.dtype, "Engine")
        self.packed: PackedWeights | None = None
        if self._matmul == SHORT and not self.device.is_cuda:
            pool = pool_of(self.device)
            take = partial(pool.take, dtype=np.float32, label="packed weights")
            self.packed = PackedWeights(self._weights, take, pool.give)

    def new_caches(self) -> Caches:
        """Caches for the rows that sentences of its program keep."""
        pool = pool_of(self.device)
        return Caches(self._last.slots, self.dtype, pool, self._precision == SHORT)

    def _weights(self) -> list[Array]:
        return [parameter.value for parameter in self._model.parameters()]

    @property
    def ends(self) -> tuple[int, ...]:
        """The id that ends a sentence of an encoder-decoder that says it."""
        end = getattr(self._model, "end", None) if self.has_source else None
        return (end,) if isinstance(end, int) else ()

    def graph(self) -> Graph:
        graph = Graph(self.device, self.dtype, grad=False, matmul=self._matmul)
        graph.advises = False  # a single request has nothing to batch
        return graph

    def program(self, graph: Graph) -> Resumed:
        """The program for the next rows, as the model is now; it may add nodes to the graph."""
        source = np.zeros(TRACED + 1, np.int64)
        self._last = self._program_of(graph, self._arguments(graph, self._encoded(graph, source)))
        return self._last

    def _encoded(self, graph: Graph, source: Any) -> tuple[Node, ...]:
        return encoded_by(self._model, graph, source) if self.has_source else ()

    def _arguments(self, graph: Graph, memories: Sequence[Node]) -> Arguments:
        return Arguments((graph, self._model, np.zeros(TRACED, np.int64), *memories), {})

    def _program_of(self, graph: Graph, arguments: Arguments) -> Resumed:
        sizes = sizes_of(arguments.nodes, arguments.arrays)
        program = self._block._program(arguments, graph, sizes)
        if not isinstance(program, BlockProgram):
            if not program.is_known:  # it failed: its own error tells more
                self._block.__wrapped__(graph, self._model, *arguments.arrays, *arguments.nodes)
            raise GraphError.at_caller(
                f"{type(self._model).__name__}: {program.reason}.\n"
                "  rule: a function that generates builds the same operators at any length\n"
                "  fix:  decide on lengths and values outside of it"
            )
        known = self._programs.get(program.uid)
        if known is None:
            known = resumed(program)
            kept = tuple(known.slots), known.width
            self._kept = self._kept or kept
            if kept != self._kept:
                raise GraphError.at_caller(
                    f"{type(self._model).__name__} gives rows of other widths, or keeps others,"
                    " than when its engine was made.\n"
                    "  rule: while an engine lives, its model keeps the shapes of its parameters\n"
                    "  fix:  make an engine of the changed model"
                )
            self._programs[program.uid] = known
        return known

    @property
    def begins(self) -> bool:
        """Whether sentences begin with rows of sources, or of parameters, as a first state."""
        return self._last.beginning is not None

    def begin(self, graph: Graph, sources: Sequence[Array | None], caches: Caches) -> list[History]:
        """Encode sources, and keep what the decoder reads of them, and of parameters.

        Raises:
            OutOfMemory: there is no room for it; nothing is held then.
        """
        results = []
        call_type = self._block._call_type
        for encoded in [self._encoded(graph, source) for source in sources]:
            arguments = self._arguments(graph, encoded)
            self._last = self._program_of(graph, arguments)
            program = self._last.beginning
            assert program is not None
            free = program.free_of(sizes_of(arguments.nodes, arguments.arrays))
            results.append(results_of(call_type, program, arguments, free, NOTHING, graph))
        columns = [_joined(column) for column in zip(*results, strict=True)]
        with self._packing_short():
            graph.forward()
        made = iter([value_of(column, graph) for column in columns])
        slots = self._last.slots
        kept = {slot: [None if k is None else next(made) for k in slot.sources] for slot in slots}
        rows = _rows_of_memories(slots, results)
        histories: list[History] = []
        try:
            for of_sentence in rows:
                histories.append(History(caches))
                histories[-1].begin(of_sentence)
            keep_given(caches, histories, kept)
        except BaseException:
            for history in histories:
                history.close()
            raise
        return histories

    def run(self, caches: Caches, rows: Sequence[tuple[Array, History]]) -> Array:
        """The logits (N, V) after the last of each sentence's new ids, whose rows are kept.

        Args:
            rows: of each sentence the new ids, and what it has left before, with room for them.

        Raises:
            OutOfMemory: there is no room to compute in; no sentence is longer then.
            GraphError:  a part was replaced, and the model keeps or gives rows of other widths.
        """
        if not is_unchanged((self._model,), self._last.parameters):
            with self.graph() as graph:  # a parameter was replaced by another object
                self.program(graph)
        ids = np.concatenate([new for new, _ in rows])
        histories = [history for _, history in rows]
        new = np.array([part.size for part, _ in rows], np.int64)
        is_kept = bool((new == 1).all())
        try:
            spare = self._spare_for(len(rows)) if is_kept else ()
            if spare:
                new = np.append(new, np.ones(len(spare), np.int64))
                ids = np.append(ids, np.zeros(len(spare), ids.dtype))
            step = StepRows(caches, [*histories, *spare], new)
            if is_kept:
                with packing(self.packed):
                    logits = self._kept_for(step, new).logits(ids, step)[: len(rows)]
            else:
                self._passing = self._prepared(new, step.memory_rows)
                with self._packing_short():
                    logits = self._passing.logits(ids, step)
                self._passing.close()
                self._passing = None
        except BaseException:
            self.forget_steps()
            raise
        for history, (part, _) in zip(histories, rows, strict=True):
            history.advance(part.size)
        return logits

    def _packing_short(self) -> AbstractContextManager[None]:
        """Let a run that does not come again use what is packed of weights in 16 bits.

        So these do not lie in memory twice: as they are packed and as they were read.
        """
        if self.packed is None or not self._is_short:
            return nullcontext()
        self.packed.renew()
        return packing(self.packed)

    def _spare_for(self, count: int) -> Sequence[History]:
        """Sentences that fill a step which is replayed up to a power of two."""
        further = stream_of(self.device).rows_to_fill(count)
        if not further:
            return ()
        if self._spare is None:
            self._spare = SpareSentences(self.new_caches())
        return self._spare.take(further)

    def _prepared(self, new: Array, room: int) -> PreparedStep:
        graph = self.graph()
        # That of an encoder-decoder was found with its source.
        resumed = self._last if self.has_source else self.program(graph)
        return PreparedStep(graph, resumed, new, room)

    def _kept_for(self, step: StepRows, new: Array) -> PreparedStep:
        """The step with one row of each of so many sentences; only the last one holds memory."""
        count = len(new)
        kept = self._steps.get(count)
        if kept is None or kept.resumed is not self._last or kept.room < step.memory_rows:
            if kept is not None:
                kept.close()
            # Of sentences that come later, memories may be longer.
            kept = self._prepared(new, step.memory_rows + step.memory_rows // 4)
            self._steps[count] = kept
        self._steps.move_to_end(count)
        for number, other in self._steps.items():
            if number != count:
                other.rest()
        if len(self._steps) > KEPT_STEPS:
            self._close(next(iter(self._steps)))
        return kept

    def forget_steps(self) -> None:
        """Give back what is held for steps to come."""
        if self._passing is not None:
            self._passing.close()
            self._passing = None
        while self._steps:
            self._close(next(iter(self._steps)))
        if self._spare is not None:
            self._spare.close()
        if self.packed is not None:
            self.packed.drop()

    def _close(self, count: int) -> None:
        self._steps[count].close()
        del self._steps[count]  # last: until then it can be repeated


def _place_of(model: Any) -> tuple[Device, np.dtype[Any]]:
    parameters = model.parameters()
    common = graph_dtype(parameters)
    dtypes = [common if one._is_fresh else one.dtype for one in parameters]
    devices = [one.device for one in parameters]
    places = list(dict.fromkeys(zip(devices, dtypes, strict=True)))
    if len(places) != 1:
        named = " and ".join([f"{dtype} on {device.name}" for device, dtype in places])
        has = f"parameters {named}" if named else "no parameters"
        raise refused(
            "Engine", f"{type(model).__name__} has {has}",
            "the parameters tell where a model runs and in which dtype, all the same",
            "model.to(device), model.astype(dtype); a model has a parameter or more",
        )  # fmt: skip
    return places[0]


def _joined(column: Sequence[Node]) -> Node:
    """The rows of all sentences, one after the other; a vector is a row."""
    nodes = list(column)
    return F.concat(nodes, dim=0) if nodes[0].ndim == 2 else F.stack(nodes)


def _rows_of_memories(
    slots: Sequence[CacheSlot], results: Sequence[Sequence[Node]]
) -> list[list[int]]:
    ends = accumulate([sum([k is not None for k in slot.sources]) for slot in slots])
    last = [end - 1 for slot, end in zip(slots, ends, strict=True) if slot.kind is SlotKind.KEPT]
    return [[values[k].rows for k in last] for values in results]


def has_source(model: Any) -> bool:
    return hasattr(model, "encode") and hasattr(model, "decode")


def encoded_by(model: Any, graph: Graph, source: ArrayLike) -> tuple[Node, ...]:
    encoded = model.encode(graph, source)
    return encoded if isinstance(encoded, tuple) else (encoded,)


def logits_of(graph: Any, model: Any, ids: Any) -> Any:
    return as_loops(model.logits(graph, ids) if hasattr(model, "logits") else model(graph, ids))


def decoded_logits(graph: Any, model: Any, ids: Any, *memories: Any) -> Any:
    return as_loops(model.predict(model.decode(graph, ids, *memories)))
