"""`drive`: sentences that decide on their own values; one batched run serves all that wait.

An instance is a generator: it yields a node and gets its value. All instances go on until each
waits or has ended; then what they wait for is computed together, and they go on.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from types import CodeType, GeneratorType, TracebackType
from typing import Any, TypeAlias, TypeVar

from dynbatch.backend import Array
from dynbatch.cells.calls.results import structure_of
from dynbatch.errors import BackendError, CheckError, DriveError, DtypeError, GraphError
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node

Running: TypeAlias = "GeneratorType[Any, Any, Any]"

Result = TypeVar("Result")

# Rounds, beside one for each node of the graph, in which nothing new may happen.
PATIENCE = 1000

NAMED_FAILURES = 8


def drive(graph: Graph, instances: Iterable[Generator[Any, Any, Result]]) -> list[Result]:
    """Run all instances to their end; each round computes in one run the values they wait for.

    An instance is a generator over one sentence. It yields a node, a tuple, list or dict of nodes,
    or what a call of a cell returned, and gets the value, or a tuple, list or dict of values, as
    NumPy arrays. Between two yields it is plain Python: it may decide, sample, stop, or go on with
    other generators by `yield from`. A round begins when every instance waits or has ended. It
    computes the nodes that are asked for, and what they need; `graph.backward` of what the
    instances return does the rest.

    Args:
        graph:     the open graph that the instances build in.
        instances: generators, not started: calls of a function with `yield` in it.

    Returns:
        What each instance returned, in order.

    Raises:
        DriveError: instances raised an exception, or yielded something that is not a node of this
            graph. Each is named with its line; the others went on to their end, and the error has
            their results. The error also ends instances that only ask for known values, again and
            again, while no instance makes a node or ends.
        DtypeError, GraphError: `instances` holds something other than fresh generators.
        OutOfMemory, BackendError, CheckError: a run raised it. Every instance is closed.

    Cost: as many runs as the most yields of an instance; on a GPU one copy and one wait a run.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> def halve(graph, number):                 # until it is at most 1
        ...     x, steps = F.input(graph, number), 0
        ...     while (yield x) > 1:
        ...         x, steps = x * 0.5, steps + 1
        ...     return steps
        >>> with db.Graph() as graph:
        ...     db.drive(graph, [halve(graph, number) for number in (3.0, 1.0, 40.0)])
        ...     len(graph.plans)
        [2, 0, 6]
        7
    """
    if not isinstance(graph, Graph):
        raise DtypeError.at_caller(
            f"drive: a graph expected, got {type(graph).__name__}.\n"
            "  fix:  db.drive(graph, instances)"
        )
    graph._require_open("drive")
    everyone = _instances(graph, instances)
    with ExitStack() as stack:
        for instance in everyone:
            stack.callback(instance.generator.close)
        _run(graph, everyone)
        failed = [instance for instance in everyone if instance.failure is not None]
        if failed:
            raise _error(failed, [instance.result for instance in everyone])
    return [instance.result for instance in everyone]


def _run(graph: Graph, everyone: Sequence[_Instance]) -> None:
    waiting = list(everyone)
    idle_rounds = 0
    while waiting:
        before = (len(graph), len(graph.plans), len(waiting))
        for instance, values in zip(waiting, _serve(graph, waiting), strict=True):
            instance.advance(values)
        waiting = [instance for instance in waiting if not instance.has_ended]
        is_idle = (len(graph), len(graph.plans), len(waiting)) == before
        idle_rounds = idle_rounds + 1 if is_idle else 0
        if idle_rounds > PATIENCE + len(graph):
            for instance in waiting:
                instance.give_up(idle_rounds)
            return


def _serve(graph: Graph, waiting: Sequence[_Instance]) -> list[list[Array]]:
    """Compute what each instance waits for; if the run fails, for each instance on its own."""
    together, error = _values(graph, [node for instance in waiting for node in instance.nodes])
    if error is None:
        values = iter(together)
        return [[next(values) for _ in instance.nodes] for instance in waiting]
    served = []
    for instance in waiting:
        values_of_one, error = _values(graph, instance.nodes)
        instance.error = instance.error or error
        served.append(values_of_one)
    return served


def _values(graph: Graph, nodes: Sequence[Node]) -> tuple[list[Array], Exception | None]:
    """The values, or the error of the node that prevents them."""
    try:
        return graph.values(nodes), None
    except (BackendError, CheckError, MemoryError):
        raise
    except Exception as error:
        return [], error


class _Instance:
    """One generator: which values it waits for, and how it ended.

    Attributes:
        nodes: those whose values it waits for.
        error: the error raised at its `yield` in place of values.
        where: the line at which it failed.
    """

    def __init__(self, graph: Graph, number: int, generator: Running) -> None:
        self.number = number
        self.generator = generator
        self.nodes: list[Node] = []
        self.error: Exception | None = None
        self.has_ended = False
        self.result: Any = None
        self.failure: Exception | None = None
        self.where = ""
        self._graph = graph
        self._arrange: Callable[[list[Array]], object] = lambda values: None

    def advance(self, values: list[Array]) -> None:
        """Send the values that it waits for, and run it until it yields or ends."""
        error, self.error = self.error, None
        try:
            if error is None:
                request = self.generator.send(self._arrange(values))
            else:
                request = self.generator.throw(error)
        except StopIteration as stop:
            self.has_ended, self.result = True, stop.value
        except Exception as failure:
            # Without this frame: it would hold the failure that holds it.
            self._fail(failure.with_traceback(_after_first(failure)))
        else:
            self._ask(request)

    def give_up(self, rounds: int) -> None:
        """Fail an instance that would wait for ever."""
        line = _waits_at(self.generator)
        error = GraphError(
            f"drive: for {rounds} rounds, every instance asked for known values; none made\n"
            f"a node or ended. Instance {self.number} would wait for ever.\n"
            f"  fix:  let the loop end, or move its state on\n  waits at {line}"
        )
        self._fail(error, line)

    def _fail(self, failure: Exception, where: str = "") -> None:
        self.has_ended, self.failure = True, failure
        self.where = where or _failed_at(failure, self.generator.gi_code)
        failure.add_note(f"in instance {self.number}, at {self.where}")

    def _ask(self, request: object) -> None:
        self.nodes, self._arrange = _opened(request)
        for node in self.nodes:
            self.error = self.error or self._problem(node)
        if self.error is not None:
            self.nodes = []

    def _problem(self, node: object) -> Exception | None:
        line = _waits_at(self.generator)
        if isinstance(node, Node) and not isinstance(structure_of(node), tuple):
            if node.graph is self._graph:
                return None
            return GraphError(
                f"drive: instance {self.number} yielded {node!r} of another graph.\n"
                "  rule: an instance yields nodes of the graph given to drive\n"
                f"  fix:  build the sentence in that graph\n  yielded at {line}"
            )
        return DtypeError(
            f"drive: instance {self.number} yielded {type(node).__name__}; a node expected.\n"
            "  rule: a node, or a tuple, list or dict of nodes\n"
            "  fix:  yield the node itself, or the parts of what a call returned; not numbers\n"
            f"  yielded at {line}"
        )


def _instances(graph: Graph, generators: Iterable[object]) -> list[_Instance]:
    """Fresh generators, or the error for the first thing that is not a generator."""
    if isinstance(generators, Node) or not isinstance(generators, Iterable):
        raise _no_generator("`instances`", generators)
    instances: list[_Instance] = []
    known: set[int] = set()
    for number, generator in enumerate(generators):
        if not inspect.isgenerator(generator):
            raise _no_generator(f"instance {number}", generator)
        if id(generator) in known or inspect.getgeneratorstate(generator) != inspect.GEN_CREATED:
            raise GraphError.at_caller(
                f"drive: instance {number} is a generator that is used already.\n"
                "  fix:  call the function anew for each instance; do not advance the generator"
            )
        known.add(id(generator))
        instances.append(_Instance(graph, number, generator))
    return instances


def _no_generator(what: str, value: object) -> DtypeError:
    fix = "a function is an instance's only with `yield` in it; others are called as they are"
    if inspect.isgeneratorfunction(value):
        fix = f"call it: {value.__name__}(...) makes the generator"
    elif what == "`instances`" or isinstance(value, Node):
        fix = "db.drive(graph, [parse(graph, s) for s in sentences]): a list, of one perhaps;\n"
        fix += "        each instance a function with `yield` in it, called"
    return DtypeError.at_caller(
        f"drive: {what} is of type {type(value).__name__}; a generator expected.\n  fix:  {fix}"
    )


def _opened(request: object) -> tuple[list[Node], Callable[[list[Array]], object]]:
    """The nodes that were yielded, and a function that arranges their values alike."""
    if isinstance(request, dict):
        keys = list(request)
        return list(request.values()), lambda values: dict(zip(keys, values, strict=True))
    if isinstance(request, list):
        return list(request), list
    asked = structure_of(request)  # what a call returned is the tuple of its parts
    if isinstance(asked, tuple):
        return list(asked), tuple
    return [asked], lambda values: values[0]


def _error(failed: Sequence[_Instance], results: list[object]) -> DriveError:
    lines = [f"{len(failed)} of {len(results)} instances failed:"]
    for instance in failed[:NAMED_FAILURES]:
        failure = instance.failure
        reason = str(failure).partition("\n")[0]
        lines.append(
            f"  instance {instance.number}, at {instance.where}: {type(failure).__name__}: {reason}"
        )
    if len(failed) > NAMED_FAILURES:
        lines.append(f"  … and {len(failed) - NAMED_FAILURES} more")
    lines.append("  fix:  see its `failures`; what the others returned is in its `results`")
    failures = {i.number: i.failure for i in failed if i.failure is not None}
    return DriveError("\n".join(lines), list(failures.values()), failures, results)


def _after_first(error: Exception) -> TracebackType | None:
    trace = error.__traceback__
    return trace.tb_next if trace else None


def _waits_at(generator: Running) -> str:
    """The line of the `yield` at which the innermost generator waits, through `yield from`."""
    while inspect.isgenerator(generator.gi_yieldfrom):
        generator = generator.gi_yieldfrom
    frame = generator.gi_frame
    return _line(
        generator.gi_code, generator.gi_code.co_firstlineno if frame is None else frame.f_lineno
    )


def _failed_at(error: Exception, code: CodeType) -> str:
    """The line of the innermost generator at which the error was raised, else the first line."""
    number = code.co_firstlineno
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        code, number = frame.f_code, line
    return _line(code, number)


def _line(code: CodeType, number: int) -> str:
    return f"{code.co_filename}:{number} in {code.co_name}"
