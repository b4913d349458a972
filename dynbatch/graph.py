"""`Graph`: owns every node of a mini-batch, runs them batched, and differentiates them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

from dynbatch import backend, gc_pause, random
from dynbatch.arguments import float_dtype, integer, listed, refused, shown, switch
from dynbatch.backend import Array
from dynbatch.batcher.execution.estimate import estimate
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.execution.observer import Wrap
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.schedule.schedule import as_policy
from dynbatch.batcher.steps.block import View
from dynbatch.debugging.check import Check
from dynbatch.debugging.guard import Guard, PlacedNodes
from dynbatch.errors import DtypeError, GraphError
from dynbatch.graph_runs import Runs
from dynbatch.kernels.runtime import precision as precisions
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.memory import Pool
from dynbatch.memory.pool import pool_of
from dynbatch.names import NamesChecked
from dynbatch.nodes.arguments import not_a_node
from dynbatch.nodes.inner_product import gradients_given, seed
from dynbatch.nodes.node import Node
from dynbatch.reporting import last_graphs, unbatched
from dynbatch.reporting.introspection import Introspection
from dynbatch.reporting.run_record import rows_of


class Graph(Runs, Introspection, NamesChecked):
    """One mini-batch. Nodes are made inside its `with` block; nothing runs until a value is asked.

    Args:
        device: "cpu", "cuda:1" for a GPU by its number, or "cuda" for CuPy's current one, which
            a GPU becomes, in its thread, by work there. Parameters must be there too.
        dtype:  of every value, float32 or float64. Numbers take it: an input's with each graph, a
                parameter's with the first that reads it.
        policy: how nodes and calls are grouped: "by_bound", "by_agenda", "by_depth", "learned",
            "one_by_one" (see `dynbatch.batcher.schedule.policies`), or a function (see `Policy`).
        grad:   False keeps nothing for backward (inference): a value is freed after its last reader
            unless a variable, a list or a name holds its node then, or no node reads it.
        seed:   of the dropout masks; by default the next of `dynbatch.random`.
        pool:   where the arenas come from.
        check:  True runs every batch a second time and compares: on a GPU with NumPy's versions of
            its kernels, on the CPU with its nodes one by one (see `dynbatch.debugging.check`). The
            first difference ends the run with a CheckError that names node, sentence and numbers.
            For finding errors, not for training: a run takes several times as long, with many calls
            of cells tens of times, and waits for the GPU after each batch.
        matmul: what factors of matrix products with weights are rounded to, forward and back:
            "float32" (not at all), "tf32" (10 bits of mantissa), or "bfloat16" (7 bits). A GPU
            multiplies rounded factors several times as fast, on its tensor cores, and a processor
            with AVX512_BF16 those of bfloat16 twice as fast. Values, weights, gradients and sums
            stay float32, and nothing else is rounded: no loss, norm, softmax, attention, product
            of two nodes (`F.matmul`) or optimizer. Other processors round as well, more slowly
            than they multiply otherwise, so that the numbers can be tried there; where C kernels
            run, those of bfloat16 have the same bits on all. By default as `precision`.
        precision: what values are rounded to, "float32" (not at all) or "bfloat16": each value
            when its kernel, which computes in float32, has written it. Backward reads what forward
            left in half the memory. float32 stay: parameters and their gradients, the state of
            optimizers, losses, numbers (values without dimensions), statistics, sums inside of
            kernels, the running state of a cell, and gradients of values. No bit of a value depends
            on `memory_limit`, or on the sentences beside one; a gradient's do where a limit has a
            scan run again in parts, as its inner values are not rounded there.
        guard:  True looks for NaN and infinity after each batch. The first one, in a value or in a
            gradient, ends the run with a NumericError that names the node that made it, its line,
            its sentence, and what it read (see `dynbatch.debugging.guard`). With `check=True` too,
            the first fault that either finds ends the run.
        profile: True records on the CPU when each thread had work, for `pictures.timeline` and the
            page of `explain(html=...)`.

    Raises:
        BackendError:  the device is not available, or has no tensor cores for `matmul`.
        DtypeError:    another dtype.
        ArgumentError: unknown policy, `matmul` or `precision`, another argument's name or type, or
            one of the two in a graph of float64.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     rows = [F.input(graph, [[1.0, 2.0]] * length) for length in (1, 3)]
        ...     [F.sum(row, dim=0).value.tolist() for row in rows]
        [[1.0, 2.0], [3.0, 6.0]]
    """

    advises = True
    """Whether `close` may warn: not where the library itself says what runs together."""

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
        matmul: str | None = None,
        profile: bool = False,
        precision: str = FULL,
    ) -> None:
        check, guard = switch(self, "check", check), switch(self, "guard", guard)
        super().__init__(
            device=backend.device(device),
            dtype=float_dtype(self, dtype),
            policy=as_policy(policy),
            grad=switch(self, "grad", grad),
            seed=random.next_seed() if seed is None else integer(self, "seed", seed) & 0xFFFFFFFF,
        )
        self.precision = precisions.of_values(precision, self.dtype)
        matmul = precisions.of_matmul(matmul, self.precision)
        self.matmul = precisions.checked(matmul, self.dtype, self.device)
        pool = pool_of(self.device) if pool is None else pool
        if not isinstance(pool, Pool):
            fix = "leave it out, or give a dynbatch.memory.Pool"
            raise refused("Graph", f"pool is {shown(pool)}", "arenas come from a pool", fix)
        observers: list[Wrap] = [partial(Check, rounds=self.precision != FULL)] if check else []
        if guard:
            places: dict[int, str] = {}
            self._nodes = PlacedNodes(places)
            observers.append(partial(Guard, places=places))
        self._executor = Executor(
            self.device, self.dtype, self.policy, pool, grad, observers, self.matmul,
            switch(self, "profile", profile), self.precision, rows_of,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._gc_pause = gc_pause.raised()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except BaseException:
            self.close()  # once more: an interrupt may have come at any line of it
            raise

    def close(self) -> None:
        """Free every node and give the memory back.

        The loss, and values and gradients of kept nodes, stay readable.

        Warns with `errors.BatchingWarning`, once a process, if many nodes ran almost one by one.
        """
        if self._closed:
            return
        self._num_kept = self._kept_and_read()
        self._begin_run("close")
        try:
            self._keep_final()
        finally:
            self._runner.clear()
            self._executor.close()
            self._kept.clear()
            self._clear()
        statistics, plans = self._executor.statistics, self._executor.plans
        if not self.advises or sys.exc_info()[0] is not None:
            return
        self._note_summary(self._record())
        last_graphs.end(self._summary)
        if statistics.batches >= unbatched.MANY_BATCHES:
            if unbatched.is_unbatched(statistics, plans):
                unbatched.warn(self._record(), self._observed())

    def forward(self) -> None:
        """Compute every node that has not been computed, batched.

        `node.value` leaves out nodes that nobody can ask for, as no variable holds them or a node
        that is made from them.
        """
        self._require_open("forward")
        self._run(*self._all_waiting())

    def backward(
        self,
        loss: Node | Sequence[Node],
        memory_limit: int | str | None = None,
        gradient: Any = None,
    ) -> None:
        """Add d loss / d parameter to every parameter's `grad`; run forward where needed.

        Forward and backward are planned together, so that everything backward does not read is
        freed on the way. Afterwards only the loss and nodes marked `keep()` have values.

        Args:
            loss:         a scalar; or a node of any shape, with its `gradient`; or a list of nodes.
                Nodes in a list, or with a `gradient`, are kept.
            memory_limit: the most that the graph's arenas may take, in bytes or as "2GiB". If the
                run would take more, values are freed after forward and computed again in backward;
                if that is not enough, the mini-batch runs in parts, whose gradients add up. The
                result differs by rounding only. `memory_use.saving` says what was done.
            gradient:     where backward starts from: an array of the node's shape, or for a list
                of nodes a list of arrays. None stands for 1, the gradient of a scalar. Backward
                then adds Σ_i g_i · d y_i / d parameter to `grad`, a vector-Jacobian product, as
                `torch.autograd.backward` does.

        Raises:
            MemoryLimitError: no plan that was found fits the limit; the error says what would.
            ValueError:   `memory_limit` is not a number of bytes.
            ShapeError:   the loss is not a scalar and has no gradient, or one of another shape.
            NumericError: the loss is NaN or infinite, and no parameter's gradient was touched (a
                GPU is not waited for: there the error comes when the loss is read); or `gradient`
                is not finite.
            OutOfMemory, BackendError: a GPU has no memory left, or failed. The graph is as it was
                before; a parameter to whose gradient something was being added has none then.
            GraphError:   the graph is closed, or was made with grad=False; or a node belongs to
                another graph.
            NoGradientError: the loss depends neither on a parameter that is trained nor on a kept
                node.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     x = F.input(graph, [1.0, 2.0]).keep()
            ...     graph.backward(x * x, gradient=[1.0, 10.0])
            ...     x.gradient.tolist()
            [2.0, 40.0]
        """
        self._require_open("backward")
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
        """The scalar that backward starts from, and the given nodes."""
        if not self.grad:
            raise GraphError(
                "backward: this graph was made with grad=False.\n"
                "  fix:  db.Graph(); graph.estimate() without a loss plans what values take"
            )
        if gradient is None and isinstance(loss, Node):
            start: Any = loss
            if start.graph is self and start.rows * start.width == 1:
                if isinstance(start._block, View) and start.is_alias:
                    self._run_again([start])  # with memory and a gradient
                return start, ()
        several = isinstance(loss, list | tuple)
        outputs: Sequence[Any] = loss if isinstance(loss, list | tuple) else [loss]
        gradients = gradient if several and gradient is not None else [gradient] * len(outputs)
        starts = gradients_given(self, outputs, gradients)
        return seed(outputs, starts, are_losses=gradient is None), outputs

    def values(self, nodes: Sequence[Node]) -> list[Array]:
        """Copies of several nodes' values, with one run and one wait.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     graph.values([F.input(graph, [2.0]) * k for k in (1.0, 10.0)])
            [array([2.], dtype=float32), array([20.], dtype=float32)]
        """
        self._require_open("values")
        nodes = listed("values", "nodes", nodes, "give a list of nodes: graph.values([x, y])")
        for node in nodes:
            if not isinstance(node, Node):
                raise not_a_node("values", node)
            if node.graph is not self:
                raise GraphError(f"values: {node!r} belongs to another graph.")
        ended = self._final.keys() | self._losses.keys()
        alive = [node for node in nodes if node.index not in ended]
        self._run_targets(alive)
        values = iter(self._download([node._block.node_values(node) for node in alive]))
        return [self.value(node) if node.index in ended else next(values) for node in nodes]

    def estimate(
        self,
        loss: Node | Sequence[Node] | None = None,
        memory_limit: int | str | None = None,
        gradient: Any = None,
        device: str | backend.Device | None = None,
    ) -> MemoryUse:
        """The memory that `backward` would take, or without a loss `forward()`.

        The run is only planned: no kernel runs, nothing is allocated, and the graph does not
        change. After the run `graph.peak_bytes` equals the estimate's, unless an earlier run of the
        graph held more.

        Args:
            loss, memory_limit, gradient: as in `backward`.
            device: plan for another device, "cuda" say: what this mini-batch would take there, in a
                graph of that device. It is planned as there, and need not be there; nor need CuPy.
                For a GPU kernels are called without memory, so that their tables are counted.

        Raises:
            ShapeError, GraphError, OutOfMemory, ValueError: as in `backward`.
            BackendError: no device has such a name.
            GraphError:   `device` is another than the graph's, and the graph has run, so that part
                of its values have their memory already.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import models
            >>> from dynbatch import nodes as F
            >>> linear = models.Linear(2, 4)
            >>> with db.Graph() as graph:
            ...     loss = F.sum(F.tanh(linear(F.input(graph, [[1.0, 2.0]] * 3))))
            ...     planned = graph.estimate(loss).peak_bytes
            ...     graph.backward(loss)
            ...     planned == graph.peak_bytes
            True
        """
        self._require_open("estimate")
        spent = self.statistics.host_seconds
        try:
            return self._estimate(loss, memory_limit, gradient, self._planned_for(device))
        finally:
            self.statistics.host_seconds = spent  # these are seconds of runs

    def _estimate(
        self,
        loss: Node | Sequence[Node] | None,
        memory_limit: int | str | None,
        gradient: Any,
        device: backend.Device,
    ) -> MemoryUse:
        if loss is None:
            request = self._values_request(*self._all_waiting())
            return estimate(self._executor, request, device)
        count = len(self._nodes)
        start, outputs = self._start(loss, gradient)
        try:
            request = self._request(start, memory_limit, outputs)
            return estimate(self._executor, request, device)
        finally:
            if outputs:
                self._forget(start, count)

    def _planned_for(self, name: str | backend.Device | None) -> backend.Device:
        """The device to plan for; a graph that has run knows its own only."""
        device = self.device if name is None else backend.planned_device(name)
        if device != self.device and self._executor.steps:
            raise GraphError(
                f"estimate: the graph has run on {self.device.name}, and device is {name!r}.\n"
                "  rule: values that are computed have their memory, which differs by device\n"
                "  fix:  estimate before a value is read, or in a graph of its own"
            )
        return device

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise DtypeError.at_caller(
            f"{self!r} cannot be copied or pickled.\n"
            "  rule: a graph is one mini-batch of this process, and ends with its `with` block\n"
            "  fix:  store values, node.value, or the model's state_dict(); graph.dump(path) "
            "writes\n        what a graph is made of"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._nodes)} nodes"
        return f"Graph({state}, {self.dtype}, {len(self._executor.plans)} runs)"
