"""`Runs`: runs a graph's nodes on demand, and keeps the values that outlive a run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import cast

import numpy as np

from dynbatch.backend import Array, Device, DType
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.execution.repeated import RepeatedRun
from dynbatch.batcher.planning.micro_batches import MicroBatches
from dynbatch.batcher.planning.run_plan import Request
from dynbatch.batcher.schedule.ancestors import ancestors, ancestors_among
from dynbatch.batcher.schedule.folds import out_of_date, require_own_readers
from dynbatch.batcher.schedule.held import Held
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.steps.places import freed
from dynbatch.batcher.steps.preparation import PartNodes
from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.errors import FreedError, GraphError, NumericError
from dynbatch.graph_nodes import ONE_THREAD, OwnedNodes
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime import transfer
from dynbatch.kernels.runtime.stream import HostCopy
from dynbatch.memory.sizes import parse_bytes
from dynbatch.nodes.inner_product import LossSum
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.reporting import last_graphs


class Runs(OwnedNodes):
    """The part of `Graph` that asks an executor for runs, and reads values and gradients.

    Args:
        policy: a name, or a function.
        grad:   whether a backward may come.
    """

    _executor: Executor

    def __init__(
        self, device: Device, dtype: DType, seed: int, policy: str | Policy, grad: bool
    ) -> None:
        super().__init__(device, dtype, seed)
        self.policy = policy
        self.grad = grad
        self.reads_short = not grad
        self._kept: dict[int, Node] = {}
        self._after: list[tuple[Sequence[Node], Callable[..., None]]] = []
        self._kept_then: frozenset[int] = frozenset()  # in the last backward
        self._final: dict[int, Array] = {}
        self._final_gradients: dict[int, Array] = {}
        self._losses: dict[int, HostCopy] = {}
        self._backwards: list[tuple[int, int]] = []  # batch steps before each, and its loss
        self._runner: dict[str, int] = {}  # the thread in which it runs now
        self._differentiated = False
        self._summary, self._graphs_before = last_graphs.begin()
        self._begin = time.perf_counter()

    # What nodes ask -------------------------------------------------------------------------------

    def value(self, node: Node) -> Array:
        """A copy of a node's value; runs pending nodes first, after backward only its ancestors."""
        later = self._losses.get(node.index)
        if later is not None:
            self._summary.waited |= self._summary.is_latest
            loss = later.read()
            _require_finite(node, loss, "its gradient was added already: zero_grad()")
            return loss.copy()
        final = self._final.get(node.index)
        if final is not None:
            final = self._final[node.index] = arrays.download(final)
            return final.copy()
        return arrays.download(self._computed(node))

    def device_value(self, node: Node, starts: bool = True) -> Array:
        """A copy of a node's value on the graph's device, without waiting.

        Args:
            starts: queued work, so that others than dynbatch's kernels may read the copy.
        """
        array = self._final.get(node.index)
        if array is None:
            array = self.value(node) if self._closed else self._computed(node)
        return self._copied(array, starts)

    def gradient(self, node: Node) -> Array:
        """A copy of d loss / d node of a kept node; 0 if the loss does not depend on it."""
        return arrays.download(self._gradient_of(node))

    def device_gradient(self, node: Node) -> Array:
        """A copy of d loss / d node on the graph's device, without waiting."""
        return self._copied(self._gradient_of(node))

    def keep(self, node: Node) -> None:
        """Keep a node's value and gradient readable after backward."""
        self._require_open("keep")
        if node.index not in self._kept:
            require_own_readers(node, self.totals, self.tables)
            self._kept[node.index] = node
            around = list(self._folds.around(node, self.tables))
            if around:
                self._run_again(out_of_date(around, self.nodes))

    def after_run(self, nodes: Sequence[Node], function: Callable[..., None]) -> None:
        """Call `function(*values)` once, after the first run that computes the nodes.

        For state that a run changes, such as running means: a value may be computed twice, for
        less memory, to check it, or not at all. A run that fails, or whose loss is not finite on
        the CPU, calls nothing. The nodes are kept.

        Args:
            function: gets the values in the graph's memory, on its device: to be read, not kept.
        """
        for node in nodes:
            node.keep()
        self._after.append((nodes, function))

    # Running --------------------------------------------------------------------------------------

    def _request(
        self, loss: Node, memory_limit: int | str | None, outputs: Sequence[Node] = ()
    ) -> Request:
        """The run that `backward` requests; the values of `outputs` outlive it."""
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
                lambda count: [PartNodes(nodes)], loss, kept, limit, ends, lambda: self.nodes,
                lambda: (1, why, 0),
            )  # fmt: skip

        @cache
        def micro_batches() -> MicroBatches:
            return MicroBatches(self.nodes, loss, alone)

        def parts(count: int) -> Iterator[PartNodes]:
            for targets, others in micro_batches().parts(count) if count > 1 else ():
                yield PartNodes(self._ancestors(targets, others), targets)
            need_most = count == 1 and self._pending[-1:] == [loss]
            yield PartNodes(self._ancestors([loss], alone, need_most), [loss])

        def most_parts() -> tuple[int, str, int]:
            return len(micro_batches()), micro_batches().reason, micro_batches().largest

        return Request(parts, loss, kept, limit, ends, lambda: self.nodes, most_parts)

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
        self._final_gradients = {start.index: np.ones(start.shape, self.dtype)}  # without a copy
        for node in (start, *outputs):
            self._kept.setdefault(node.index, node)
        self._differentiated = True
        self._kept_then = frozenset(self._kept)
        self._call_after()

    def repeated(self) -> RepeatedRun:
        """The only run so far, to be done again: for what reads more than its nodes' inputs."""
        return self._executor.repeated()

    def _run_targets(self, targets: Sequence[Node]) -> None:
        """Compute some nodes, and nothing that they do not need."""
        nodes, held = self._ancestors(targets), None
        if not self.grad:
            pending = {*self._pending}
            plain = [node for node in nodes if node in pending]
            del pending  # which refers to nodes too
            held = self._held(plain, lists=4)
        self._run(nodes, held)

    def _run(self, nodes: list[Operation], held: Held | None) -> None:
        self._begin_run("a run")
        try:
            if nodes:
                self._executor.run(self._values_request(nodes, held))
                self._finish()
                self._call_after()
        except FreedError:  # names any node of a batch
            read = [x for node in nodes for x in node.inputs if x._block is not None]
            lost = [x for x in read if x._block.array is None]
            if not lost:
                raise
            raise freed(lost[0]) from None
        finally:
            self._runner.clear()

    def _values_request(self, nodes: list[Operation], held: Held | None) -> Request:
        parts = [PartNodes(nodes)]
        staying = () if held is None else held.staying(nodes)
        return Request(lambda count: parts, kept=list(self._kept.values()), staying=staying)

    def _call_after(self) -> None:
        """Make the calls of `after_run` whose nodes are computed."""
        waiting, self._after = self._after, []
        for nodes, function in waiting:
            if all([node._block is not None for node in nodes]):
                function(*[node._block.node_values(node) for node in nodes])
            else:
                self._after.append((nodes, function))

    def _finish(self, add_gradients: bool = False) -> None:
        self._executor.finish(add_gradients)
        self._pending = [node for node in self._pending if node._block is None]

    def _ancestors(
        self, roots: Sequence[Node], others: Sequence[Node] = (), need_most: bool = False
    ) -> list[Operation]:
        """Uncomputed nodes that the targets need, in a topological order; calls as regions.

        Args:
            roots:     targets; those at which backward begins, if it does.
            others:    further ones.
            need_most: whether the targets may be expected to need most of what is not computed.
        """
        begin = time.perf_counter()
        targets = [*roots, *others]
        if need_most and not (self.tables or self._has_light or self._unasked):
            nodes = ancestors_among(self._pending, targets, self._folds, self._kept)
        else:
            for table in self.tables:
                table.update()
            nodes = ancestors(
                targets, self._folds, self._kept, self.tables, self.policy,
                roots if others else None,
            )  # fmt: skip
            for node in nodes if self.tables else ():
                if isinstance(node, RegionNode):
                    node.settle()
        self._executor.statistics.host_seconds += time.perf_counter() - begin
        return nodes

    def _run_again(self, nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Call):
                node.origin.forget_run(node.row)
            else:
                node._block = None
                self._pending.append(node)
        self._pending.sort(key=lambda node: node.index)

    def _held(self, nodes: Sequence[Node], lists: int = 2) -> Held:
        """The nodes that are held among some that have not run; see `Held`."""
        begin = time.perf_counter()
        held = Held(nodes, lists)
        self._executor.statistics.host_seconds += time.perf_counter() - begin
        return held

    def _all_waiting(self) -> tuple[list[Operation], Held | None]:
        """All that is not computed yet, and what its run must leave."""
        if self._unasked:
            lost = self._lost()
            self._pending += [node for node in self._unasked if node not in lost]
            self._pending.sort(key=lambda node: node.index)
            self._unasked = [*lost]
            del lost  # which refers to nodes too
        held = None
        if not self.grad:
            held = self._held(self._pending)  # before another list refers to them
            held.nodes += held.unread
        return self._ancestors(self._unfolded(self._pending)), held

    def _lost(self) -> dict[Node, None]:
        """The nodes that a run passed over and whose inputs have been freed since."""
        lost: dict[Node, None] = {}
        for node in sorted(self._unasked, key=lambda node: node.index):
            if any([x in lost or (x._block and x._block.array is None) for x in node.inputs]):
                lost[node] = None
        return lost

    def _unfolded(self, nodes: Sequence[Node]) -> list[Node]:
        """Some nodes but those that their readers can do without, and the calls that wait."""
        folded, kept = self._folds.readers_of, self._kept
        nodes = [n for n in nodes if n.index not in folded or n.index in kept]
        calls = [call for table in self.tables for call in table.waiting()]
        return [*nodes, *calls]

    def _forget(self, node: Node, count: int) -> None:
        super()._forget(node, count)
        self._backwards = [pair for pair in self._backwards if pair[1] != node.index]

    def _begin_run(self, what: str) -> None:
        """Refuse to run beside another thread; the caller clears `_runner` at the end."""
        thread = threading.get_ident()
        if self._runner.setdefault("thread", thread) != thread:
            raise self._is_running(what)

    def _is_running(self, what: str) -> GraphError:
        return GraphError(f"{what}: the graph is running in another thread.\n{ONE_THREAD}")

    # Reading --------------------------------------------------------------------------------------

    def _computed(self, node: Node) -> Array:
        """A node's value in the arena; runs the node first if necessary."""
        self._require_open(f"value of {node.label()}")
        if node._block is None:
            if self._folds.is_lost(node):
                raise freed(node)
            self._run_for(node)
            self._executor.statistics.lone_runs += 1
        elif self._runner.get("thread", threading.get_ident()) != threading.get_ident():
            raise self._is_running(f"value of {node.label()}")  # its place is known, no numbers yet
        values: Array = node._block.node_values(node)
        return values

    def _run_for(self, node: Node) -> None:
        """Compute a node, and with it all others that somebody holds."""
        # After backward other nodes may wait in vain for values that were freed.
        if self._differentiated:
            self._run_targets([node])
            return
        held = self._held(self._pending)
        has_others = self.tables or self._has_light or self._unasked or self._folds.readers
        if held.needs_all() and not has_others:
            nodes = cast("list[Operation]", self._pending)
        else:
            nodes = self._ancestors([*self._unfolded(held.nodes), node], need_most=True)
        self._run(nodes, None if self.grad else held)
        folded = self._folds.readers_of
        self._unasked += [n for n in self._pending if n.index not in folded]
        self._pending = [n for n in self._pending if n.index in folded]

    def _download(self, values: Sequence[Array]) -> list[Array]:
        if not values:
            return []
        packed = arrays.pack(values)
        self._executor.flush()
        return arrays.split(transfer.to_host(packed), [value.shape for value in values])

    def _copied(self, array: Array, starts: bool = True) -> Array:
        copied = arrays.snapshot(transfer.to_device(array, self.device))
        if starts:
            self._executor.flush()
        return copied

    def _gradient_of(self, node: Node) -> Array:
        """A kept node's gradient, in the arena until the graph is closed, or zeros on the host."""
        if node.index not in self._kept_then:
            self._require_open(f"gradient of {node.label()}")
            raise FreedError(
                f"{node.label()}: its gradient was not kept.\n"
                "  fix:  call node.keep() before graph.backward(loss)"
            )
        final = self._final_gradients.get(node.index)
        if final is not None:
            return final
        if not _has_gradient(node):
            return np.zeros(node.shape, self.dtype)
        gradient: Array = node._block.node_gradient(node)
        return gradient

    def _keep_final(self) -> None:
        """Copy values and gradients of kept nodes out of the arenas."""
        kept = [
            node
            for index, node in self._kept.items()
            if index not in self._final
            and index not in self._losses
            and node._block is not None
            and node._block.array is not None
        ]
        differentiated = [
            node
            for index, node in self._kept.items()
            if index in self._kept_then
            and index not in self._final_gradients
            and _has_gradient(node)
        ]
        if not kept and not differentiated:  # as a rule: the loss has its value already
            self._executor.flush()
            return
        final = [node._block.node_values(node) for node in kept]
        final += [node._block.node_gradient(node) for node in differentiated]
        try:
            copies = arrays.snapshots(final)
        except MemoryError:  # of a GPU: then the host keeps them
            copies = [arrays.download(array) for array in final]
        self._executor.flush()
        values, gradients = copies[: len(kept)], copies[len(kept) :]
        self._final.update(zip([node.index for node in kept], values, strict=True))
        self._final_gradients.update(
            zip([node.index for node in differentiated], gradients, strict=True)
        )


def _has_gradient(node: Node) -> bool:
    return node._block is not None and node._block.gradient is not None


def _require_finite(loss: Node, value: Array, state: str) -> None:
    if not math.isfinite(value.item()):
        what = "the sum of the losses" if type(loss) is LossSum else "the loss"
        raise NumericError(
            f"{loss.label()}: {what} is {value.item()}; {state}.\n"
            "  fix:  lower the learning rate, clip gradients, or look for log(0) and 0/0;\n"
            "        db.Graph(guard=True) names the node and the sentence it came from"
        )
