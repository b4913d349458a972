"""Threads share the work of C functions: parts of one call, or tasks that were written down first.

After C has gone through megabytes the interpreter finds nothing of its own in the caches: what it
does in 3 ms in one stretch takes 6 between such calls (measured).
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import NotInCError, only_c
from dynbatch.kernels.runtime.workers import ThreadSpan, workers

# Elements that take C twice as long as handing work to a thread, or longer.
WORTH_A_THREAD = 1 << 15

_library = Library("team.c")
_SCALAR = np.dtype(np.float32)  # the file has none


def share_rows(
    function: Any, rows: int, width: int, *arguments: Any, least: int = WORTH_A_THREAD,
    alive: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Call `function(first, last, *arguments)` for ranges of the rows; threads share them.

    Args:
        width: elements of a row, or about so many.
        least: elements that are worth a thread.
        alive: see `share`.
    """
    spans = parallel.shards(rows, -(-least // max(1, width)))
    share(function, [(*span, *arguments) for span in spans], alive)


def share(function: Any, parts: Sequence[Sequence[Any]], alive: Sequence[Any] = ()) -> None:
    """Call a C function once with the arguments of each part; threads share them.

    Workers take parts without the interpreter.

    Args:
        alive: arrays of the kernel's own whose addresses are among the arguments; see `written`.
    """
    if writing.tasks is not None:
        writing.tasks.then(*[[task(function, part, *alive)] for part in parts])
        return
    if len(parts) == 1:
        function(*parts[0])
        return
    threads = min(len(parts), parallel.available())
    threads_of_c = team() if threads > 1 else None
    if threads_of_c is None or not hasattr(function, "packed"):
        parallel.run([partial(function, *part) for part in parts])
        return
    _wait_in(threads_of_c)
    workers.start(threads - 1)
    pack, size = function.packing.pack, function.packing.size
    rows = [pack(*[0 if x is None else x for x in part]) for part in parts]
    threads_of_c.share(function.packed, b"".join(rows), size, len(parts), threads - 1)


def _wait_in(threads_of_c: Any) -> None:
    if workers.wait is not threads_of_c.serve:
        workers.wait_in(threads_of_c.serve, threads_of_c.call, threads_of_c.prepare)


def team() -> Any:
    """The functions of team.c; None where C is not used."""
    return _library.functions(_SCALAR)


@contextmanager
def recording(spans: list[ThreadSpan]) -> Iterator[None]:
    """Append what workers do for this thread inside the block; of C at most 32,768 spans."""
    threads_of_c, new = team(), list[ThreadSpan]()
    if threads_of_c is not None:
        _wait_in(threads_of_c)
        threads_of_c.record(1)
    try:
        with parallel.recording(new):
            yield
    finally:
        if threads_of_c is not None:
            threads_of_c.record(0)
            new += _recorded(threads_of_c)
        this_thread = threading.get_ident()
        spans += [span for span in new if span.thread != this_thread]


def _recorded(threads_of_c: Any) -> Iterator[ThreadSpan]:
    head = np.zeros(3, np.int64)
    threads_of_c.recorded(address(head), head.size)
    out = np.zeros(3 + 5 * int(head[0]), np.int64)
    threads_of_c.recorded(address(out), out.size)
    clock = time.perf_counter() - float(out[1]) / 1e9  # both are monotonic, from any start
    for owner, thread, part, begin, end in out[3:].reshape(-1, 5).tolist():
        if owner == out[2]:
            yield ThreadSpan(thread, part, begin / 1e9 + clock, end / 1e9 + clock)


# Tasks --------------------------------------------------------------------------------------------


class NativeTask(NamedTuple):
    """A call of a C function.

    row:   where the function is, how many arguments it has, and these.
    alive: arrays whose addresses are among them.
    """

    row: bytes
    alive: tuple[Any, ...]


Task: TypeAlias = NativeTask | Callable[[], None]
"""A call of a C function, or of Python where no C is used."""


def task(function: Any, arguments: Sequence[Any], *alive: Any) -> NativeTask:
    """A call of a function of a library."""
    head = struct.pack("qq", function.packed, len(arguments))
    return NativeTask(head + function.packing.pack(*[x or 0 for x in arguments]), alive)


class Tasks:
    """Tasks in stages: one begins when the one before it has ended."""

    def __init__(self) -> None:
        self._stages: list[Sequence[Sequence[Task]]] = []
        self._last: list[Callable[[], object]] = []

    def then(self, *parts: Sequence[Task]) -> None:
        """Add a stage, whose parts may run at the same time."""
        self._stages.append(parts)

    def call(self, *kernels: Callable[[], object]) -> None:
        """Add a stage of kernels that may run at the same time: see `parts_of`."""
        self.then(*[part for kernel in kernels for part in parts_of(kernel)])

    def at_last(self, function: Callable[[], object]) -> None:
        """Have one thread call a function after all tasks, and after those of kernels beside it."""
        self._last.append(function)

    def parts(self) -> list[Sequence[Task]]:
        """The tasks as parts of one stage: all in one part if there are several stages."""
        return [*self._stages[0]] if len(self._stages) == 1 else [self.in_order()]

    def extend(self, others: Tasks) -> None:
        """Add the stages of others."""
        self._stages += others._stages

    def in_order(self) -> list[Task]:
        """The tasks, to be done by one thread."""
        stages, self._stages = self._stages, []
        return [each for stage in stages for part in stage for each in part]

    def run(self) -> None:
        """Do all of it; on one thread, what is in C without Python in between."""
        if parallel.available() < 2:
            self._stages = [[self.in_order()]]
        stages, self._stages = [stage for stage in self._stages if any(stage)], []
        for stage in stages:
            if any([callable(each) for part in stage for each in part]):
                parallel.run([partial(_do, part) for part in stage])
            else:
                _share(stage)
        self.end()

    def end(self) -> None:
        """Call what is to be called at last."""
        functions, self._last = self._last, []
        for function in functions:
            function()

    def __len__(self) -> int:
        return len(self._stages)

    def repeated(self, is_held: Callable[[Array], bool] = lambda array: False) -> WrittenCalls:
        """One call that does all of it, any number of times; it is all in C.

        Args:
            is_held: whether somebody else keeps an array alive that a call reads.
        """
        return WrittenCalls(self._stages, is_held)


class WrittenCalls:
    """Stages of calls of C, which threads do in one call, without Python in between.

    Attributes:
        times: when each stage ended the last time, in nanoseconds.
    """

    def __init__(
        self, stages: Sequence[Sequence[Sequence[Any]]], is_held: Callable[[Array], bool]
    ) -> None:
        self._alive: list[Any] = []
        rows: list[tuple[int, int | None]] = []
        for stage in stages:
            calls, (arguments, alive) = _calls_of(stage)
            parts = np.array(calls, np.int64)
            rows.append((len(parts), address(parts)))
            used = [x for each in alive for x in each if x is not None and not is_held(x)]
            self._alive += [arguments, parts, used]
        self._table = np.array(rows, np.int64).reshape(-1, 2)
        self._is_shared = bool((self._table[:, 0] > 1).any())
        self.times = np.zeros(len(rows), np.int64)

    def __call__(self) -> None:
        threads_of_c, helpers = team(), parallel.available() - 1 if self._is_shared else 0
        if helpers:
            _wait_in(threads_of_c)
            workers.start(helpers)
        table, times = self._table, self.times
        threads_of_c.run_stages(len(table), address(table), helpers, address(times))


class TaskWriting(threading.local):
    """The list of C calls that this thread writes down instead of doing them."""

    tasks: Tasks | None = None


writing = TaskWriting()


def is_writing() -> bool:
    """Whether this thread writes calls of C down, to do them again and again."""
    return writing.tasks is not None


def written(kernel: Callable[[], object]) -> Tasks | None:
    """The calls of C that a kernel would do; None where it has no version in C.

    Its arrays must outlive them, but for those that it names to `share`.
    """
    try:
        try:
            tasks = writing.tasks = Tasks()
            only_c.wanted = True
            kernel()
        except NotInCError:
            return None
        finally:
            writing.tasks, only_c.wanted = None, False
    finally:  # once more: an interrupt may have come right before it
        writing.tasks, only_c.wanted = None, False
    return tasks


def parts_of(kernel: Callable[[], object]) -> list[Sequence[Task]]:
    """The calls of C that a kernel would do, each a part of a stage; itself where it has no C."""
    calls = written(kernel)
    return [[cast(Task, kernel)]] if calls is None else calls.parts()


def in_order(kernel: Callable[[], object]) -> list[Task]:
    """The calls of C that a kernel would do on one thread; itself where it has no C."""
    with parallel.serial():
        return [each for part in parts_of(kernel) for each in part]


class Written(Protocol):
    """The work that a kernel has written down instead of doing it."""

    def at_last(self, function: Callable[[], object]) -> None:
        """Have a function called after all of it."""

    def run(self) -> None:
        """Do all of it."""


def do(written: Written | None) -> None:
    """Do what a kernel has written down; None has done it."""
    if written is not None:
        written.run()


def run_side_by_side(kernels: Sequence[Callable[[], Tasks]]) -> None:
    """Run kernels one after the other, and what they write down on a thread each."""
    with parallel.serial():
        lists = [kernel() for kernel in kernels]
    joined = Tasks()
    joined.then(*[tasks.in_order() for tasks in lists])
    joined.run()
    with parallel.serial():
        for tasks in lists:
            tasks.end()


def _do(part: Sequence[Task]) -> None:
    """Do tasks of both kinds, in order."""
    for is_python, tasks in groupby(part, callable):
        if not is_python:
            _share([[*tasks]])
            continue
        for each in tasks:
            each()  # type: ignore[operator]


def _share(parts: Sequence[Sequence[Any]]) -> None:
    share(team().run_tasks, *_calls_of(parts))


def _calls_of(parts: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
    """The arguments of `run_tasks` for each part, and what they point to."""
    rows = [np.frombuffer(b"".join([each.row for each in part]), np.int64) for part in parts]
    alive = [each.alive for part in parts for each in part]
    return [*zip(map(len, parts), map(address, rows), strict=True)], [rows, alive]
