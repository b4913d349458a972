"""`Graph`: owns every node of a mini-batch, runs them batched, and differentiates them."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from dynbatch import backend, gc_pause, random
from dynbatch.arguments import float_dtype, integer, switch
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.execution.observer import Wrap
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.batcher.planning.micro_batches import MicroBatches
from dynbatch.batcher.planning.run_plan import Request
from dynbatch.batcher.schedule.ancestors import ancestors, ancestors_with_calls
from dynbatch.batcher.schedule.folds import Folds, compute_again, require_own_readers
from dynbatch.batcher.schedule.policies import Policy, as_policy
from dynbatch.batcher.steps.block import View, freed
from dynbatch.cells.calls.forms import FormIds
from dynbatch.cells.calls.table import CallTable
from dynbatch.debugging.check import Check
from dynbatch.debugging.guard import Guard, PlacedNodes
from dynbatch.errors import DtypeError, FreedError, GraphError, NumericError
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.host_copy import HostCopy
from dynbatch.kernels.runtime import transfer
from dynbatch.memory import Pool
from dynbatch.memory.pool import pool_of
from dynbatch.memory.sizes import parse_bytes
from dynbatch.names import NamesChecked
from dynbatch.nodes.base import Node, not_a_node
from dynbatch.nodes.inner_product import LossSum, gradients_given, seed
from dynbatch.nodes.stream import RandomStreams
from dynbatch.parameter import Array
from dynbatch.reporting import unbatched
from dynbatch.reporting.introspection import Introspection

_uids = itertools.count()

ONE_THREAD = (
    "  rule: a graph is used by one thread at a time\n"
    "  fix:  open a graph in each thread; models may be shared (docs/threads.md)"
)


class Graph(Introspection, NamesChecked):
    """One mini-batch. Nodes are made inside its `with` block; nothing runs until a value is asked.

    Args:
        device: "cpu", or "cuda" for CuPy's current device; parameters must be there too.
        dtype:  of every value, float32 or float64; parameters must have the same.
        policy: how nodes and calls are grouped: "by_bound", "by_agenda", "by_depth", "learned",
            "one_by_one" (see `dynbatch.batcher.schedule.policies`), or a function (see `Policy`).
        grad:   False keeps nothing for backward (inference).
        seed:   of the dropout masks; by default the next of `dynbatch.random`.
        pool:   where the arenas come from.
        check:  True runs every batch a second time and compares: on a GPU with the NumPy twins of
            its kernels, on the CPU with its nodes one by one (see `dynbatch.debugging.check`). The
            first difference ends the run with a CheckError that names node, sentence and numbers.
            For finding errors, not for training: it takes several times as long, waits for the GPU
            after each batch, and makes an upload a batch there.
        guard:  True looks for NaN and infinity after each batch; the first, of a value or of a
            gradient, ends the run with a NumericError that names the node that made it, its line,
            its sentence, and what it read (see `dynbatch.debugging.guard`). For finding errors too.
            With `check`, both look at each batch, and the first fault of either ends the run.

    Raises:
        BackendError:  the device is not available.
        DtypeError:    another dtype.
        ArgumentError: unknown policy, or another argument's name or type.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     rows = [F.input(graph, [[1.0, 2.0]] * length) for length in (1, 3)]
        ...     [F.sum(row, dim=0).value.tolist() for row in rows]
        [[1.0, 2.0], [3.0, 6.0]]
    """

    is_trace = False

    def __init__(
        self,
        device: str | backend.Device = "cpu",
        dtype: Any = "float32",
        policy: str | Policy = "by_bound",
        grad: bool = True,
        seed: int | None = None,
        pool: Pool | None = None,
        check: bool = False,
        guard: bool = False,
    ) -> None:
        self.device = backend.device(device)
        self.dtype = float_dtype(self, dtype)
        self.uid = next(_uids)
        self.grad = switch(self, "grad", grad)
        check, guard = switch(self, "check", check), switch(self, "guard", guard)
        self.policy = as_policy(policy)
        self.seed = random.next_seed() if seed is None else integer(self, "seed", seed) & 0xFFFFFFFF
        self._nodes: list[Node] = []
        self._pending: list[Node] = []
        self._folds = Folds()
        self._kept: dict[int, Node] = {}
        self._kept_then: frozenset[int] = frozenset()  # in the last backward
        self._final: dict[int, Array] = {}
        self._losses: dict[int, HostCopy] = {}
        self._backwards: list[tuple[int, int]] = []  # batch steps before each, and its loss
        self._streams = RandomStreams(self.seed)
        self.tables: list[CallTable] = []
        self.totals: dict[int, Any] = {}  # by the nodes that are a part of each
        self.kinds = FormIds()
        self.programs: dict[Any, Any] = {}
        self.inlined: dict[Any, Any] = {}  # calls that are not nodes of their own, and parameters
        self._runner: dict[str, int] = {}  # the thread in which it runs now
        self._num_regions = 0
        observers: list[Wrap] = [Check] if check else []
        if guard:
            places: dict[int, str] = {}
            self._nodes = PlacedNodes(places)
            observers.append(partial(Guard, places=places))
        pool = pool or pool_of(self.device)
        self._executor = Executor(self.device, self.dtype, self.policy, pool, grad, observers)
        self._differentiated = False
        self._closed = False
        self._begin = time.perf_counter()

    def __enter__(self) -> Self:
        gc_pause.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        finally:
            gc_pause.leave()

    def close(self) -> None:
        """Free every node and give the memory back. Kept values and the loss stay readable.

        Warns with `errors.BatchingWarning`, once a process, if many nodes ran almost one by one.
        """
        if self._closed:
            return
        self._begin_run("close")
        try:
            self._keep_values()
        finally:
            self._runner.clear()
            self._closed = True
            self._executor.close()
            self._nodes.clear()
            self._pending.clear()
            self._kept.clear()
            self._folds.clear()
            self._streams.clear()
            for table in self.tables:
                table.close()
            self.tables.clear()
            self.totals.clear()
            self.programs.clear()
            self.inlined.clear()
        if sys.exc_info()[0] is None and unbatched.is_unbatched(self.statistics, self.plans):
            unbatched.warn(self._record())

    def _keep_values(self) -> None:
        """Copy kept values out of the arenas."""
        kept = [
            node
            for index, node in self._kept.items()
            if index not in self._final
            and index not in self._losses
            and node._block is not None
            and node._block.array is not None
        ]
        values = [node._block.node_values(node) for node in kept]
        try:
            copies = arrays.snapshots(values)
        except MemoryError:  # of a GPU: then the host keeps them
            copies = [arrays.download(value) for value in values]
        self._executor.flush()
        self._final.update(zip([node.index for node in kept], copies, strict=True))

    # Running --------------------------------------------------------------------------------------

    def forward(self) -> None:
        """Compute every node that has not been computed, batched."""
        self._open("forward")
        self._run(self._ancestors(self._waiting()))

    def backward(
        self,
        loss: Node | Sequence[Node],
        memory_limit: int | str | None = None,
        gradient: Any = None,
    ) -> None:
        """Add d loss / d parameter to every parameter's `grad`; runs forward where needed.

        Forward and backward are planned together, so that everything backward does not read is
        freed on the way. After it, values are gone except the loss and nodes marked `keep()`.

        Args:
            loss:         a scalar; or a node of any shape with its `gradient`, or several of these,
                which are kept then.
            memory_limit: the most that the graph's arenas may take, in bytes or as "2GiB". If the
                run would take more, it frees values after forward and makes them again in backward;
                if that is not enough, the mini-batch runs in parts, whose gradients add up. The
                result is the same but for rounding. `memory_use.saving` says what was done.
            gradient:     where backward starts from: an array of the node's shape, or one for each
                of several nodes; None stands for a scalar's 1. What is added to `grad` then is
                Σ_i g_i · d y_i / d parameter, a vector-Jacobian product, as by
                `torch.autograd.backward`.

        Raises:
            MemoryLimitError: nothing found fits the limit; the error says the least that would.
            ValueError:   `memory_limit` is not a number of bytes.
            ShapeError:   the loss is not a scalar and has no gradient, or one of another shape.
            NumericError: the loss is NaN or infinite; no parameter's gradient is touched. A GPU is
                not waited for: there the error comes when the loss's value is read. Or a gradient
                that was given is not finite; the value of its node may be.
            OutOfMemory, BackendError: a GPU has no memory left, or failed. Nothing has been run;
                of parameters whose gradient was being added to it is forgotten.
            GraphError:   the graph is closed, or was made with grad=False; a node is of another
                graph.
            NoGradientError: the loss depends on no parameter that is trained, and on no kept node,
                in a graph that reads parameters.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     x = F.input(graph, [1.0, 2.0]).keep()
            ...     graph.backward(x * x, gradient=[1.0, 10.0])
            ...     x.gradient.tolist()
            [2.0, 40.0]
        """
        self._open("backward")
        count = len(self._nodes)
        start, outputs = self._start(loss, gradient)
        try:
            request = self._request(start, memory_limit, outputs)
            self._begin_run("backward")
            try:
                self._differentiate(start, outputs, request)
            finally:
                self._runner.clear()
        except BaseException:
            if outputs and start._block is None:
                self._forget(start, count)
            raise

    def _start(self, loss: Node | Sequence[Node], gradient: Any) -> tuple[Node, Sequence[Node]]:
        """The scalar that backward starts from, and the nodes it is made of if they were given."""
        if not self.grad:
            raise GraphError("backward: this graph was made with grad=False.")
        several = isinstance(loss, list | tuple)
        outputs: Sequence[Any] = loss if isinstance(loss, list | tuple) else [loss]
        gradients = gradient if several and gradient is not None else [gradient] * len(outputs)
        given = gradients_given(self, outputs, gradients)
        if gradient is None and not several:
            start = outputs[0]
            if start.is_alias and isinstance(start._block, View):
                start._block = None  # it is computed again, with memory and a gradient of its own
            return start, ()
        return seed(outputs, given, are_losses=gradient is None), outputs

    def _differentiate(self, start: Node, outputs: Sequence[Node], request: Request) -> None:
        self._backwards.append((len(self._executor.steps), start.index))
        self._executor.run(request)
        value = start._block.node_values(start)
        try:
            later = HostCopy(value) if self.device.is_cuda else None
        except BaseException:
            self._executor.undo()
            raise
        self._finish(add_gradients=later is not None or math.isfinite(value.item()))
        if later is not None:
            self._losses[start.index] = later
        else:
            _require_finite(start, value, "no gradient was added")
            self._final[start.index] = value.copy()
        for node in (start, *outputs):
            self._kept.setdefault(node.index, node)
        self._differentiated = True
        self._kept_then = frozenset(self._kept)

    def _forget(self, node: Node, count: int) -> None:
        """Have `count` nodes again: `node` was made for a backward that did not come."""
        del self._nodes[count:]
        self._pending = [one for one in self._pending if one is not node]
        self._backwards = [pair for pair in self._backwards if pair[1] != node.index]

    def _request(
        self, loss: Node, memory_limit: int | str | None, outputs: Sequence[Node] = ()
    ) -> Request:
        """What `backward` asks of the executor; the values of `outputs` outlive it."""
        kept = [*self._kept.values(), loss, *outputs]
        ends = outputs or [loss]
        if not self._kept.keys().isdisjoint([node.index for node in ends]):
            ends = ()
        alone = [node for node in self._kept.values() if node._block is None]
        limit = None if memory_limit is None else parse_bytes("memory_limit", memory_limit)
        if loss._block is not None:
            why = f"{loss.label()} was computed before, and values stay: call backward first"
            nodes = self._ancestors(alone)
            return Request(
                lambda count: [nodes], loss, kept, limit, ends, self._nodes, lambda: (1, why)
            )
        units: list[MicroBatches] = []

        def parts(count: int) -> Iterator[list[Node]]:
            for targets in units[0].parts(count) if count > 1 else ():
                yield self._ancestors(targets)
            yield self._ancestors([loss, *alone])

        def most_parts() -> tuple[int, str]:
            if not units:
                units.append(MicroBatches(self._nodes, loss, alone))
            return len(units[0]), units[0].reason

        return Request(parts, loss, kept, limit, ends, self._nodes, most_parts)

    def _run(self, nodes: list[Node]) -> None:
        self._begin_run("a run")
        try:
            if nodes:
                self._executor.run(Request(lambda count: [nodes], kept=list(self._kept.values())))
                self._finish()
        finally:
            self._runner.clear()

    def _begin_run(self, what: str) -> None:
        """Refuse to run beside another thread; at its end the caller clears `_runner`."""
        thread = threading.get_ident()
        if self._runner.setdefault("thread", thread) != thread:
            raise self._is_running(what)

    def _is_running(self, what: str) -> GraphError:
        return GraphError(f"{what}: the graph is running in another thread.\n{ONE_THREAD}")

    def _waiting(self) -> list[Node]:
        """All that has not been computed, but what only others compute with."""
        folded, kept = self._folds.readers_of, self._kept
        nodes = [n for n in self._pending if n.index not in folded or n.index in kept]
        calls = [call for table in self.tables for call in table.waiting()]
        return [*nodes, *calls]

    def _finish(self, add_gradients: bool = False) -> None:
        self._executor.finish(add_gradients)
        self._pending = [node for node in self._pending if node._block is None]

    def _ancestors(self, targets: list[Node]) -> list[Node]:
        """Uncomputed nodes that the targets need, in a topological order; calls as regions."""
        begin = time.perf_counter()
        if self.tables:
            found = ancestors_with_calls(targets, self._folds, self._kept, self.tables, self.policy)
        else:
            found = ancestors(targets, self._folds, self._kept)
        self.statistics.host_seconds += time.perf_counter() - begin
        return found

    # What nodes ask -------------------------------------------------------------------------------

    def add_light(self, node: Node) -> int:
        """Own a node that runs only if someone reads it; its index is as of `add`."""
        if self._closed:
            self._open(type(node).__name__)
        index = len(self._nodes)
        self._nodes.append(node)
        if self._nodes[index] is not node:
            raise self._two_at_once(node)
        return index

    @property
    def nodes(self) -> list[Node]:
        """All nodes in creation order."""
        return self._nodes

    def number_of_region(self) -> int:
        """An index for a node that runs calls: negative, since it is none of the nodes."""
        self._num_regions += 1
        return -self._num_regions

    def add_table(self, table: CallTable) -> None:
        """Own the calls of a cell."""
        self._open(f"cell {table.cell.__name__!r}")
        self.tables.append(table)

    def add(self, node: Node) -> int:
        """Own a node; its index is its place in creation order."""
        self._open(type(node).__name__)
        index = len(self._nodes)
        self._nodes.append(node)
        if self._nodes[index] is not node:
            raise self._two_at_once(node)
        self._pending.append(node)
        return index

    def _two_at_once(self, node: Node) -> GraphError:
        return GraphError.at_caller(
            f"{type(node).__name__}: two threads made a node at once, and the graph is spoilt.\n"
            f"{ONE_THREAD}"
        )

    def absorb(self, node: Node, reader: Node) -> None:
        """`reader` can do without `node`, its one input, which runs only if someone wants it."""
        self._folds.add(node, reader)

    def value(self, node: Node) -> Array:
        """A copy of a node's value; runs every pending node first, after backward what it needs."""
        later = self._losses.get(node.index)
        if later is not None:
            loss = later.read()
            _require_finite(node, loss, "its gradient was added already: zero_grad()")
            return loss.copy()
        final = self._final.get(node.index)
        if final is not None:
            final = self._final[node.index] = arrays.download(final)
            return final.copy()
        return arrays.download(self._computed(node))

    def values(self, nodes: Sequence[Node]) -> list[Array]:
        """Copies of several nodes' values: one run of what they need and no more, one wait.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     graph.values([F.input(graph, [2.0]) * k for k in (1.0, 10.0)])
            [array([2.], dtype=float32), array([20.], dtype=float32)]
        """
        self._open("values")
        for node in nodes:
            if not isinstance(node, Node):
                raise not_a_node("values", node)
            if node.graph is not self:
                raise GraphError(f"values: {node!r} belongs to another graph.")
        ended = self._final.keys() | self._losses.keys()
        alive = [node for node in nodes if node.index not in ended]
        self._run(self._ancestors(alive))
        found = iter(self._download([node._block.node_values(node) for node in alive]))
        return [self.value(node) if node.index in ended else next(found) for node in nodes]

    def _download(self, values: Sequence[Array]) -> list[Array]:
        if not values:
            return []
        packed = arrays.pack(values)
        self._executor.flush()
        return arrays.split(transfer.to_host(packed), [value.shape for value in values])

    def device_value(self, node: Node) -> Array:
        """A copy of a node's value where the graph is, which outlives it; nothing is waited for."""
        array = self._final.get(node.index)
        if array is None:
            array = self.value(node) if self._closed else self._computed(node)
        return self._copied(array)

    def _computed(self, node: Node) -> Array:
        """A node's value in the arena, after a run where it needs one."""
        self._open(f"value of {node.label()}")
        if node._block is None:
            if self._folds.is_lost(node):
                raise freed(node)
            # After backward other nodes may wait in vain for values that were freed.
            self._run(self._ancestors([node] if self._differentiated else [*self._waiting(), node]))
        elif self._runner.get("thread", threading.get_ident()) != threading.get_ident():
            raise self._is_running(f"value of {node.label()}")  # its place is known, no numbers yet
        values: Array = node._block.node_values(node)
        return values

    def _copied(self, array: Array) -> Array:
        copied = arrays.snapshot(transfer.to_device(array, self.device))
        self._executor.flush()
        return copied

    def gradient(self, node: Node) -> Array:
        """A copy of d loss / d node, for a kept node after backward; 0 where it does not matter."""
        return arrays.download(self._gradient_of(node))

    def device_gradient(self, node: Node) -> Array:
        """The same where the graph is; nothing is waited for."""
        return self._copied(self._gradient_of(node))

    def _gradient_of(self, node: Node) -> Array:
        """In the arena, or zeros of the host."""
        self._open(f"gradient of {node.label()}")
        block = node._block
        if block is None or block.gradient is None:
            if node.index in self._kept_then:
                return np.zeros(node.shape, self.dtype)
            raise FreedError(
                f"{node.label()}: no gradient is kept for it.\n"
                "  fix:  call node.keep() before graph.backward(loss)"
            )
        gradient: Array = block.node_gradient(node)
        return gradient

    def keep(self, node: Node) -> None:
        """Keep a node's value and gradient readable after backward."""
        self._open("keep")
        if node.index not in self._kept:
            require_own_readers(node, self.totals, self.tables)
            self._kept[node.index] = node
            around = list(self._folds.around(node, self.tables))
            if around:
                self._pending += compute_again(around, self._nodes)

    def stream(self, node: Node) -> int:
        """A 32-bit number for a node's random draws: the same whatever else is in the batch."""
        return self._streams.of(node)

    def sentence(self, node: Node) -> int | None:
        """Which sentence a node belongs to, counted from 0: its part of the graph."""
        return self._streams.sentence(node, self._nodes)

    def estimate(
        self,
        loss: Node | Sequence[Node] | None = None,
        memory_limit: int | str | None = None,
        gradient: Any = None,
    ) -> MemoryUse:
        """The memory that `backward` would take, or without a loss `forward()`.

        It is planned as the run would be, and equals what is measured then: `peak_bytes` becomes
        its peak, unless an earlier run of the graph held more. No kernel runs, nothing is
        allocated, and the graph is as it was.

        Raises:
            ShapeError, GraphError, OutOfMemory, ValueError: as `backward`.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     loss = F.sum(F.tanh(F.input(graph, [[1.0, 2.0]] * 3)))
            ...     planned = graph.estimate(loss).peak_bytes
            ...     graph.backward(loss)
            ...     planned == graph.peak_bytes
            True
        """
        self._open("estimate")
        spent = self.statistics.host_seconds
        try:
            return self._estimate(loss, memory_limit, gradient)
        finally:
            self.statistics.host_seconds = spent  # which are of runs

    def _estimate(
        self, loss: Node | Sequence[Node] | None, memory_limit: int | str | None, gradient: Any
    ) -> MemoryUse:
        if loss is None:
            nodes = self._ancestors(self._waiting())
            return self._executor.estimate(Request(lambda count: [nodes]))
        count = len(self._nodes)
        start, outputs = self._start(loss, gradient)
        try:
            return self._executor.estimate(self._request(start, memory_limit, outputs))
        finally:
            if outputs:
                self._forget(start, count)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise DtypeError.at_caller(
            f"{self!r} cannot be copied or pickled.\n"
            "  rule: a graph is one mini-batch of this process, and ends with its `with` block\n"
            "  fix:  store values, node.value, or the model's state_dict(); graph.dump(path) "
            "writes\n        what a graph is made of"
        )

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._nodes)} nodes"
        return f"Graph({state}, {self.dtype}, {len(self._executor.plans)} runs)"

    def _open(self, what: str) -> None:
        if self._closed:
            raise GraphError(
                f"{what}: the graph is closed; its nodes ended with the `with` block.\n"
                "  fix:  build, run and read inside the block; after it only the loss and kept\n"
                "        nodes can be read"
            )


def _require_finite(loss: Node, value: Array, state: str) -> None:
    if not math.isfinite(value.item()):
        what = "the sum of the losses" if type(loss) is LossSum else "the loss"
        raise NumericError(
            f"{loss.label()}: {what} is {value.item()}; {state}.\n"
            "  fix:  lower the learning rate, clip gradients, or look for log(0) and 0/0;\n"
            "        db.Graph(guard=True) names the node and the sentence it came from"
        )
