"""The environment of a run: versions, matrix kernels, and the settings that change them."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu import machine
from benchmarks.measure import Contender
from dynbatch.kernels.runtime import openblas
from dynbatch.kernels.runtime.parallel import num_processors

# Environment variables that change speed begin with one of these.
_SETTINGS = ("DNNL", "GOMP", "KMP", "LD_PRELOAD", "MALLOC", "MKL", "OMP", "ONEDNN", "OPENBLAS")
_GPU_SETTINGS = ("CUBLAS", "CUDA", "CUPY", "NVIDIA_TF32", "PYTORCH")
_QUIET = 0.1  # processors that others may use before times count as disturbed
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc, malloc.h


def versions(contenders: Sequence[Contender]) -> dict[str, str]:
    """Version of Python and of everything that was timed, by name."""
    found = {"python": platform.python_version()}
    for package in ("dynbatch", "numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package == "dynbatch":
                found[package] = "as checked out"  # run from its folder, not installed
    for contender in contenders:
        framework = contender.name.partition("-")[0]
        if framework in ("dynet", "tensorflow"):
            found[framework] = str(getattr(contender, "version", "unknown"))
    return found


def kernel_lines(device: str = "cpu") -> list[str]:
    """One line per library of matrix kernels in this process, and per environment setting."""
    lines = [f"processor  {processor_name()}, {num_processors()} available"]
    lines += [f"numpy      {line}" for line in _numpy_kernels()]
    if device == "cuda":
        *_, described = machine.describe()
        lines += machine.lines(described)
    elif "torch" in sys.modules:
        from benchmarks.peers.pytorch import kernels

        lines += [f"torch      {line}" for line in kernels()]
    lines += [
        f"setting    {name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(_SETTINGS + (_GPU_SETTINGS if device == "cuda" else ()))
    ]
    return lines


class OtherWork:
    """The share of the processors that others used, from when this was made."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), _busy_seconds() - _own_seconds()

    def cores(self) -> float:
        """Processors that others kept busy, on average; 0.0 where the system does not say.

        Ended child processes count as our own, running ones do not.
        """
        start, before = self._begin
        elapsed = time.perf_counter() - start
        return max(0.0, (_busy_seconds() - _own_seconds() - before) / elapsed)

    def warning(self) -> str:
        """A sentence that tells people not to trust the times, or nothing."""
        cores = self.cores()
        if cores <= _QUIET:
            return ""
        return (
            f"WARNING: other work kept {cores:.1f} processors busy meanwhile. Times are too long, "
            "PyTorch's most: its threads spin while they wait."
        )


def _busy_seconds() -> float:
    """Seconds of all processors not idle since the machine started, stolen ones included."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed instead of giving it back. False where that is impossible.

    By default it returns large blocks to the system, and every step then pays for the page faults
    of getting them anew; most of all a step with large padded tensors.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))


def _numpy_kernels() -> list[str]:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return [f"OpenBLAS with {openblas.core_name()} kernels"]
    return [
        f"{pool['internal_api']} {pool['version']}, kernels {pool.get('architecture', 'unknown')}, "
        f"{pool['num_threads']} threads outside a graph and 1 inside, {Path(pool['filepath']).name}"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]


def processor_name() -> str:
    """The processor's model, with family and model number: "AMD EPYC" has several."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    family = f"family {named.get('cpu family', '?')} model {named.get('model', '?')}"
    return f"{named.get('model name', platform.machine())} ({family})"
