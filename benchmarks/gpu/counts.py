"""Bytes and floating-point operations of a training step, launch by launch, without a card.

    python -m benchmarks.gpu.counts [tagger seq2seq tree transformer] [--batch 64] [--hidden 256]

Kernels run in the simulator (`tests/cuda`), compiled so that each access to global memory and each
operation is counted; what a counter says is exact, and the same in every run.

* operations: additions, multiplications, divisions, roots and functions such as `exp`, a fused
  multiply-add being two; of a product of (m, k) and (k, n) by cuBLAS, 2 m n k;
* touched: bytes that a launch reads plus bytes that it writes, each counted once a launch: what a
  device moves at least if nothing stays in its cache from one launch to the next. A product
  touches both factors and its result, twice where it adds to it;
* asked: bytes of all loads and stores of all threads, of which caches serve a part. How often
  cuBLAS reads is not known: its bytes count as touched.

Two commits are compared on the same mini-batch. Nothing here says how long a step takes.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import hashlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from dynbatch import backend
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import fake_cupy, simulator
from tests.cuda.fake_cupy import cublas

NAMES = ("tagger", "seq2seq", "tree", "transformer")
COUNTING = Path(__file__).with_name("counting.cpp")
OPERATION = re.compile(
    r"\t(?:v?(?:add|sub|mul|div|sqrt|max|min)s[sd]\t|call\t(?:exp|log|tanh|erf|cos|sin|pow|expm1|log1p)f?@)"
)
# In front of an operation: `lea` leaves the flags, which a jump behind it may read, as they are.
COUNT = """\tmovq %rax, shim_saved(%rip)
\tmovq shim_operations(%rip), %rax
\tleaq 1(%rax), %rax
\tmovq %rax, shim_operations(%rip)
\tmovq shim_saved(%rip), %rax
"""
COUNTERS = """
\t.bss
\t.globl shim_operations
\t.balign 8
shim_operations:
\t.zero 8
shim_saved:
\t.zero 8
"""


@dataclasses.dataclass
class Counts:
    """Sums over launches; the module tells of what."""

    launches: int = 0
    operations: int = 0
    touched_bytes: int = 0
    asked_bytes: int = 0

    def add(self, other: Counts) -> None:
        for field in dataclasses.fields(self):
            name = field.name
            setattr(self, name, getattr(self, name) + getattr(other, name))


@contextmanager
def counting() -> Iterator[dict[str, Counts]]:
    """Counts of launches on the stand-in inside, by name; products of cuBLAS are "gemm"."""
    found: dict[str, Counts] = defaultdict(Counts)
    launch, products = simulator.Program.launch, cublas._products
    runtime = _runtime()

    def counted_launch(self: Any, name: str, *args: Any, **options: Any) -> None:
        operations = ctypes.c_uint64.in_dll(self._library, "shim_operations")
        operations.value = 0
        launch(self, name, *args, **options)
        counts = (ctypes.c_uint64 * 4)()
        runtime.shim_counts(counts)
        asked, touched = sum(counts[:2]), sum(counts[2:])
        found[name].add(Counts(1, operations.value, touched, asked))

    def counted_product(
        kind: Any, handle: int, transa: int, transb: int, m: int, n: int, k: int,
        alpha: int, a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int,
        count: int | None = None, precision: str = "",
    ) -> None:  # fmt: skip
        products(
            kind, handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, count,
            precision,
        )  # fmt: skip
        count, dtype = 1 if count is None else count, np.dtype(kind)
        adds = bool(cublas._scalar(beta, dtype))
        touched = (m * k + k * n + (1 + adds) * m * n) * count * dtype.itemsize
        found["gemm"].add(Counts(1, 2 * m * n * k * count, touched, touched))

    with (
        mock.patch.object(simulator, "_runtime", lambda: runtime),
        mock.patch.object(simulator, "_compile", _compile),
        # Another name of the library than that which the race checker watches.
        mock.patch.object(simulator, "CHECKED", [*simulator.CHECKED, f"-D{_version()}"]),
        mock.patch.object(simulator.Program, "launch", counted_launch),
        mock.patch.object(cublas, "_products", counted_product),
        mock.patch.object(fake_cupy.settings, "checked", True),
        backend.stand_in(fake_cupy),
    ):
        fake_cupy.raw._program.cache_clear()
        try:
            yield found
        finally:
            queue().discard()
            fake_cupy.raw._program.cache_clear()


def _version() -> str:
    text = "".join([COUNT, COUNTERS, OPERATION.pattern])
    return f"COUNTED_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _runtime() -> Any:
    """The scheduler of the simulator with counters in place of its checker."""
    unit = '#include "runtime.cpp"\n' + COUNTING.read_text()
    options, included = [*simulator.COMMON, *simulator.RUNTIME], simulator._text("h", "cpp")
    path = simulator._library("runtime", unit, options, [simulator.SHIM], [], included)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.shim_message.restype = ctypes.c_char_p
    return library


def _compile(command: list[str]) -> None:
    """g++, and where it compiles kernels, with a counter in front of each operation."""
    if "-fsanitize=thread" not in command or "-c" not in command:  # or the header that all include
        subprocess.run(command, check=True)
        return
    out = Path(command[command.index("-o") + 1])
    text = out.with_suffix(".s")
    command = [{"-c": "-S", str(out): str(text)}.get(word, word) for word in command]
    subprocess.run([*command, "-fno-tree-vectorize"], check=True)
    lines = text.read_text().splitlines(keepends=True)
    counted = [f"{COUNT}{line}" if OPERATION.match(line) else line for line in lines]
    text.write_text("".join(counted) + COUNTERS)
    subprocess.run(["g++", "-c", str(text), "-o", str(out)], check=True)


def count(workload: str, batch: int, hidden: int | None = None) -> dict[str, Counts]:
    """One training step of a workload, by launch, and the sum as "total"; not the first step."""
    model = WORKLOADS[workload]
    if hidden is not None:
        model = model.with_hidden(hidden)
    corpus = model.corpus(REAL_TEXT_SIGMA)
    rng = np.random.default_rng(1)
    (sentences,), (few,) = (corpus.random_batches(rng, 1, size) for size in (batch, 2))
    with counting() as found:
        values = initial_values(model.sizes, np.random.default_rng(1))
        ours = model.ours(model.sizes, values, "cuda")
        ours.train(few)
        found.clear()
        before = queue().uploaded_bytes
        ours.train(sentences)
        uploaded = queue().uploaded_bytes - before
    total = Counts()
    for one in found.values():
        total.add(one)
    total.touched_bytes += uploaded
    ordered = sorted(found, key=lambda name: -found[name].touched_bytes)
    return {"total": total} | {name: found[name] for name in ordered}


def as_text(found: dict[str, dict[str, Counts]]) -> str:
    """A table for each workload."""
    lines = []
    for workload, counts in found.items():
        lines.append(f"{workload:32}{'launches':>9}{'Mflop':>10}{'touched MB':>12}{'asked MB':>11}")
        for name, one in counts.items():
            lines.append(
                f"  {name[:30]:30}{one.launches:9}{one.operations / 1e6:10.2f}"
                f"{one.touched_bytes / 1e6:12.2f}{one.asked_bytes / 1e6:11.2f}"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.counts", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(NAMES)}; all without any")
    parser.add_argument("--batch", type=int, default=64, help="sentences")
    parser.add_argument("--hidden", type=int, help="width; without it that of the benchmark")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args(arguments)
    found = {
        name: count(name, options.batch, options.hidden) for name in options.workloads or NAMES
    }
    as_json = {
        workload: {name: dataclasses.asdict(one) for name, one in counts.items()}
        for workload, counts in found.items()
    }
    show(as_text(found), as_json, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
