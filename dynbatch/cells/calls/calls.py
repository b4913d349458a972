"""`Calls`: how a cell makes its calls, one node each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from dynbatch.cells.calls.arguments import as_argument, as_nodes, form_given, holds_matrix
from dynbatch.cells.calls.call import Call
from dynbatch.cells.calls.compiled_step import NOT_TRACED, StepTrace, trace_step
from dynbatch.cells.calls.forms import Form
from dynbatch.cells.calls.roles import Roles
from dynbatch.cells.calls.table import CalledCell, CallGraph, CallTable
from dynbatch.compiler.recorder import recorded
from dynbatch.compiler.trace import run_traced
from dynbatch.compiler.traced import Traced, check_reads
from dynbatch.errors import DynbatchError
from dynbatch.nodes.node import Owner

CACHED_TRACES = 64


MakeCall: TypeAlias = Callable[[tuple[Any, ...]], Call]
"""Makes a call of a cell's arguments."""

Arity: TypeAlias = tuple[int, int | None, frozenset[int]]
"""The number of values of a call, the position of parameters, and which values hold matrices."""


@cache
def maker(
    num_values: int, params_at: int | None, matrices: frozenset[int]
) -> Callable[..., MakeCall]:
    """A factory: it takes a cell's tables and returns the function that makes its calls.

    A call is one of thousands a mini-batch, so the function is written out for the number of its
    arguments, and knows the table by integers that its values carry (see `call.ValueHandle`). It
    tries the table of the call before first, which stands in the list `latest` beside its key.

    Args:
        matrices: values that are or hold matrices. Calls that share one are given the same object,
            so it is made light once.
    """
    values = [f"a{k}" for k in range(num_values)]
    forms = [f"form{k}" for k in range(num_values)]
    columns = [f"column{k}" for k in range(num_values)]
    taken, keys = values.copy(), [f"{a}.form_id" for a in values]
    other = [f"{key} != {form}" for key, form in zip(keys, forms, strict=True)]
    known = ["table", "form_id", "calls", "phases", "depths", "nodes", *columns, *forms]
    of_table = ["form_id", "calls", "phases", "depths", "nodes"]
    now = ["table", *[f"table.{name}" for name in of_table], "*table.columns", *keys]
    if params_at is not None:
        taken.insert(params_at, "p")
        keys.insert(params_at, "id(p)")
        other.append("p is not params")
        known.append("params")
        now.append("p")
    lines = [
        "def made_with(tables, known, latest, slowly, Call):",
        f"    latest.append((None,) * {len(known)})",
        "    def make(arguments):",
        "        try:",
        f"            {', '.join(taken)}, = arguments",
        *[f"            a{k} = known[id(a{k})]" for k in sorted(matrices)],
        f"            {', '.join(known)} = latest[0]",
        f"            if {' or '.join(other)}:",
        f"                table = tables[{', '.join(keys)},]",
        f"                {', '.join(known)} = latest[0] = {', '.join(now)}",
        "        except (AttributeError, KeyError, ValueError):",
        "            return slowly(arguments)",
        "        depth = ready = 0",
    ]
    for a in values:
        lines += [
            f"        origin = {a}.origin",
            "        if origin is table:",
            f"            if {a}.depth >= depth: depth = {a}.depth + 1",
            f"        elif origin is None and {a}.depths:",
            f"            depth = max(depth, {a}.depths.get(table, -1) + 1)",
            f"        if {a}.ready > ready: ready = {a}.ready",
        ]
    lines += [
        "        call = Call()",  # which has no __init__: quicker than Call.__new__(Call)
        "        call.origin, call.form_id, call.depth = table, form_id, depth",
        "        call.ready, call.row, call.index = ready, len(calls), len(nodes)",
        # From here on there are appends alone: see `CallTable.update`.
        *[f"        {column}.append({a})" for column, a in zip(columns, values, strict=True)],
        "        phases.append(ready)",
        "        depths.append(depth)",
        "        nodes.append(call)",
        "        calls.append(call)",
        "        return call",
        "    return make",
    ]
    namespace: dict[str, Any] = {}
    file = f"{__file__}, calls of {num_values} values"  # inside dynbatch, for those who ask
    exec(compile("\n".join(lines), file, "exec"), namespace)
    made_with: Callable[..., MakeCall] = namespace["made_with"]
    return made_with


