"""The time of a training step on a GPU: the host's share, and how busy the device is.

Steps are measured in two ways. *Alone*: the device is idle before, and waited for after: the host
works until all is queued, and the device until it is done. *In a row*: many steps and one wait at
the end, as a training loop that does not read each loss; host and device work at the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.trace import device_work
from benchmarks.measure import Contender
from benchmarks.workloads.contender import DynbatchContender
from dynbatch import backend


def alone(contender: Contender, prepared: Sequence[Any]) -> dict[str, float]:
    """Medians in ms over single steps: `queued_ms` of Python until everything is handed over,
    `done_ms` by CUDA events until the device is done, and the host's share of that, 0 to 1.

    Both sides work on the default stream, so events of CuPy time PyTorch too.
    """
    steps = [_step_alone(contender, one) for one in prepared]
    queued, done, wall = (statistics.median(column) for column in zip(*steps, strict=True))
    return {"queued_ms": queued, "done_ms": done, "wall_ms": wall, "host_share": queued / wall}


def _step_alone(contender: Contender, prepared: Any) -> tuple[float, float, float]:
    cuda = backend.cupy().cuda
    first, last = cuda.Event(), cuda.Event()
    contender.wait()
    begin = time.perf_counter()
    first.record()
    read = contender.start(prepared)
    queued = time.perf_counter()
    last.record()
    last.synchronize()
    done = time.perf_counter()
    read()
    return 1e3 * (queued - begin), cuda.get_elapsed_time(first, last), 1e3 * (done - begin)


def parts(ours: DynbatchContender, count: int) -> dict[str, float]:
    """Medians in ms of what the host did in dynbatch's last `count` steps.

    `build_ms` makes the nodes, `run_ms` plans and hands over forward and backward, `update_ms`
    hands over the update.
    """
    costs = ours.costs[-count:]

    def median(values: list[float]) -> float:
        return 1e3 * statistics.median(values)

    return {
        "build_ms": median([c.build_seconds for c in costs]),
        "run_ms": median([c.step_seconds - c.build_seconds - c.update_seconds for c in costs]),
        "update_ms": median([c.update_seconds for c in costs]),
    }


def in_a_row(contender: Contender, prepared: Sequence[Any]) -> float:
    """Seconds a step when nothing is waited for but the end of the last."""
    contender.wait()
    begin = time.perf_counter()
    reads = [contender.start(one) for one in prepared]
    contender.wait()
    elapsed = time.perf_counter() - begin
    for read in reads:
        read()
    return elapsed / len(prepared)


def busy(contender: Contender, prepared: Sequence[Any], row_seconds: float) -> dict[str, Any]:
    """Seconds of the device for a step, and its share of a step in a row; None unrecorded.

    Kernels' durations come from a recording, the step's from `in_a_row` without one: recording
    slows the host down.
    """
    work = device_work(lambda: in_a_row(contender, prepared))
    if work is None:
        return {"device_ms": None, "busy": None, "kernels": None, "longest": []}
    seconds = work.busy_seconds / len(prepared)
    return {
        "device_ms": 1e3 * seconds,
        "busy": min(1.0, seconds / row_seconds),
        "busy_while_recorded": work.busy_seconds / work.span_seconds,
        "kernels": work.launches / len(prepared),
        "longest": [
            {"kernel": name, "ms": 1e3 * total / len(prepared), "launches": count / len(prepared)}
            for name, total, count in work.longest
        ],
    }
