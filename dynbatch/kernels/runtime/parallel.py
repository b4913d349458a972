"""A small thread pool for the CPU: independent batches, and row shards of one batch.

NumPy releases the interpreter lock inside BLAS and large ufuncs, so two Python threads keep two
cores busy. BLAS itself then runs on one thread each: `one_blas_thread()` sets that for the time of
a run and restores what it found.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from dynbatch.arguments import refused, size
from dynbatch.kernels.runtime import openblas
from dynbatch.kernels.runtime.workers import Helper, Job, ThreadSpan, workers
from dynbatch.recent import free_at_fork

_local = threading.local()
_settings = {"threads": 0, "default": 0, "share": 0}

# The blocks of `one_blas_thread` that have not ended, with their threads; how many threads BLAS had
# before the first, and whether it has one for now.
_in_blas: list[tuple[int, weakref.ref[_Block]]] = []
_blas_before = 1
_blas_is_set = False
_blas_lock = free_at_fork(threading.Lock())


def num_threads() -> int:
    """The number of threads for `run`: from `set_num_threads`, else the available processors, or
    OMP_NUM_THREADS where several processes share them."""
    if not _settings["default"]:
        _settings["default"] = num_processors()
    return _settings["threads"] or _settings["default"]


def num_processors() -> int:
    """The number of processors that this process may use; without such a limit, that of all."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def share_processors() -> None:
    """Take OMP_NUM_THREADS, if it is set, in place of all processors: others of a run need them."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdecimal() and int(text):
        _settings["default"] = _settings["share"] = int(text)


def own_processors() -> int:
    """The number of processors that this process need not leave to others of a run."""
    return _settings["share"] or num_processors()


def set_num_threads(count: int) -> None:
    """Set the number of threads of all graphs of this process.

    Raises:
        ArgumentError: `count` is not an integer, or smaller than 1; or above 1 in a browser.
    """
    threads = size("set_num_threads", "count", count)
    if threads > 1 and sys.platform == "emscripten":
        raise refused(
            "set_num_threads", f"count is {threads}", "a browser runs one thread",
            "leave it out: one thread computes all that several do",
        )  # fmt: skip
    _settings["threads"] = threads


def available() -> int:
    """Threads free for the caller: 1 inside a task of `run`, else `num_threads()`."""
    return 1 if getattr(_local, "inside", False) else num_threads()


def run(tasks: Sequence[Callable[[], None]]) -> None:
    """Run the tasks, at most `available()` at a time, and wait for all.

    The caller's thread takes the first task; it and workers take the others one by one. After an
    exception none is begun; the first, in order of the tasks, is raised when all that were begun
    have ended, so nothing is still writing. Python threads that run tasks at the same time share
    the workers.
    """
    if len(tasks) < 2 or (threads := available()) < 2:
        for task in tasks:
            task()
        return
    job = Job(tasks, getattr(_local, "spans", None))
    helpers = [Helper(partial(_inside, job.work)) for _ in range(min(threads, len(tasks)) - 1)]
    errors: list[BaseException] = []
    try:
        workers.give(helpers)
        _inside(job.begin)
    except KeyboardInterrupt as interrupt:  # before a task, or between two
        errors.append(interrupt)
    while helpers:  # nothing may still be writing when this returns, even after Ctrl-C
        try:
            helpers[-1].finish()
            helpers.pop()
        except KeyboardInterrupt as interrupt:
            errors.append(interrupt)
    errors = [job.errors[number] for number in sorted(job.errors)] + errors
    if errors:
        raise errors[0]


@contextmanager
def recording(spans: list[ThreadSpan]) -> Iterator[None]:
    """Append what threads do in `run`, called by this thread inside the block."""
    _local.spans = spans
    try:
        yield
    finally:
        _local.spans = None


def run_each(count: int, work: Callable[[int], None]) -> None:
    """Run `work` for 0 … count - 1, a run of neighbours in each thread."""

    def span(first: int, last: int) -> None:
        for number in range(first, last):
            work(number)

    run([partial(span, first, last) for first, last in shards(count)])


def _inside(task: Callable[[], None]) -> None:
    with serial():
        task()


@contextmanager
def serial() -> Iterator[None]:
    """Make one thread available inside the block."""
    before = getattr(_local, "inside", False)
    try:
        try:
            _local.inside = True
            yield
        finally:
            _local.inside = before
    finally:  # once more: an interrupt may have come right before it
        _local.inside = before


def shards(count: int, least: int = 1) -> list[tuple[int, int]]:
    """Split `range(count)` into at most `available()` even parts of at least `least` items."""
    parts = count // max(1, least)
    if parts < 2 or (parts := min(available(), parts)) < 2:
        return [(0, count)]
    edges = [count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))


# BLAS ---------------------------------------------------------------------------------------------


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS on one thread inside the block, and restore its threads afterwards.

    BLAS has one setting for the process. If several Python threads are inside, the first sets it,
    and the last to leave restores what the first found. In a forked child only the thread that
    forked is still inside. A block that an interrupt ended before it could restore the setting is
    gone with its frame: the next one restores it.
    """
    global _in_blas, _blas_before, _blas_is_set
    setting = openblas.thread_setting()
    if setting is None:
        yield
        return
    get, put = setting
    block = _Block()
    try:
        with _blas_lock:
            others = _blocks_in_blas()
            if not others and not (_blas_is_set and get() == 1):
                _blas_before = get()
            _in_blas = [*others, (threading.get_ident(), weakref.ref(block))]
            if _blas_before != 1:
                _blas_is_set = True
                put(1)
        yield
    finally:
        with _blas_lock:
            _leave_blas([each for each in _blocks_in_blas() if each[1]() is not block], put)


class _Block:
    """A block of `one_blas_thread`, which lives as long as its frame."""

    __slots__ = ("__weakref__",)


def _blocks_in_blas() -> list[tuple[int, weakref.ref[_Block]]]:
    return [each for each in _in_blas if each[1]() is not None]


def _leave_blas(left: list[tuple[int, weakref.ref[_Block]]], put: openblas.Function) -> None:
    """Note which blocks are left; if none is, restore BLAS's threads."""
    global _in_blas, _blas_is_set
    _in_blas = left
    if not left and _blas_is_set:
        put(_blas_before)
        _blas_is_set = False


def _forget_other_threads_in_blas() -> None:
    """In a forked child, count only the thread that forked."""
    thread = threading.get_ident()
    left = [each for each in _in_blas if each[0] == thread]
    setting = openblas.thread_setting()
    if len(left) < len(_in_blas) and setting is not None:
        _leave_blas(left, setting[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads_in_blas)