class Calls:
    """The tables of a cell's calls, by the forms of their arguments.

    `make` makes a call of value handles whose table is known. Anything else it leaves to
    `make_slowly`, which makes handles, tables, and errors.

    Several threads may call one cell at once, each in a graph of its own. Keys of different graphs
    differ, since form ids do, and so do identities of what is alive; a graph that closes takes away
    its own entries only.
    """

    def __init__(self, cell: CalledCell) -> None:
        self._cell = cell
        self._roles = Roles(cell.function, cell.__name__)
        self.tables: dict[tuple[int, ...], CallTable] = {}
        self._traces: Traced[StepTrace] = Traced(CACHED_TRACES, cell.function)
        # Arguments that hold matrices, as tables record them, by the identity of what was given.
        self._known: dict[int, Any] = {}
        self._makers: dict[Arity, MakeCall] = {}
        self._latest: list[list[tuple[Any, ...]]] = []  # of each maker
        self.make: Callable[[tuple[Any, ...]], Any] = self.make_slowly

    def make_slowly(self, arguments: tuple[Any, ...]) -> Any:
        """Make a call with any arguments that a cell accepts."""
        at, arguments, graph = self._roles.of(arguments)
        values = [value for k, value in enumerate(arguments) if k != at]
        if graph.is_trace:
            return self._inline(arguments, at, graph)
        matrices = frozenset([k for k, value in enumerate(values) if holds_matrix(value)])
        checked: list[Any] = [as_argument(value, graph) for value in values]
        params = None if at is None else arguments[at]
        form_ids = [argument.form_id for argument in checked]
        key = tuple(form_ids if at is None else [*form_ids[:at], id(params), *form_ids[at:]])
        if (self, key) in graph.inlined:
            return self._inline(arguments, at, graph)
        table = self.tables.get(key)
        if table is None:
            forms = [form_given(value) for value in values]
            trace = self._trace(forms, at, params, graph, bool(matrices))
            if not trace.batches:
                result = self._inline(arguments, at, graph)
                if trace is NOT_TRACED:  # so it is not an error
                    self._traces.add(_trace_key(forms, at, graph), params, NOT_TRACED)
                graph.inlined[self, key] = params
                return result
            table = self._add_table(key, trace, forms, at, params, graph)
        for k in matrices:
            value_id = id(values[k])
            if value_id not in self._known:
                self._known[value_id] = checked[k]
                table.known.append(value_id)
            checked[k] = values[k]
        arity = (len(values), at, matrices)
        if arity not in self._makers:
            latest: list[tuple[Any, ...]] = []
            made_with = maker(*arity)
            make = made_with(self.tables, self._known, latest, self.make_slowly, Call)
            self._latest.append(latest)
            self._makers[arity] = make
        make = self.make = self._makers[arity]  # tried first next time
        return make(tuple(checked) if at is None else (*checked[:at], params, *checked[at:]))

    def table_of(self, forms: Sequence[Form], params: object, graph: Any) -> CallTable | None:
        """The table of calls with vectors of these forms, then parameters; None if inlined.

        There need not have been a call of it.
        """
        key = (*[graph.form_ids[form] for form in forms], id(params))
        if key not in self.tables and (self, key) not in graph.inlined:
            trace = self._trace(forms, len(forms), params, graph, matrices=False)
            if trace.batches:
                self._add_table(key, trace, forms, len(forms), params, graph)
        return self.tables.get(key)

    def inlined(self, arguments: tuple[Any, ...]) -> Any:
        """The function's result for these arguments, as nodes of its operators."""
        at, arguments, graph = self._roles.of(arguments)
        return self._inline(arguments, at, graph)

    def _add_table(
        self, key: tuple[int, ...], trace: StepTrace, forms: Sequence[Form], at: int | None,
        params: object, graph: CallGraph,
    ) -> CallTable:  # fmt: skip
        """A graph's table for a trace, made if there is none, which the key finds from now on."""
        shared = [table for table in graph.tables if table.trace is trace]  # of equal parameters
        table = shared[0] if shared else CallTable(self._cell, trace, forms, graph, self._forget)
        if not shared:
            graph.add_table(table)
        self.tables[key] = table
        table.params_at = at
        table.held.append((key, params))
        return table

    def _forget(self, table: CallTable) -> None:
        for key, _ in table.held:
            self.tables.pop(key, None)
        for value_id in table.known:
            self._known.pop(value_id, None)
        for latest in self._latest:
            if latest[0][0] is table:
                latest[0] = (None,) * len(latest[0])

    def _trace(
        self, forms: Sequence[Form], at: int | None, params: object, graph: Owner, matrices: bool
    ) -> StepTrace:
        """The trace for these forms and the present values of `params`.

        NOT_TRACED where a function of matrices cannot be traced: it may still run, if it reads
        their values, say, or depends on their number of rows.
        """
        key = _trace_key(forms, at, graph)
        trace = self._traces.find(key, params)
        if trace is None:
            try:
                made = trace_step(self._cell.function, forms, at, params, graph.dtype)
            except DynbatchError:
                if matrices:
                    return NOT_TRACED
                raise
            trace = self._traces.add(key, params, made)
        check_reads(f"cell {self._cell.__name__!r}", trace.reads, graph)
        return trace

    def _inline(self, arguments: Sequence[object], at: int | None, graph: Owner) -> Any:
        """The function itself: operators as nodes, where a call cannot be one node."""
        nodes = [a if k == at else as_nodes(a, graph) for k, a in enumerate(arguments)]
        params = None if at is None else arguments[at]
        try:
            return run_traced(self._cell.function, nodes, params, graph)
        except (AttributeError, LookupError, TypeError) as error:
            if isinstance(error, DynbatchError) or at is None:
                raise
            nodes[at], _ = recorded(params)  # whose errors tell what is missing
            self._cell.function(*nodes)
            raise


def _trace_key(forms: Sequence[Form], at: int | None, graph: Owner) -> tuple[object, ...]:
    return tuple(forms), at, graph.dtype.char
