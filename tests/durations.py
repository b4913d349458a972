"""The time that the tests take: `make test ARGS=--durations-table=FILE` writes a table.

The file keeps the tables of other suites. All is in seconds of processors, summed over workers, but
for `clock`:

    parts       start (interpreter, pytest, NumPy, dynbatch), collection, tests
    compile     C kernels, g++ for the simulator, NVRTC: what the tests' processes wait for
    files       tests, their seconds, and those of collection, which imports the file
    fixtures    what sets each up, without fixtures that it asks for by its parameters
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.environment import OtherWork, processor_name
from docs.blocks import processor_seconds
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime.parallel import num_processors
from tests.cuda import nvrtc, simulator

LITTLE = 0.5
"""Seconds; what took less is summed."""
COMPILERS = {
    "C": (library, "build"),
    "g++": (simulator, "_compile"),
    "NVRTC": (nvrtc, "compiled_log"),
}


class Durations:
    """Measures the process that it is in; workers of xdist send theirs to the first one.

    Args:
        path:  of the file.
        suite: the name of its table.
    """

    def __init__(self, path: Path, suite: str) -> None:
        self._path, self._suite = path, suite
        self._tables: dict[str, Counter[str]] = defaultdict(Counter)
        self._tables["parts"]["start"] = processor_seconds()
        self._begin, self._others = time.perf_counter(), OtherWork()
        self._patches = ExitStack()
        for name, (module, function) in COMPILERS.items():
            timed = self._timed(name, getattr(module, function))
            self._patches.enter_context(mock.patch.object(module, function, timed))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            with self._adding_to("compile", name):
                return function(*arguments)

        return timed

    @contextmanager
    def _adding_to(self, table: str, name: str) -> Iterator[None]:
        before = processor_seconds()
        try:
            yield
        finally:
            self._tables[table][name] += processor_seconds() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        with self._adding_to("parts", "collection"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        if not isinstance(collector, pytest.Module):
            return (yield)
        with self._adding_to("collection", collector.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        file = item.nodeid.partition("::")[0]
        self._tables["count"][file] += 1
        with self._adding_to("tests", file):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        with self._adding_to("fixtures", fixturedef.argname):
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker sent, unless it crashed."""
        self.add(getattr(node, "workeroutput", {}).get("durations", {}))

    def add(self, tables: Mapping[str, Mapping[str, float]]) -> None:
        for name, seconds in tables.items():
            self._tables[name].update(seconds)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._patches.close()
        if hasattr(session.config, "workeroutput"):
            tables = {name: dict(seconds) for name, seconds in self._tables.items()}
            session.config.workeroutput["durations"] = tables
        else:
            self.write()

    def write(self) -> None:
        """Put this run's table into the file."""
        kept = json.loads(self._path.read_text()) if self._path.exists() else {}
        text = json.dumps({**kept, self._suite: self.table()}, indent=1)
        rows = re.sub(r"\[\s+([^][]*?)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", text)
        self._path.write_text(rows + "\n")

    def table(self) -> dict[str, Any]:
        """The table of what was measured so far."""
        tables = {name: self._tables[name] for name in ("count", "tests", "collection")}
        total = tables["tests"] + tables["collection"]
        files: dict[str, list[float]] = {"others": [0, 0, 0]}
        for name, seconds in total.most_common():
            row = [table[name] for table in tables.values()]
            if seconds >= LITTLE:
                files[name] = _rounded(row)
            else:
                files["others"] = _rounded(map(sum, zip(files["others"], row, strict=True)))
        parts = self._tables["parts"] + Counter(tests=tables["tests"].total())
        fixtures = self._tables["fixtures"].most_common()
        return {
            "processor": f"{processor_name()}, {num_processors()} available",
            "python": platform.python_version(),
            "torch": find_spec("torch") is not None,
            "other_work_cores": round(self._others.cores(), 2),
            "clock": round(time.perf_counter() - self._begin, 1),
            "parts": _by_name(parts.most_common()),
            "compile": _by_name(self._tables["compile"].most_common()),
            "fixtures": _by_name(pair for pair in fixtures if pair[1] >= LITTLE),
            "columns": ["tests", "seconds", "collection"],
            "files": files,
        }


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: round(seconds, 2) for name, seconds in pairs}
