"""A small thread pool for the CPU: independent batches, and row shards of one batch.

NumPy releases the interpreter lock inside BLAS and large ufuncs, so two Python threads keep two
cores busy. BLAS itself then runs on one thread each (see `openblas`).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context

from dynbatch.arguments import size
from dynbatch.recent import free_at_fork

_local = threading.local()
_settings = {"threads": 0}
_executors: dict[int, ThreadPoolExecutor] = {}
_lock = free_at_fork(threading.Lock())


def num_threads() -> int:
    """The number of threads for `run`: from `set_num_threads`, else the available processors."""
    if not _settings["threads"]:
        _settings["threads"] = max(1, len(os.sched_getaffinity(0)))
    return _settings["threads"]


def set_num_threads(count: int) -> None:
    """Set the number of threads of all graphs of this process.

    Raises:
        ArgumentError: `count` is not an integer, or smaller than 1.
    """
    _settings["threads"] = size("set_num_threads", "count", count)


def available() -> int:
    """Threads free for the caller: 1 inside a task of `run`, else `num_threads()`."""
    return 1 if getattr(_local, "inside", False) else num_threads()


def run(tasks: Sequence[Callable[[], None]]) -> None:
    """Run the tasks, at most `available()` at a time, and wait for all.

    The caller's thread takes the first task. The first exception, in order of the tasks, is raised
    after all tasks have ended, so nothing is still writing. Python threads that run tasks at the
    same time share the workers; tasks that no worker has taken run in their caller's thread.
    """
    if len(tasks) < 2 or (threads := available()) < 2:
        for task in tasks:
            task()
        return
    pool = _executors.get(threads - 1) or _executor(threads - 1)
    # A copy of the context each, so that np.errstate holds in the workers too.
    futures = [pool.submit(copy_context().run, _inside, task) for task in tasks[1:]]
    errors: list[BaseException] = []
    try:
        _inside(tasks[0])
    except BaseException as error:
        errors.append(error)
    for future in futures:
        # A task no worker has begun is run here rather than waited for.
        if not future.cancel():
            errors += _errors_of(future)
    for task, future in zip(tasks[1:], futures, strict=True):
        if future.cancelled() and not errors:
            _inside(task)
    if errors:
        raise errors[0]


def _executor(workers: int) -> ThreadPoolExecutor:
    """The process's pool with `workers` workers."""
    with _lock:
        pool = _executors.get(workers)
        if pool is None:
            pool = _executors[workers] = ThreadPoolExecutor(workers, thread_name_prefix="dynbatch")
        return pool


def _errors_of(future: Future[None]) -> list[BaseException]:
    """Wait for a task to end, even after Ctrl-C: nothing may write after `run` has raised."""
    errors: list[BaseException] = []
    while not future.done():
        try:
            wait([future])
        except KeyboardInterrupt as interrupt:
            errors.append(interrupt)
    error = future.exception()
    return errors if error is None else [*errors, error]


def _inside(task: Callable[[], None]) -> None:
    with serial():
        task()


@contextmanager
def serial() -> Iterator[None]:
    """Make one thread available inside the block."""
    before = getattr(_local, "inside", False)
    _local.inside = True
    try:
        yield
    finally:
        _local.inside = before


if hasattr(os, "register_at_fork"):  # the workers are not in the child, which makes its own
    os.register_at_fork(after_in_child=_executors.clear)


def shards(count: int, least: int = 1) -> list[tuple[int, int]]:
    """Split `range(count)` into at most `available()` even parts of at least `least` items."""
    parts = max(1, min(available(), count // max(1, least)))
    edges = [count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))
