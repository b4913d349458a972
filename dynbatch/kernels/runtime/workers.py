"""The threads that help with tasks, and what they are asked to do."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from dynbatch.recent import free_at_fork

Task = Callable[[], None]


class ThreadSpan(NamedTuple):
    """A time in which a thread had work of a job, by perf_counter.

    thread: its identity. part: the first part of the job, or task, that it took.
    """

    thread: int
    part: int
    begin: float
    end: float


class Job:
    """Tasks that several threads take one by one, in order; the caller begins with the first.

    Args:
        spans: takes what each thread did, if anybody wants to know.
    """

    def __init__(self, tasks: Sequence[Task], spans: list[ThreadSpan] | None = None) -> None:
        self._tasks = tasks
        self._spans = spans
        self._numbers = itertools.count(1)
        self.errors: dict[int, BaseException] = {}

    def begin(self) -> None:
        """Run the first task, then `work`."""
        self._run(0)
        self.work()

    def work(self) -> None:
        """Run tasks until none is left, or one has failed."""
        while not self.errors and (number := next(self._numbers)) < len(self._tasks):
            self._run(number)

    def _run(self, number: int) -> None:
        begin = 0.0 if self._spans is None else time.perf_counter()
        try:
            self._tasks[number]()
        except BaseException as error:
            self.errors[number] = error
        if self._spans is not None:
            span = ThreadSpan(threading.get_ident(), number, begin, time.perf_counter())
            self._spans.append(span)


class Helper:
    """The work that a worker is asked for, unless the caller was done before it came.

    It runs in a copy of the caller's context, so that np.errstate holds there too.
    """

    def __init__(self, work: Task) -> None:
        self._work = work
        self._context = copy_context()
        self._taken: dict[str, bool] = {}  # whether by a worker: `setdefault` is one step
        self._has_ended = False
        self._ended = threading.Lock()
        self._ended.acquire()

    def __call__(self) -> None:
        if self._taken.setdefault("by a worker", True):
            try:
                self._context.run(self._work)
            finally:
                self._has_ended = True
                self._ended.release()

    def finish(self) -> None:
        """Wait for a worker that has begun; otherwise none begins any more.

        Ctrl-C may interrupt it at any place: then it can be called again.
        """
        if self._taken.setdefault("by a worker", False):
            while not self._has_ended:
                self._ended.acquire()


class Workers:
    """Threads of this process that run tasks as they come.

    They wait in Python, or where `wait_in` has told them.

    Attributes:
        threads: they, alive until the process ends.
        wait:    where they wait; None in Python.
    """

    def __init__(self) -> None:
        self._lock = free_at_fork(threading.Lock())
        self._begin()
        if hasattr(os, "register_at_fork"):  # a child has no workers: it makes its own
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self, wait: Task | None = None, wake: Task | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self.wait, self._wake = wait, wake

    def start(self, count: int) -> None:
        """Have at least so many threads."""
        while len(self.threads) < count:
            with self._lock:
                if len(self.threads) < count:
                    run = partial(self._run, self._tasks, self.wait)
                    thread = threading.Thread(target=run, daemon=True, name="dynbatch")
                    thread.start()
                    self.threads.append(thread)

    def give(self, tasks: Sequence[Task]) -> None:
        """Have the tasks run, each by a worker that is free or will be."""
        self.start(len(tasks))
        for task in tasks:
            self._tasks.put(task)
        if self._wake is not None:
            self._wake()

    def wait_in(self, wait: Task, wake: Task, prepare: Task) -> None:
        """Have workers without a task call `wait`, which returns at some time after `wake`.

        Those that wait in Python end, and others are made when they are needed.

        Args:
            prepare: is called first, once in a process.
        """
        with self._lock:
            if self.wait is not wait:
                prepare()
                for _ in self.threads:
                    self._tasks.put(None)
                self._begin(wait, wake)

    @staticmethod
    def _run(tasks: SimpleQueue[Task | None], wait: Task | None) -> None:
        if wait is None:
            while (task := tasks.get()) is not None:
                task()
            return
        while True:
            wait()
            with suppress(Empty):
                while (task := tasks.get_nowait()) is not None:
                    task()


workers = Workers()
