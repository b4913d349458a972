"""`make gpu-check`: tests, memory and race checks, and measurements on a GPU.

    python3 -m benchmarks.gpu.check [--only first speed …] [--limit 460]

Runs from the checkout with what is installed. Every part is a process with a time limit; one that
fails stops no other. First comes what tells most in the first minute: the card, all kernels
compiled at once, a tiny training step, one case's speed. Writes
benchmarks/results/gpu-CARD-DATE-TIME.json anew after each part, so that nothing is lost where the
machine is, and prints a table.

The limit is of all parts together; what it leaves no time for says so. Two commands have time for
each of the parts in `CALLS`: what is measured, and what is checked.

Exit status: 0 all passed or skipped, 1 a part failed or its time ran out, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.gpu.cases import CASES, OURS, PEERS, Case
from benchmarks.gpu.job import ROOT, Job, Outcome, module, run
from benchmarks.gpu.table import as_text

CALLS = (
    ("first", "speed", "micro", "switches", "generation"),
    ("tests", "correct", "memory", "sanitizer"),
)
PARTS = (*CALLS[0], *CALLS[1])
LIMIT_SECONDS = 460.0
TIMED_SECONDS = 28.0  # expected of each measurement of speed; it may take twice as long
SANITIZER_ERRORS = 9  # its exit status then
TOOLS = ("memcheck", "racecheck")
GENERATION = [sys.executable, "-m", "benchmarks.generation", "many", "--device", "cuda", "--json"]
GENERATION += ["--rounds", "2"]
SWITCHED = 4  # cases on which every switch is tried
TINY = Case("tagger", 2, 8, 1, 1)
_REFUSED = re.compile(r"Device not supported|Unable to find|not supported on this", re.IGNORECASE)


def at_the_beginning(wanted: Sequence[str], cores: int) -> list[Job]:
    """One after the other, before anything else: figures of the first minute."""
    jobs = [Job("prewarm", module("prewarm", "--processes", str(max(1, cores - 2))), 90.0)]
    if "first" in wanted:
        jobs.append(Job(f"first, {TINY.name}", module("correct", *TINY.arguments()), 45.0))
    jobs += _speed(wanted, CASES[:1])
    if "micro" in wanted:
        jobs.append(Job("micro", module("micro"), 50.0, rounds=True))
    return jobs


def side_by_side(wanted: Sequence[str], cores: int) -> list[Job]:
    """What may run at the same time, as none of it is timed. The longest come first."""
    shards = max(1, cores // 2 - 1)
    jobs = []
    if "tests" in wanted:
        limits = ("--shards", str(shards), "--limit", "205")
        jobs.append(Job("tests", module("suite", *limits), 220.0))
    for tool in TOOLS if "sanitizer" in wanted else ():
        jobs.append(Job(f"{tool}, models", [*sanitizer(tool), *module("sanitized")], 150.0))
        options = ("--under", shlex.join(sanitizer(tool)), "--shards", "2", "--limit", "165")
        command = module("suite", "tests/kernels/cuda", *options)
        jobs.append(Job(f"{tool}, kernels", command, 180.0, needs=sanitizer(tool)[0]))
    for case in CASES:
        if "correct" in wanted:
            jobs.append(Job(f"correct, {case.name}", module("correct", *case.arguments()), 100.0))
    for case in CASES:
        for side in (OURS, *PEERS[case.workload]) if "memory" in wanted else ():
            command = module("memory", *case.arguments(), "--side", side)
            jobs.append(Job(f"memory, {case.name}, {side}", command, 60.0))
    return jobs


def one_by_one(wanted: Sequence[str]) -> list[Job]:
    """What is timed, and has the machine for itself."""
    jobs = _speed(wanted, CASES[1:])
    if "generation" in wanted:
        jobs.append(Job("generation", GENERATION, 2 * TIMED_SECONDS))
    for case in CASES[:SWITCHED] if "switches" in wanted else ():
        command = module("switches", *case.arguments())
        jobs.append(Job(f"switches, {case.name}", command, TIMED_SECONDS, rounds=True))
    return jobs


def _speed(wanted: Sequence[str], cases: Sequence[Case]) -> list[Job]:
    return [
        Job(f"speed, {case.name}", module("speed", *case.arguments()), 2 * TIMED_SECONDS)
        for case in (cases if "speed" in wanted else ())
    ]


def expected_seconds(jobs: Sequence[Job]) -> float:
    """What they should take: half of what they may."""
    return sum([job.limit_seconds for job in jobs]) / 2


def sanitizer(tool: str) -> list[str]:
    """The command under which another runs."""
    options = ["--tool", tool, "--error-exitcode", str(SANITIZER_ERRORS)]
    options += ["--report-api-errors", "no"]  # those that CuPy provokes and handles
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
) -> list[Outcome]:
    """All parts: the beginning, then those that are not timed, side by side, then the timed ones.

    Args:
        ended: told of each part when it has ended; of one at a time.
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
        jobs = side_by_side(wanted, cores)
        outcomes = list(pool.map(lambda job: one(job, untimed_until), jobs))
    return [*first, *outcomes, *[one(job, begin + limit_seconds) for job in timed]]


def write(report: dict[str, Any], folder: Path) -> Path:
    """The report as a file named by card and time; one of the same minute is replaced at once."""
    card = re.sub(r"[^a-z0-9]+", "-", report["machine"]["card"].lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu-{card}-{report['date'][:16].replace(':', '-')}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu.check", description=__doc__)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    options.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for all")
    options.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    given = options.parse_args(arguments)
    begin = time.monotonic()
    machine = run(Job("machine", module("machine"), 60.0))
    if not machine.found:
        print(f"gpu-check needs an NVIDIA GPU and CuPy. {machine.said}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.found,
        "seconds": 0.0,
        "parts": {},
    }

    def note(outcome: Outcome) -> None:
        report["seconds"] = time.monotonic() - begin
        report["parts"][outcome.name] = asdict(outcome)
        write(report, given.results)

    left = given.limit - (time.monotonic() - begin)
    outcomes = run_parts(given.only, machine.found["cores"], left, attempt, note)
    report["parts"] = {outcome.name: asdict(outcome) for outcome in outcomes}
    path = write(report, given.results)
    print(as_text(report))
    print(f"written to {path}")
    return 0 if all(outcome.state in ("passed", "skipped") for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
