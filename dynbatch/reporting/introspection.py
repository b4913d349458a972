"""`Introspection`: a graph's statistics, reports, drawings and dumps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dynbatch.atomic import write_text
from dynbatch.backend import DType
from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.batcher.schedule.folds import Folds
from dynbatch.batcher.schedule.plan import Plan
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.batcher.schedule.schedule import policy_name
from dynbatch.debugging.dump import Writer, runs_of, write
from dynbatch.debugging.unrolled import unrolled
from dynbatch.nodes.node import Node
from dynbatch.reporting.advice import advice_text
from dynbatch.reporting.explain import report
from dynbatch.reporting.graphviz import dot, sentence_nodes, step_numbers
from dynbatch.reporting.last_graphs import GraphSummary
from dynbatch.reporting.page import page
from dynbatch.reporting.profile import FlopCounts, Profile
from dynbatch.reporting.rules import Observed
from dynbatch.reporting.run_record import RunRecord, record_of
from dynbatch.reporting.trace_events import trace

if TYPE_CHECKING:
    from dynbatch.backend import Device, DType
    from dynbatch.batcher.execution.executor import Executor
    from dynbatch.cells.calls.table import CallTable


class Introspection:
    """The part of `Graph` that reports without running anything."""

    device: Device
    dtype: DType
    policy: str | Policy
    matmul: str
    precision: str
    grad: bool
    seed: int
    tables: list[CallTable]
    block_notes: Counter[tuple[str, str]]
    names: dict[int, str]
    _nodes: list[Node]
    _folds: Folds
    _kept: dict[int, Node]
    _backwards: list[tuple[int, int]]
    _executor: Executor
    _begin: float
    _closed: bool
    _num_kept: int
    _summary: GraphSummary
    _graphs_before: tuple[GraphSummary, ...]
    converted_bytes: int

    if TYPE_CHECKING:

        @property
        def nodes(self) -> list[Node]: ...

    _require_open: Callable[[str], None]

    @property
    def statistics(self) -> GraphStatistics:
        """Launches, batches, bytes and seconds of everything run so far."""
        return self._executor.statistics

    @property
    def peak_bytes(self) -> int:
        return self._executor.statistics.peak_bytes

    @property
    def memory_use(self) -> MemoryUse:
        """The memory of the run that held most, stage by stage and by cause."""
        return self._executor.memory_use()

    @property
    def lower_bound(self) -> int:
        """The fewest batches possible for all nodes run so far, had they run at once and in one
        part, whatever was read in between; compare `statistics.batches`."""
        return self._record().lower_bound

    @property
    def plans(self) -> list[Plan]:
        return self._executor.plans

    def explain(
        self,
        html: str | os.PathLike[str] | None = None,
        advice: bool = False,
        full: bool = False,
    ) -> str:
        """A table of the batches run so far: node type, size, rows, copies, launches and times; and
        below it those of one type that ran apart, and what kept them apart. What stands out, and
        its fix, is on the first lines: it is told by counts of this graph and of the thread's last
        ones, by no time.

        The report fits a screen: of more than 16 batches those of one signature share a line, which
        has their sums, and where that is not enough those of one kind; of remarks and reasons there
        are six of each.

        Above it stand the number of batches, the fewest possible (lower bound), the mean batch, and
        the host's share of the runs' time; below it, the names given to nodes of a batch
        (`x.named`), and which blocks are not one node, and why. On a GPU all times are the host's.
        A closed graph explains as well.

        Args:
            html:   also write a page to this file, with the runs on a timeline. It opens offline,
                    and is replaced whole or not at all.
            advice: end with what to change, in order of what it would bring. Ask it of a second or
                    later training step: the first one also compiles and plans.
            full:   a line for each batch, and every remark and reason.

        Raises:
            OSError: the page cannot be written.
        """
        record = self._record()
        observed = self._observed()
        if html is not None:
            write_text(html, page(record))
        table = report(record, observed, full)
        if self._executor.is_observed:
            table += "\ncheck=True or guard=True: the kernels' time is that of the checks too"
        return f"{table}\n\n{self.advice()}" if advice else table

    def flops(self) -> FlopCounts:
        """The floating-point operations of everything run so far, forward and backward, by type.

        An addition counts 1, and so does a multiplication:

        - a matrix product of (m, k) by (k, n) counts 2 m n k; so do convolutions (`F.windows` and a
          linear map), each weight of an LSTM's or another cell's step, and the two products of
          attention, for every pair of a query and a key, whether a mask hides it or not;
        - in backward a linear map takes 2 m n k for its weight's gradient, if that is trained, and
          as much for its input's, if that is wanted; attention four products instead of two;
        - every other function counts 1 for each element that it writes or, as a sum does, reads, be
          it an addition, a tanh, a softmax or a norm; a bias 1 for each element it is added to.

        Not counted: copies, look-ups and other moves; the sums of gradients that several readers
        leave; what backward or `memory_limit` computes a second time; attention to the cached keys
        of generation; the optimizer. PyTorch's `FlopCounterMode` counts products only:
        compare `products` with it.

        A closed graph can be asked as well.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import models
            >>> from dynbatch import nodes as F
            >>> linear = models.Linear(4, 3)
            >>> with db.Graph() as graph:
            ...     x = F.input(graph, [[1.0, 2.0, 3.0, 4.0]] * 5)
            ...     graph.backward(F.sum(linear(x)))
            >>> graph.flops().by_type["LinearMap"]
            TypeFlops(forward=Flops(products=120, elementwise=15), \
backward=Flops(products=120, elementwise=15))
        """
        return FlopCounts.of(self.profile())

    def profile(self) -> Profile:
        """Time, operations and bytes of everything run so far, by node type; `print` shows a table.

        Types are named as in `explain`, a block's with the block's name. On a GPU, which is not
        waited for, seconds are those of the launches, and there are no operations per second. A
        closed graph can be asked as well.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     xs = [F.tanh(F.input(graph, [[1.0, 2.0]] * length)) for length in (3, 1)]
            ...     graph.forward()
            >>> {row.kind: (row.batches, row.nodes, row.rows) for row in graph.profile().rows}
            {...'Tanh': (1, 2, 4)...}
        """
        return Profile.of(self._record())

    def advice(self, columns: int = 80) -> str:
        """The advice for a faster step, in order of what each change would bring at most.

        The figures are those of the runs so far; `explain` shows these runs. A closed graph can be
        asked as well.

        Args:
            columns: the most characters of a line, 40 or more.

        Raises:
            ArgumentError: `columns` is not that.
        """
        return advice_text(self._record(), self._observed(), columns)

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the runs' timeline as Chrome trace events (JSON), which ui.perfetto.dev opens.

        A closed graph can be written as well. The file is replaced whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(path, trace(self._record()))

    def to_dot(self, sentence: int | None = None) -> str:
        """The nodes of one sentence, or of all, as Graphviz text, each with the batch it ran in.

        Args:
            sentence: counted from 0 in order of creation, as errors count them: a connected part of
                      the graph. With it come the parameters it reads as nodes. Default: all nodes.

        Raises:
            GraphError: the graph is closed: its nodes are gone.
            ArgumentError: the graph does not have that sentence.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     y = F.tanh(F.input(graph, [1.0, 2.0]))
            ...     print(graph.to_dot(sentence=0).splitlines()[-2])
              n0 -> n1;
        """
        self._require_open("to_dot")
        nodes = self.nodes if sentence is None else sentence_nodes(self.nodes, sentence)
        title = repr(self) if sentence is None else f"sentence {sentence}"
        return dot(nodes, step_numbers(self._executor.steps), title)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write the graph, as built so far, to a file from which it can be rebuilt.

        Nodes with their names, attributes and arrays, a block as its operators, parameters' values
        as they are now, what was kept and what was run; no code. `python -m dynbatch.testing path`
        runs it under every policy, `dynbatch.testing.load_graph(path)` gives it back. It works
        after a run that failed, inside the `with` block. The file is replaced whole or not at all.

        Raises:
            GraphError: the graph is closed, or a node holds what cannot be written; it is named.
            OSError:    the file cannot be written.
        """
        self._require_open("dump")
        runs = runs_of(self._executor.plans, self._executor.steps, self._backwards)
        nodes, numbers, folded = unrolled(self.nodes)
        writer = Writer(self.tables, numbers)
        places = [numbers[node] for node in self.nodes]
        named: dict[int, str] = {}  # by place: results of a block may be one node there
        for index, name in self.names.items():
            named.setdefault(places[index], name)
        folds = [(places[node], places[reader]) for node, reader in self._folds.pairs()]
        document = {
            "nodes": writer.nodes(nodes),
            "tables": writer.tables(),
            "device": self.device.name,
            "dtype": self.dtype.name,
            "policy": policy_name(self.policy),
            "grad": self.grad,
            "seed": self.seed,
            "matmul": self.matmul,
            "precision": self.precision,
            "folds": folds + folded,
            "names": list(named.items()),
            "kept": sorted([places[index] for index in self._kept]),
            "runs": [
                places[run] if isinstance(run, int) else [places[index] for index in run]
                for run in runs
            ],
        }
        write(Path(path), document, writer)

    def _record(self) -> RunRecord:
        return record_of(self._executor, self._begin)

    def _note_summary(self, record: RunRecord) -> None:
        """Note for rules that look at several graphs what this one has done so far."""
        self._summary.note(self._graphs_before, record.rows, bool(self._backwards), self.grad)

    def _kept_and_read(self) -> int:
        """The number of kept nodes that other nodes read, where half of all nodes are kept or more;
        else 0, as nobody asks."""
        if 2 * len(self._kept) < len(self._nodes) or not self._kept:
            return 0
        read = {source.index for node in self.nodes for source in node.inputs}
        return len(read.intersection(self._kept))

    def _observed(self) -> Observed:
        """Observations that the record does not have."""
        if not self._closed:
            self._note_summary(self._record())
        return Observed(
            self.block_notes,
            self.memory_use.saving,
            self._executor.is_observed,
            self.dtype == np.float64,
            self._closed,
            self._num_kept if self._closed else self._kept_and_read(),
            self.converted_bytes,
            (self._summary, *self._graphs_before[::-1]),
        )
