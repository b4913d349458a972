"""A plugin of pytest that goes on where an earlier run was stopped: RESUMED=FILE pytest -p resumed.

FILE gets a line for each test that has ended: its outcome and its name. What passed or was skipped
is not run again. At the end comes the count of all runs.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FILE = Path(os.environ["RESUMED"])


def outcomes() -> dict[str, str]:
    """The last outcome of each test by its name."""
    lines = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    return {name: outcome for outcome, _, name in [line.partition(" ") for line in lines]}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    ended = {name for name, outcome in outcomes().items() if outcome != "failed"}
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid in ended])
    items[:] = [each for each in items if each.nodeid not in ended]


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        with FILE.open("a", encoding="utf-8") as file:
            file.write(f"{report.outcome} {report.nodeid}\n")


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and outcomes():  # all have ended
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = sorted(Counter(outcomes().values()).items())
    told = ", ".join([f"{count} {outcome}" for outcome, count in counts])
    terminalreporter.write_line(f"all runs: {told}")
