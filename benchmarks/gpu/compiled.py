"""Modules that a first training step compiles for a GPU, and how long NVRTC takes; no card.

    python -m benchmarks.gpu.compiled [tagger seq2seq transformer tree] [--beside CHECKOUT]

A step is planned, queued and flushed on the stand-in for CuPy, which notes each module that is
asked for and runs nothing. NVRTC then compiles the modules to device binaries, as CuPy would on a
machine whose cache of kernels is empty.

* kernels: functions in the modules; launched: those of them that the step starts;
* NVRTC s: processor seconds of all modules, least of the rounds;
* longest: of one module: on a machine with processors enough, a flush takes no less;
* on 2, on 16: seconds where threads compile the modules of a flush in order on so many processors,
  reckoned from the processor seconds of each. A checkout that compiles module after module takes
  the sum on any machine;
* clock, in turn and in threads: seconds by the clock on this machine, one module after the other,
  and in as many threads as there are processors: worth something only if it is idle.

With `--beside`, another checkout's modules are compiled in turns with this one's.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu import host
from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from dynbatch import backend
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.queue import Queue
from tests.cuda import fake_cupy, nvrtc
from tests.cuda.fake_cupy import raw

NAMES = ("tagger", "seq2seq", "transformer")
PROCESSORS = (2, 16)
HERE = len(os.sched_getaffinity(0))  # checkouts before `num_processors` are listed by this file


class Module(NamedTuple):
    """A module that a step has compiled.

    options:  those of the `RawModule`.
    kernels:  in its text.
    launched: those of them that the step starts.
    flush:    in which it is needed, from 0 on.
    """

    text: str
    options: Sequence[str]
    kernels: Sequence[str]
    launched: Sequence[str]
    flush: int


def first_step(workload: str, batch: int) -> list[Module]:
    """The modules of a training step in this process, whose stand-in runs nothing from now on."""
    warnings.simplefilter("ignore")
    host.stub()
    made: dict[tuple[str, tuple[str, ...]], Module] = {}
    flushes, flush = [0], Queue.flush

    def note(self: raw.RawModule, name: str) -> raw.RawKernel:
        given = getattr(self, "options", self._defines)  # older stand-ins keep those alone
        key = self.code, tuple([each for each in given if not each.startswith("-std")])
        kernels = list(source.signatures(self.code))
        made.setdefault(key, Module(*key, kernels, [], flushes[0])).launched.append(name)  # type: ignore[attr-defined]
        return raw.RawKernel(self, name)

    def counted(self: Queue) -> None:
        flush(self)
        flushes[0] += 1

    raw.RawModule.get_function = note  # type: ignore[method-assign]
    Queue.flush = counted  # type: ignore[method-assign]
    model = WORKLOADS[workload]
    rng = np.random.default_rng(1)
    with backend.stand_in(fake_cupy), np.errstate(all="ignore"):
        values = initial_values(model.sizes, np.random.default_rng(1))
        sentences = model.corpus(model.sigma).random_batches(rng, 1, batch)[0]
        model.ours(model.sizes, values, "cuda").train(sentences)
    return list(made.values())


def first_step_of(checkout: Path, workload: str, batch: int) -> list[Module]:
    """The modules of a training step, as a checkout has them, in a process of its own."""
    command = [sys.executable, "-P", __file__, workload, "--list", "--batch", str(batch)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True
    )
    return [Module(*each) for each in json.loads(done.stdout)]


def compile_one(module: Module, architecture: int) -> float:
    """Compile a module with the options of CuPy; the processor seconds of this thread."""
    options = nvrtc.cupy_options(architecture, ("-std=c++17", *module.options))
    begin = time.thread_time()
    nvrtc.compiled_log(module.text, "module.cu", architecture, (*options, "--no-cache"))
    return time.thread_time() - begin


def seconds_on(processors: int, seconds: Sequence[float]) -> float:
    """Seconds until all is done, if each piece of work is begun, in order, by the first free."""
    ends = [0.0] * processors
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def compile_all(
    modules: Sequence[Module], architecture: int, threads: int
) -> tuple[list[float], float]:
    """Processor seconds of each module, and seconds by the clock until all are compiled.

    Args:
        threads: which compile the modules of a flush, in order.
    """
    begin, seconds = time.perf_counter(), []
    with ThreadPoolExecutor(threads) as pool:
        for _, flush in groupby(modules, lambda module: module.flush):
            seconds += pool.map(lambda module: compile_one(module, architecture), flush)
    return seconds, time.perf_counter() - begin


def measured(
    steps: Sequence[Sequence[Module]], architecture: int, rounds: int
) -> list[dict[str, float]]:
    """The figures of the same step in each checkout, which take turns."""
    seconds = [[math.inf] * len(modules) for modules in steps]
    clock = [{1: math.inf, HERE: math.inf} for _ in steps]
    for _ in range(rounds):
        for modules, least, clocks in zip(steps, seconds, clock, strict=True):
            for threads in clocks:
                each, taken = compile_all(modules, architecture, threads)
                least[:] = map(min, least, each)
                clocks[threads] = min(clocks[threads], taken)
    found = []
    for modules, least, clocks in zip(steps, seconds, clock, strict=True):
        flushes = [
            [taken for _, taken in each]
            for _, each in groupby(zip(modules, least, strict=True), lambda each: each[0].flush)
        ]
        kernels = sum([len(module.kernels) for module in modules])
        figures: dict[str, float] = {"kernels": kernels, "modules": len(modules)}
        figures["launched"] = sum([len(module.launched) for module in modules])
        figures["NVRTC s"], figures["longest"] = sum(least), max(least)
        for count in PROCESSORS:
            figures[f"on {count}"] = sum([seconds_on(count, flush) for flush in flushes])
        figures["clock, in turn"], figures["in threads"] = clocks[1], clocks[HERE]
        found.append(figures)
    return found


def as_text(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """A line for each workload and checkout."""
    columns = list(next(iter(next(iter(found.values())).values())))
    lines = [f"{'first step of':14}{'checkout':18}" + "".join([f"{each:>16}" for each in columns])]
    for workload, checkouts in found.items():
        for name, figures in checkouts.items():
            numbers = [
                f"{value:16}" if isinstance(value, int) else f"{value:16.2f}"
                for value in figures.values()
            ]
            lines.append(f"{workload:14}{name[-17:]:18}" + "".join(numbers))
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS])
    made.add_argument("--beside", type=Path, help="another checkout, in turns with this one")
    made.add_argument("--batch", type=int, default=64, help="sentences")
    made.add_argument("--architecture", type=int, default=90, help="of the GPU: 90 is sm_90")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--json", action="store_true")
    made.add_argument("--list", action="store_true", help="this checkout's modules, as JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parser().parse_args(arguments)
    if options.list:
        print(json.dumps(first_step(*options.workloads, options.batch)))
        return 0
    if why := nvrtc.missing(options.architecture):
        sys.exit(why)
    checkouts = [host.ROOT] if options.beside is None else [options.beside.resolve(), host.ROOT]
    names = ["this checkout"] if options.beside is None else [str(options.beside), "this checkout"]
    found: dict[str, Any] = {}
    for workload in options.workloads or NAMES:
        steps = [first_step_of(checkout, workload, options.batch) for checkout in checkouts]
        figures = measured(steps, options.architecture, options.rounds)
        found[workload] = dict(zip(names, figures, strict=True))
    show(as_text(found), found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
