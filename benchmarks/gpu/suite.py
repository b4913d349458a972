"""The tests that compute on the card, in several processes at once.

A test that crashes or hangs its process is counted as failed, and the others go on in a new one; so
do they where the card answers nothing more after a test. The counts so far are told again and
again.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import ROOT, replace_whole, tell

STALL_SECONDS = 75  # without a test that begins; kernels are compiled meanwhile
FIRST_STALL_SECONDS = 150  # likewise, of a process whose tests are collected first
TOLD_SECONDS = 20  # from one state of the counts to the next
ALL_RAN = (0, 1, 5)  # pytest's status: passed, some failed, none to run
_RESTARTS = 12  # of one process
_SHOWN = 200  # failures in the result
# What compute-sanitizer says of a kernel, and the line of pytest's that names the test.
_FINDING = re.compile(r"^=+ .*(Invalid|hazard|Misaligned|Uninitialized|Program hit|Error: Race)")
_TEST = re.compile(r"^(\S+\.py::\S+)")


class Shard:
    """One process after the other, each going on where the last ended."""

    def __init__(
        self, paths: Sequence[str], number: int, count: int, folder: Path, under: Sequence[str] = ()
    ) -> None:
        self.record = folder / f"{number}.jsonl"
        self.log = folder / f"{number}.log"
        self._command = [
            *under,
            *(sys.executable, "-m", "pytest", "-p", "tests.cuda.on_gpu", "-p", "no:cacheprovider"),
            *(f"--gpu-shard={number}/{count}", f"--gpu-record={self.record}"),
            # Warnings are CI's affair: other versions of NumPy and CuPy warn of other things.
            *("-vv" if under else "-q", "-W", "default", "--continue-on-collection-errors", *paths),
            "--ignore=tests/benchmarks",  # the other parts run the same on the card itself
        ]
        self._starts = 0
        self._begin()

    def _begin(self) -> None:
        self._starts += 1
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        self._first = self._seen = self._num_started()
        self._since = time.monotonic()

    def _num_started(self) -> int:
        """Tests begun so far, by all its processes."""
        return self.record.read_text().count('{"started"') if self.record.exists() else 0

    def is_done(self) -> bool:
        """Whether nothing is left to run; starts the next process where one ended early."""
        seen = self._num_started()
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        status = self._process.poll()
        longest = FIRST_STALL_SECONDS if seen == self._first else STALL_SECONDS
        if status is None and time.monotonic() - self._since <= longest:
            return False
        if status is None:
            self.stop()
        if status in ALL_RAN or seen == self._first or self._starts > _RESTARTS:
            return True
        self._begin()
        return False

    def stop(self) -> None:
        """End its process."""
        self._process.kill()
        self._process.wait()

    def findings(self) -> list[str]:
        """Findings on kernels of a program that watches the tests, each with the test before it."""
        test, found = "", []
        for line in self.log.read_text(errors="replace").splitlines():
            if name := _TEST.match(line):
                test = name[1]
            if _FINDING.match(line):
                found.append(f"{test}: {line.strip('= ')}")
        return found

    def log_tail(self) -> str:
        """The end of what its processes printed."""
        return self.log.read_text(errors="replace")[-1500:]


def run(
    paths: Sequence[str],
    shards: int,
    limit_seconds: float,
    under: Sequence[str] = (),
    keep: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Run the tests below `paths`; gives the counts and what failed, every `TOLD_SECONDS`.

    Args:
        under: a command that runs another and watches its kernels, as compute-sanitizer.
        keep:  a file for the records of all shards and what they printed, written as often.
    """
    deadline = time.monotonic() + limit_seconds
    with tempfile.TemporaryDirectory() as folder:
        running = [Shard(paths, k, shards, Path(folder), under) for k in range(shards)]
        waiting = list(running)
        while waiting and time.monotonic() < deadline:
            until = min(deadline, time.monotonic() + TOLD_SECONDS)
            while waiting and time.monotonic() < until:
                waiting = [shard for shard in waiting if not shard.is_done()]
                time.sleep(0.2)
            yield _state(running, waiting, bool(under), keep)
        for shard in waiting:
            shard.stop()
        yield _state(running, waiting, bool(under), keep)


