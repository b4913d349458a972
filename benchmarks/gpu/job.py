"""`Job`: one part of the check in a process of its own, with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# cuBLAS and cuDNN take no TF32, whatever a library asks for.
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}
_TAIL = 3000


@dataclass(frozen=True)
class Job:
    """A command that prints one JSON object, or none.

    Args:
        name:          what the report calls it.
        command:       program and arguments.
        limit_seconds: after which it is ended, with the processes that it started.
        needs:         a program without which it does not run; that of the command if empty.
        rounds:        asks for products of less than float32 itself.
    """

    name: str
    command: Sequence[str]
    limit_seconds: float
    needs: str = ""
    rounds: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended: "passed", "failed", "time ran out", "skipped".

    Args:
        found: the JSON that it printed last; empty without.
        said:  the end of its messages.
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
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | ({} if job.rounds else NO_TF32)
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
    found = _json(printed)
    rest = said if found else f"{printed}\n{said}"
    return Outcome(job.name, state, time.monotonic() - begin, found, rest.strip()[-_TAIL:])


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that leads its own group, and the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _json(printed: str) -> dict[str, Any]:
    """The object of the last line, if it is one."""
    lines = printed.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
