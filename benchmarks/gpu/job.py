"""`Job`: one part of the check in a process of its own, with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_TAIL = 3000


@dataclass(frozen=True)
class Job:
    """A command that prints JSON objects, each in place of the one before it, or none.

    Args:
        name:          what the report calls it.
        command:       program and arguments.
        limit_seconds: after which it is ended, with the processes that it started.
        needs:         a program without which it does not run; that of the command if empty.
    """

    name: str
    command: Sequence[str]
    limit_seconds: float
    needs: str = ""


@dataclass(frozen=True)
class Outcome:
    """The end of a job: "passed", "failed", "time ran out", "skipped".

    Args:
        found: the JSON that it printed last, also if it did not come to its end; empty without.
        said:  the end of all else that it printed.
    """

    name: str
    state: str
    seconds: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)
    said: str = ""


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs `benchmarks.gpu.NAME`."""
    return [sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments]


def run(job: Job) -> Outcome:
    """Run it to its end, or to its limit. Never raises."""
    begin = time.monotonic()
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    try:
        process = subprocess.Popen(
            list(job.command), cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Outcome(job.name, "failed", said=str(error))
    try:
        printed, said = process.communicate(timeout=max(1.0, job.limit_seconds))
        state = "passed" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        end(process)
        printed, said = process.communicate()
        state = "time ran out"
    found, others = _split(printed)
    rest = f"{others}\n{said}".strip()[-_TAIL:]
    return Outcome(job.name, state, time.monotonic() - begin, found, rest)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that leads its own group, and the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def replace_whole(path: Path, contents: bytes) -> None:
    """Write a file such that whoever reads it, at any moment, finds it whole, or the one before."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(contents)
    part.replace(path)


def tell(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Print a result that grows, a line of JSON for each state; returns the last.

    What is ended early has told all that it had.
    """
    state: dict[str, Any] = {}
    for state in states:
        print(json.dumps(state), flush=True)
    return state


def _split(printed: str) -> tuple[dict[str, Any], str]:
    """The last line that is a JSON object, and all lines that are none.

    The last line of a process that was ended may be cut.
    """
    found, others = {}, []
    for line in printed.splitlines():
        try:
            state = json.loads(line)
        except ValueError:
            state = None
        if isinstance(state, dict):
            found = state
        else:
            others.append(line)
    return found, "\n".join(others)
