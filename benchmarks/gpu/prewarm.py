"""Compiles kernels into CuPy's cache in many processes at once, before anything waits for them.

All kernels of the package, for float and for double, and what a training step of each case
generates in each precision of products, and in float64 for `correct`: a loop's kernels are made for
its widths. A kernel that another process compiles already is waited for, here and in the tests, and
then loaded. Kernels of the CPU are compiled first, by one process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from benchmarks.gpu.cases import CASES, ROUNDED, Case, case_of, parser, precisions
from benchmarks.gpu.job import ROOT, module
from benchmarks.gpu.switches import SWITCHES
from dynbatch import backend
from dynbatch.errors import BackendError, DynbatchError
from dynbatch.kernels.cuda import elementwise, gated
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import REAL
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import FULL
from tests.cuda.compiling import one_compiles

FLOAT64, SWITCHED = "float64", "switches"
STEPS = (FULL, FLOAT64, *ROUNDED)  # of each case


def all_kernels() -> list[tuple[str, str]]:
    """(dtype, name) of each kernel that does not depend on a model."""
    texts = [*map(source.read, source.names()), elementwise.SOURCE, gated.SOURCE]
    return [(dtype, kernel) for text in texts for kernel in text.kernels for dtype in REAL]


def compile_share(number: int, count: int) -> int:
    """Compile every `count`-th kernel from the `number`-th; returns how many."""
    chosen = all_kernels()[number::count]
    for text in (elementwise.SOURCE, gated.SOURCE):
        for dtype in REAL:
            queue().kernels(dtype).add(text)
    for dtype, kernel in chosen:
        queue().kernels(dtype).compile(kernel)
    return len(chosen)


def train_few(case: Case, step: str = FULL) -> int:
    """A training step on two sentences, for what it generates; returns the kernels it compiled.

    Args:
        step: one of `STEPS`, or `SWITCHED`: one step for each way of each switch.
    """
    few = replace(case, batch=2, batches=1)
    batch = few.data()[0]
    if step == FLOAT64:
        few.ours().gradients(batch)
    elif step == SWITCHED:
        side = few.ours()
        for way in [way for switch in SWITCHES for way in switch.ways.values()]:
            with way(side), suppress(DynbatchError):  # the measurement says what does not run
                side.train(batch)
    elif step in precisions():
        few.ours(precision=step).train(batch)
    return sum([len(queue().kernels(dtype).launches) for dtype in REAL])


def commands(processes: int, switched: int = 0) -> list[list[str]]:
    """The commands that the processes run, those that take longest first.

    Args:
        switched: so many of the cases in each way of each switch, too.
    """
    steps = [(case, SWITCHED) for case in CASES[:switched]]
    steps += [(case, step) for step in STEPS for case in CASES]
    count = max(1, processes // 2)
    shares = [module("prewarm", "--share", f"{k}/{count}") for k in range(count)]
    return [
        *shares,
        *[module("prewarm", *case.arguments(), "--step", step) for case, step in steps],
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON to standard output; status 1 where a process failed, 2 without a GPU."""
    options = parser("prewarm", __doc__)
    options.add_argument("--processes", type=int, help="at once; without it, one case alone")
    options.add_argument(
        "--switches", type=int, metavar="N", default=0, help="the ways of N cases too"
    )
    options.add_argument("--step", choices=(*STEPS, SWITCHED), default=FULL, help="of one case")
    options.add_argument("--share", help="I/N: every N-th kernel of the package from the I-th")
    given = options.parse_args(arguments)
    if given.processes is None:
        with one_compiles():
            print(json.dumps({"kernels": _one(given)}))
        return 0
    try:
        backend.device("cuda")
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    begin = time.monotonic()
    few = replace(CASES[0], batch=2, batches=1)
    for precision in (FULL, *ROUNDED):
        few.ours("cpu", precision).train(few.data()[0])
    with ThreadPoolExecutor(given.processes) as pool:
        done = list(pool.map(_run, commands(given.processes, given.switches)))
    failed = [one.stderr[-600:] for one in done if one.returncode]
    print("\n".join(failed), file=sys.stderr)
    seconds = time.monotonic() - begin
    print(json.dumps({"processes": len(done), "failed": len(failed), "seconds": seconds}))
    return 1 if failed else 0


def _one(given: argparse.Namespace) -> int:
    if given.share is None:
        return train_few(case_of(given), given.step)
    number, count = map(int, given.share.split("/"))
    return compile_share(number, count)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
