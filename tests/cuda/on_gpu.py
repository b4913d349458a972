"""A pytest plugin that leaves only the tests which compute on a GPU, and writes down how each ends.

    python3 -m pytest -p tests.cuda.on_gpu --gpu-shard=0/4 --gpu-record=record.jsonl

One JSON line per event: {"collected": 812, "on": "a GPU" | "the stand-in"}, {"started": nodeid},
{"ended": nodeid, "outcome": "passed" | "failed" | "skipped", "why": text, "kernels": [those loaded
since the last]}, {"not collected": path, "why": text}. A line is on disk before the next test
begins, so that a crash or a hang loses nothing; tests that the file names already do not run again.
A CUDA error that stays, as an illegal address does, ends the run.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cuda import devices
from tests.cuda.compiling import one_compiles
from tests.suites import asks_for_device

DEVICE_LOST = 70  # exit status
_WHY_LENGTH = 1500


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-shard", default="0/1", help="i/n: every n-th test from the i-th")
    parser.addoption("--gpu-record", type=Path, required=False, help="JSON lines, appended to")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--gpu-record"):
        shared = ExitStack()
        loaded = shared.enter_context(one_compiles())
        config.add_cleanup(shared.close)
        record = Record(config.getoption("--gpu-record"), loaded)
        config.pluginmanager.register(record, "gpu-record")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard, count = map(int, config.getoption("--gpu-shard").split("/"))
    chosen = [item for item in items if computes_on_gpu(item)][shard::count]
    kept = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = chosen


def computes_on_gpu(item: pytest.Item) -> bool:
    """Whether a test asks for the device, and for the real one where there are several ways."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    if "cupy" in getattr(item, "fixturenames", ()):
        return given.get("cupy") == "gpu"
    return asks_for_device(item) or item.path.name == "test_cuda.py"


class Record:
    """Writes the lines, and leaves out tests that have some.

    Args:
        loaded: the kernels of this process, which grow.
    """

    def __init__(self, path: Path, loaded: set[str]) -> None:
        self._path = path
        self._loaded = loaded
        self._written: set[str] = set()
        self._known = {e["started"] for e in read(path) if "started" in e}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        on = "a GPU" if devices.has_gpu() else "the stand-in"
        self._write(collected=len(session.items), on=on)
        session.items[:] = [item for item in session.items if item.nodeid not in self._known]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(
                **{"not collected": report.nodeid, "why": report.longreprtext[-_WHY_LENGTH:]}
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(started=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and not report.passed):
            why = report.longrepr[2] if report.skipped else report.longreprtext[-_WHY_LENGTH:]
            new = sorted(self._loaded - self._written)
            self._written.update(new)
            self._write(ended=report.nodeid, outcome=report.outcome, why=why, kernels=new)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if devices.has_gpu() and (error := device_error()):
            pytest.exit(f"the device is lost: {error}", DEVICE_LOST)

    def _write(self, **event: Any) -> None:
        with self._path.open("a") as lines:
            lines.write(json.dumps(event) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a file, none where there is no file. The last line may be cut off."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def device_error() -> str:
    """The device's error once it can do nothing more; nothing while it is well."""
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return ""
