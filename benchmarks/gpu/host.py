"""Host time of a launch with the device's start stubbed: no card is needed.

    python -m benchmarks.gpu.host                     # this checkout
    python -m benchmarks.gpu.host --beside CHECKOUT   # and another one, in turns

Counted is the processor time from `queue.launch` to the call that would start the kernel, the
flush with its upload included, for launches of three kinds, and that of whole training steps,
divided by their launches. It is the least of many rounds. dynbatch runs on the stand-in for CuPy,
whose kernels, products and copies of tables are replaced by a function that does nothing.

With `--beside`, processes of both checkouts take turns, so that a busy moment of the machine meets
both. A checkout that starts kernels by CuPy's kernel object is stubbed there: what CuPy then takes
to convert the arguments is not counted for it, whereas the packing of arguments is always counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from dynbatch import backend
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from tests.cuda import fake_cupy
from tests.cuda.fake_cupy import array as device_array
from tests.cuda.fake_cupy import memory, raw, stream

try:
    from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
    from dynbatch.kernels.cuda.runtime.packing import PerStep
except ImportError:  # a checkout of before
    PreparedLoop = None

ROOT = Path(__file__).parents[2]
FLOAT32 = np.dtype("float32")
# A kernel with about as many parameters as one of an LSTM's steps.
POINTERS, NUMBERS = 8, 8
STEP = f"""
extern "C" __global__ void step({", ".join(f"REAL* x{k}" for k in range(POINTERS))},
    {", ".join(f"int n{k}" for k in range(NUMBERS))}, const int* table, int t) {{}}

extern "C" __global__ void ordinary(const REAL* a, int a_stride, const REAL* b, int b_stride,
    const int* table, REAL* c, int c_stride, int rows, int width) {{}}
"""
LAUNCHES = 400  # of a flush: about a training step's


def nothing(*args: object, **options: object) -> None:
    """Stands in for a start."""


def stub() -> None:
    """Let the stand-in compile, copy, start and check nothing, in this process, from now on."""
    memory.FREED_BYTES = 0  # which it would look through whenever memory is freed
    memory.require_device = device_array.require_device = nothing
    memory.MemoryPointer.copy_from_host_async = nothing
    stream.Event.record = nothing
    raw.RawModule.get_function = lambda self, name: raw.RawKernel(self, name)
    if hasattr(raw, "launchKernel"):
        fake_cupy.cuda.driver.launchKernel = nothing
    else:
        raw.RawKernel.__call__ = nothing
    library = fake_cupy.cuda.cublas
    for name in vars(library):
        if "gemm" in name:
            setattr(library, name, nothing)


def array(size: int) -> SimpleNamespace:
    """A device array with attributes as cheap as CuPy's."""
    made = fake_cupy.zeros(size, np.float32)
    flags = SimpleNamespace(c_contiguous=True)
    return SimpleNamespace(dtype=made.dtype, data=SimpleNamespace(ptr=made.data.ptr), flags=flags)


def least(work: Callable[[], object], rounds: int) -> float:
    """The least microseconds of this thread that a call took."""
    times = []
    for _ in range(rounds):
        begin = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - begin)
    return min(times) / 1e3


