"""Python threads with graphs of their own do not touch each other: a check that tries to refute it.

    python -m tests.threads --steps 2000

Several threads take steps of one kind at once, each with a model of its own or all with the same
one, while the interpreter hands over from thread to thread a thousand times as often as usual. Each
step must give, to the bit, what it gives alone. Prints how many did not, for each kind of step.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.thread_steps import OWN, PERIOD, SHARED, Make, Step

SWITCH_INTERVAL = 1e-5
"""Seconds after which a thread lets go of the interpreter; Python's default is 0.005."""

ROUNDS = 2
"""Rounds of `PERIOD` steps after which a thread makes its model anew."""


class Found(NamedTuple):
    """Counts of steps, of other bits or errors, and the first of these."""

    steps: int
    wrong: int
    first: str

    def __str__(self) -> str:
        return f"{self.wrong} wrong of {self.steps} steps{self.first and f': {self.first}'}"


@contextmanager
def switching(interval: float = SWITCH_INTERVAL) -> Iterator[None]:
    """Inside, threads take turns every `interval` seconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def check_threads(
    make: Make,
    steps: int,
    threads: int = 4,
    shared: bool = False,
    interval: float = SWITCH_INTERVAL,
) -> Found:
    """Take steps in several threads at once, and compare each with the same step taken alone.

    Args:
        make:   makes the model of a seed, and gives its step (see `thread_steps`).
        steps:  of all threads together, rounded up.
        shared: whether all threads use one model.
    """
    seeds = [0 if shared else number for number in range(threads)]
    alone = {seed: _round(make(seed)) for seed in dict.fromkeys(seeds)}
    models = dict.fromkeys(seeds, make(0)) if shared else {}
    rounds = -(-steps // (threads * PERIOD))
    begin = threading.Barrier(threads)
    problems: list[list[str]] = [[] for _ in seeds]

    def work(number: int) -> None:
        seed, found = seeds[number], problems[number]
        begin.wait()
        for k in range(rounds):
            if k % ROUNDS == 0:
                step = models.get(seed) or make(seed)
            for place, expected in enumerate(alone[seed]):
                try:
                    if step(place) != expected:
                        found.append(f"step {place} of model {seed} gave other numbers")
                except Exception as error:
                    found.append(f"step {place} of model {seed}: {type(error).__name__}: {error}")

    with switching(interval):
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    wrong = [problem for found in problems for problem in found]
    return Found(threads * rounds * PERIOD, len(wrong), wrong[0] if wrong else "")


def _round(step: Step) -> list[list[bytes]]:
    return [step(place) for place in range(PERIOD)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every kind of step; how many kinds failed.

    Raises:
        SystemExit: the arguments are wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.threads", description=__doc__.split("\n\n")[0]
    )
    kinds = {**OWN, **SHARED}
    add = parser.add_argument
    add("--steps", type=int, default=2000, help="of each kind, all threads together")
    add("--threads", type=int, default=4, help="Python threads")
    add("--interval", type=float, default=SWITCH_INTERVAL, help="seconds between two switches")
    add("--kind", choices=["all", *kinds], default="all")
    given = parser.parse_args(arguments)
    chosen = kinds if given.kind == "all" else {given.kind: kinds[given.kind]}
    failed = 0
    for name, make in chosen.items():
        found = check_threads(make, given.steps, given.threads, name in SHARED, given.interval)
        failed += found.wrong > 0
        print(f"{name:<16} {found}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
