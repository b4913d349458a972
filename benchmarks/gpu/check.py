"""`make gpu-check`: tests, memory and race checks, and measurements on a GPU.

    python3 -m benchmarks.gpu.check [--only first speed …] [--limit 460] [--keep FOLDER]

Runs from the checkout with what is installed. Every part is a process with a time limit; one that
fails stops no other. First comes what tells most in the first minute: the card, all kernels
compiled at once, a tiny training step, one case's speed. Writes gpu-CARD-DATE-TIME.json anew after
each part, so that nothing is lost where the machine is, and prints a table. A part that is ended
early leaves what it had. `--keep` writes what the processes of tests printed, and how each test
ended.

The limit is of all parts together; what it leaves no time for says so. A command for each of the
lists in `CALLS` has time for its parts: what is measured, what is checked, switches.

Exit status: 0 all passed or skipped, 1 a part failed or its time ran out, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.gpu.cases import CASES, PEERS, Case
from benchmarks.gpu.job import ROOT, Job, Outcome, module, replace_whole, run
from benchmarks.gpu.table import as_text
from benchmarks.measure import OURS
from dynbatch.kernels.runtime.parallel import num_processors

CALLS = (
    ("first", "speed", "micro", "generation"),
    ("tests", "correct", "memory", "sanitizer"),
    ("switches",),
)
PARTS = tuple(chain.from_iterable(CALLS))
LIMIT_SECONDS = 460.0
MACHINE_SECONDS = 180.0  # in which PyTorch is read from a cold disk
TIMED_SECONDS = 28.0  # expected of each measurement of speed; it may take twice as long
SWITCHES_SECONDS = 90.0  # of one case, at most
SPARE_SECONDS = 15.0  # left of a part's time when its tests are stopped
SANITIZER_ERRORS = 9  # its exit status then
TOOLS = ("memcheck", "racecheck")
GENERATION = [sys.executable, "-m", "benchmarks.generation", "many", "--device", "cuda", "--json"]
GENERATION += ["--rounds", "2"]
SWITCHED = 4  # cases on which every switch is tried
TINY = Case("tagger", 2, 8, 1, 1)
# Kernels of cuBLAS, which hold data in ways that compute-sanitizer takes for faults.
CUBLAS = "cublas|gemm|gemv|xmma|cutlass|nvjet|splitK"
_REFUSED = re.compile(r"Device not supported|Unable to find|not supported on this", re.IGNORECASE)


def at_the_beginning(wanted: Sequence[str], cores: int) -> list[Job]:
    """One after the other, before anything else: figures of the first minute."""
    switched = str(SWITCHED if "switches" in wanted else 0)
    options = ("--processes", str(max(1, cores - 2)), "--switches", switched)
    jobs = [Job("prewarm", module("prewarm", *options), 90.0)]
    if "first" in wanted:
        jobs.append(Job(f"first, {TINY.name}", module("correct", *TINY.arguments()), 90.0))
    jobs += _speed(wanted, CASES[:1])
    if "micro" in wanted:
        jobs.append(Job("micro", module("micro"), 50.0))
    return jobs


def side_by_side(
    wanted: Sequence[str], cores: int, seconds: float, keep: Path | None = None
) -> list[Job]:
    """Jobs that may run at the same time, as none is timed. The longest come first.

    Args:
        seconds: until the timed parts begin, which the tests may take.
    """

    def suite(name: str, limit: float, *options: str, needs: str = "") -> Job:
        limits = ("--limit", str(max(1.0, limit - SPARE_SECONDS)))
        kept = ("--keep", str(keep / f"{name.replace(', ', '-')}.txt")) if keep else ()
        return Job(name, module("suite", *options, *limits, *kept), limit, needs)

    jobs = []
    if "tests" in wanted:
        jobs.append(suite("tests", seconds, "--shards", str(max(1, cores - 5))))
    for tool in TOOLS if "sanitizer" in wanted else ():
        jobs.append(Job(f"{tool}, models", [*sanitizer(tool), *module("sanitized")], 150.0))
        options = ("tests/kernels/cuda", "--under", shlex.join(sanitizer(tool)), "--shards", "2")
        jobs.append(suite(f"{tool}, kernels", 180.0, *options, needs=sanitizer(tool)[0]))
    for case in CASES:
        if "correct" in wanted:
            jobs.append(Job(f"correct, {case.name}", module("correct", *case.arguments()), 100.0))
    for case in CASES:
        for side in (OURS, *PEERS[case.workload]) if "memory" in wanted else ():
            command = module("memory", *case.arguments(), "--side", side)
            jobs.append(Job(f"memory, {case.name}, {side}", command, 60.0))
    return jobs


def one_by_one(wanted: Sequence[str]) -> list[Job]:
    """Jobs that are timed, and have the machine for themselves."""
    jobs = _speed(wanted, CASES[1:])
    if "generation" in wanted:
        jobs.append(Job("generation", GENERATION, 2 * TIMED_SECONDS))
    for case in CASES[:SWITCHED] if "switches" in wanted else ():
        command = module("switches", *case.arguments())
        jobs.append(Job(f"switches, {case.name}", command, SWITCHES_SECONDS))
    return jobs


def _speed(wanted: Sequence[str], cases: Sequence[Case]) -> list[Job]:
    return [
        Job(f"speed, {case.name}", module("speed", *case.arguments()), 2 * TIMED_SECONDS)
        for case in (cases if "speed" in wanted else ())
    ]


def expected_seconds(jobs: Sequence[Job]) -> float:
    """The seconds that jobs should take: half of what they may."""
    return sum([job.limit_seconds for job in jobs]) / 2


def sanitizer(tool: str) -> list[str]:
    """The command under which another runs."""
    options = ["--tool", tool, "--error-exitcode", str(SANITIZER_ERRORS)]
    options += ["--report-api-errors", "no"]  # those that CuPy provokes and handles
    options += ["--kernel-name-exclude", f"regex={CUBLAS}"]
    return ["compute-sanitizer", *options]


def attempt(job: Job, deadline: float) -> Outcome:
    """Run a job that can run here, within what is left of the time."""
    print(f"  {job.name} ...", file=sys.stderr, flush=True)
    program = job.needs or job.command[0]
    if not shutil.which(program):
        return Outcome(job.name, "skipped", said=f"{program} is not installed")
    left = deadline - time.monotonic()
    if left < 1:
        return Outcome(job.name, "time ran out", said="not begun: the others took all of the time")
    outcome = run(replace(job, limit_seconds=min(job.limit_seconds, left)))
    if outcome.state == "failed" and job.name.startswith(TOOLS):
        if _REFUSED.search(outcome.said + outcome.found.get("log", "")):
            return replace(outcome, state="skipped")
    return outcome


def run_parts(
    wanted: Sequence[str],
    cores: int,
    limit_seconds: float,
    attempted: Callable[[Job, float], Outcome] = attempt,
    ended: Callable[[Outcome], None] = lambda outcome: None,
    keep: Path | None = None,
) -> list[Outcome]:
    """All parts: the beginning, then those that are not timed, side by side, then the timed ones.

    Args:
        ended: told of each part when it has ended; of one at a time.
        keep:  the folder for what the tests' processes write.
    """
    lock = Lock()

    def one(job: Job, deadline: float) -> Outcome:
        outcome = attempted(job, deadline)
        with lock:
            ended(outcome)
        return outcome

    begin = time.monotonic()
    first = [one(job, begin + limit_seconds) for job in at_the_beginning(wanted, cores)]
    timed = one_by_one(wanted)
    untimed_until = begin + limit_seconds - expected_seconds(timed)
    with ThreadPoolExecutor(max_workers=1 + max(1, cores // 4)) as pool:
        jobs = side_by_side(wanted, cores, untimed_until - time.monotonic(), keep)
        outcomes = list(pool.map(lambda job: one(job, untimed_until), jobs))
    return [*first, *outcomes, *[one(job, begin + limit_seconds) for job in timed]]


def write(report: dict[str, Any], folder: Path) -> Path:
    """The report as a file named by card and time; one of the same minute is replaced at once."""
    card = re.sub(r"[^a-z0-9]+", "-", report["machine"]["card"].lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu-{card}-{report['date'][:16].replace(':', '-')}.json"
    replace_whole(path, f"{json.dumps(report, indent=1)}\n".encode())
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu.check", description=__doc__)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    options.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for all")
    results = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    options.add_argument(
        "--results", type=Path, default=results, help="folder of the report, $OUT if that is set"
    )
    options.add_argument("--keep", type=Path, help="folder for records and logs of tests")
    given = options.parse_args(arguments)
    begin = time.monotonic()
    machine = run(Job("machine", module("machine"), MACHINE_SECONDS))
    if not machine.found and machine.state != "time ran out":
        print(f"gpu-check needs an NVIDIA GPU and CuPy. {machine.said}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"card": "unknown", "cores": num_processors()} | machine.found,
        "seconds": 0.0,
        "parts": {},
    }
    write(report, given.results)

    def note(outcome: Outcome) -> None:
        report["seconds"] = time.monotonic() - begin
        report["parts"][outcome.name] = asdict(outcome)
        write(report, given.results)

    left = given.limit - (time.monotonic() - begin)
    cores = report["machine"]["cores"]
    outcomes = run_parts(given.only, cores, left, attempt, note, given.keep)
    report["parts"] = {outcome.name: asdict(outcome) for outcome in outcomes}
    path = write(report, given.results)
    print(as_text(report))
    print(f"written to {path}")
    return 0 if all(outcome.state in ("passed", "skipped") for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
