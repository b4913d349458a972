"""Compiles kernels into CuPy's cache in many processes at once, before anything waits for them.

All files of the package, for float and for double, and what a training step of each case generates:
a loop's kernels are made for its widths. A module that another process compiles already is waited
for, here and in the tests, and then loaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarks.gpu.cases import CASES, Case, case_of, parser
from benchmarks.gpu.job import ROOT, module
from dynbatch.kernels.cuda import elementwise, gated
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import REAL
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda.compiling import one_compiles


def modules() -> list[tuple[str, str]]:
    """(dtype, a kernel) of each module that does not depend on a model."""
    texts = [*map(source.read, source.names()), elementwise.SOURCE, gated.SOURCE]
    return [(dtype, next(iter(text.kernels))) for text in texts for dtype in REAL]


def compile_share(number: int, count: int) -> int:
    """Compile every `count`-th module from the `number`-th; returns how many."""
    chosen = modules()[number::count]
    for text in (elementwise.SOURCE, gated.SOURCE):
        for dtype in REAL:
            queue().kernels(dtype).add(text)
    for dtype, kernel in chosen:
        queue().kernels(dtype)._compile(kernel)
    return len(chosen)


def train_few(case: Case) -> int:
    """A training step on two sentences, for what it generates; returns the kernels it compiled."""
    few = replace(case, batch=2, batches=1)
    few.ours().train(few.data()[0])
    return sum([len(queue().kernels(dtype).launches) for dtype in REAL])


def commands(processes: int) -> list[list[str]]:
    """What the processes run, those that take longest first."""
    cases = [module("prewarm", *case.arguments()) for case in CASES]
    shares = max(1, processes - len(cases))
    return [*cases, *[module("prewarm", "--share", f"{k}/{shares}") for k in range(shares)]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON to standard output; status 1 where a process failed."""
    options = parser("prewarm", __doc__)
    options.add_argument("--processes", type=int, help="at once; without it, one case alone")
    options.add_argument("--share", help="I/N: every N-th module of the package from the I-th")
    given = options.parse_args(arguments)
    if given.processes is None:
        with one_compiles():
            print(json.dumps({"kernels": _one(given)}))
        return 0
    begin = time.monotonic()
    with ThreadPoolExecutor(given.processes) as pool:
        done = list(pool.map(_run, commands(given.processes)))
    failed = [one.stderr[-600:] for one in done if one.returncode]
    print("\n".join(failed), file=sys.stderr)
    seconds = time.monotonic() - begin
    print(json.dumps({"processes": len(done), "failed": len(failed), "seconds": seconds}))
    return 1 if failed else 0


def _one(given: argparse.Namespace) -> int:
    if given.share is None:
        return train_few(case_of(given))
    number, count = map(int, given.share.split("/"))
    return compile_share(number, count)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