def _state(
    shards: Sequence[Shard], waiting: Sequence[Shard], watched: bool, keep: Path | None
) -> dict[str, Any]:
    """The counts so far; the test that a shard is at, if it waits for more, has not run."""
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        paths = [*[shard.record for shard in shards], *[shard.log for shard in shards]]
        replace_whole(keep, b"".join([path.read_bytes() for path in paths if path.exists()]))
    records = [_read(shard.record) for shard in shards]
    for shard, events in zip(shards, records, strict=True):
        if shard in waiting and events and "started" in events[-1]:
            events.pop()
    found = summary(records) | {"time_ran_out": bool(waiting)}
    if not found["collected"]:
        found["log"] = shards[0].log_tail()
    if watched:
        found["findings"] = [line for shard in shards for line in shard.findings()][:_SHOWN]
    return found


def summary(records: Iterable[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Counts over all shards, and failures by file. A test that began and did not end is one."""
    collected, absent, ended, started = 0, {}, {}, []
    kernels: set[str] = set()
    on: set[str] = set()
    for events in records:
        collected += next((e["collected"] for e in events if "collected" in e), 0)
        on.update([e["on"] for e in events if "on" in e])
        kernels.update(*[e["kernels"] for e in events if "kernels" in e])
        absent |= {e["not collected"]: e["why"] for e in events if "not collected" in e}
        ended |= {e["ended"]: e for e in events if "ended" in e}
        started += [e["started"] for e in events if "started" in e]
    failures = [
        {"test": test, "why": ended[test]["why"] if test in ended else "its process ended, or hung"}
        for test in dict.fromkeys(started)
        if test not in ended or ended[test]["outcome"] == "failed"
    ]
    outcomes = [event["outcome"] for event in ended.values()]
    needs = {path: _missing(why) for path, why in absent.items()}
    failures += [
        {"test": path, "why": absent[path]} for path, module in needs.items() if not module
    ]
    by_file: dict[str, list[dict[str, str]]] = {}
    for failure in failures[:_SHOWN]:
        by_file.setdefault(failure["test"].partition("::")[0], []).append(failure)
    return {
        "collected": collected,
        "on": " and ".join(sorted(on)),
        "kernels": len(kernels),
        "passed": outcomes.count("passed"),
        "failed": len(failures),
        "skipped": outcomes.count("skipped"),
        "not_run": collected - len(set(started)),
        "skip_reasons": sorted(
            {_last_line(e["why"]) for e in ended.values() if e["outcome"] == "skipped"}
        ),
        "files_without": {path: module for path, module in needs.items() if module},
        "failures": by_file,
    }


def _missing(why: str) -> str:
    """The module that a file needs and that is not installed; nothing for any other reason."""
    marker = "No module named "
    last = _last_line(why)
    return last.split(marker)[1].strip("'\"") if "ModuleNotFoundError" in last else ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _read(path: Path) -> list[dict[str, Any]]:
    from tests.cuda.on_gpu import read  # pytest is needed here only

    return read(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON again and again; status 1 where a test failed or did not run."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.gpu.suite", description=__doc__)
    options.add_argument("paths", nargs="*", default=["tests"])
    options.add_argument("--shards", type=int, default=4)
    options.add_argument("--limit", type=float, default=170.0, help="seconds")
    options.add_argument("--under", default="", help="a command that watches kernels, in quotes")
    options.add_argument("--keep", type=Path, help="a file for how each test ended, and the logs")
    given = options.parse_args(arguments)
    under = shlex.split(given.under)
    found = tell(run(given.paths, given.shards, given.limit, under, given.keep))
    if not found["passed"] or found["failed"]:
        return 1
    # Under another program tests are slow: those that time is left for must be without a finding,
    # and kernels among what it saw.
    return int(bool(found["findings"]) or not found["kernels"] if under else found["not_run"] > 0)


if __name__ == "__main__":
    sys.exit(main())