def loop_in_turn(made: Queue) -> None:
    """A kernel and a product a step, each queued for itself."""
    given, cublas = arguments(), made.cublas(FLOAT32)
    for number in range(LAUNCHES // 2):
        made.launch(FLOAT32, "step", (8,), (128,), (*given, number))
        cublas.gemm(False, True, 8, 8, 8, 1, 8, 2, 8, 0, 64 * number, 8)


def loop(made: Queue) -> None:
    """The loop, prepared where this checkout can."""
    if PreparedLoop is None:
        return loop_in_turn(made)
    numbers = np.arange(LAUNCHES // 2)
    whole = PreparedLoop(made, FLOAT32, numbers.size)
    whole.kernel("step", (8,), (128,), (*arguments(), PerStep(numbers)))
    whole.product(False, True, 8, 8, 8, 1, 8, 2, 8, 0, 64 * numbers, 8)
    made.add(whole)


def ordinary(made: Queue) -> None:
    """Kernels with arrays, numbers and a table of their own."""
    for args in ORDINARY:
        made.launch(FLOAT32, "ordinary", (8, 1), (8, 16), args)


ORDINARY = [(array(64), 8, None, 0, np.arange(64), array(64), 8, 64, 8) for _ in range(LAUNCHES)]


def launches(rounds: int) -> dict[str, float]:
    """Microseconds of a launch, by kind."""
    made = Queue(fake_cupy)
    made.kernels(FLOAT32).add(source.join("step.cu", STEP))
    found = {}
    for kind in (loop_in_turn, loop, ordinary):

        def run(kind: Callable[[Queue], None] = kind) -> None:
            kind(made)
            made.flush()

        found[kind.__name__] = least(run, rounds) / LAUNCHES
    return found


def step_of(name: str, batch: int, hidden: int, rounds: int) -> dict[str, float]:
    """Launches of a training step of a workload, microseconds of it, and those for each launch."""
    workload = WORKLOADS[name]
    if name in ("tagger", "seq2seq"):
        workload = workload.with_hidden(hidden)
    rng = np.random.default_rng(1)
    batch_of = workload.corpus(workload.sigma).random_batches(rng, 1, batch)[0]
    values = initial_values(workload.sizes, np.random.default_rng(1))
    ours = workload.ours(workload.sizes, values, "cuda")
    ours.train(batch_of)
    before = queue().launches
    ours.train(batch_of)
    count = queue().launches - before
    whole = least(lambda: ours.train(batch_of), rounds)
    return {
        f"{name}: launches": count, f"{name}: a step": whole, f"{name}: a launch": whole / count
    }  # fmt: skip


def arguments() -> tuple[int | np.ndarray, ...]:
    """All arguments of the kernel `step` but the last: addresses, numbers and a table."""
    return (*range(1, 1 + POINTERS), *range(NUMBERS), np.arange(64))


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Microseconds of a launch by kind, and figures of steps, in this process."""
    warnings.simplefilter("ignore")
    stub()
    with backend.stand_in(fake_cupy), np.errstate(all="ignore"):
        found = launches(options.rounds)
        for name in options.workloads:
            found |= step_of(name, options.batch, options.hidden, max(1, options.rounds // 10))
    return found


def in_turns(checkouts: Sequence[Path], given: Sequence[str], turns: int) -> list[dict[str, float]]:
    """The least of each figure, for each checkout, over processes that take turns."""
    found: list[dict[str, float]] = [{} for _ in checkouts]
    for _ in range(turns):
        for checkout, figures in zip(checkouts, found, strict=True):
            command = [sys.executable, "-P", __file__, "--measure", *given]
            environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True
            )
            for name, figure in json.loads(done.stdout).items():
                figures[name] = min(figure, figures.get(name, figure))
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], help="whole steps too")
    made.add_argument("--beside", type=Path, help="another checkout, in turns with this one")
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--hidden", type=int, default=256)
    made.add_argument("--rounds", type=int, default=50, help="in a process; steps a tenth of it")
    made.add_argument("--turns", type=int, default=5, help="processes of each checkout")
    made.add_argument("--json", action="store_true")
    made.add_argument("--measure", action="store_true", help="in this process, as JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    if options.measure:
        print(json.dumps(measured(options)))
        return
    checkouts = [ROOT] if options.beside is None else [ROOT, options.beside.resolve()]
    names = ["this checkout", str(options.beside)][: len(checkouts)]
    found = in_turns(checkouts, given, options.turns)
    lines = [f"{'least us of the host, a launch':36}" + "".join([f"{name:>18}" for name in names])]
    for kind in found[0]:
        row = [figures.get(kind, math.nan) for figures in found]
        lines.append(f"{kind:36}" + "".join([f"{figure:18.2f}" for figure in row]))
    show("\n".join(lines), dict(zip(names, found, strict=True)), options.json)


if __name__ == "__main__":
    main()
