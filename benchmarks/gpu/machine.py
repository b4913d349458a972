"""The card, driver and versions: `python -m benchmarks.gpu.machine`, as JSON.

Exit status 2, with the reason, where there is no GPU that CuPy can use.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.gpu.job import tell
from dynbatch import backend
from dynbatch.errors import BackendError
from dynbatch.kernels.runtime.parallel import num_processors

OF_TORCH: dict[str, Any] = {"cuda_of_torch": None, "cudnn": None}
PACKAGES = ("numpy", "torch", "pytest", "hypothesis", "tqdm", "safetensors")


def describe() -> Iterator[dict[str, Any]]:
    """The card and what runs on it, first without what PyTorch has to be imported for.

    None stands for what is not known.

    Raises:
        BackendError: no GPU, no driver that fits, or no CuPy.
    """
    cupy = backend.device("cuda").xp
    runtime, device = cupy.cuda.runtime, cupy.cuda.Device()
    found = {
        "card": runtime.getDeviceProperties(device.id)["name"].decode(),
        "compute_capability": device.compute_capability,
        "multiprocessors": device.attributes["MultiProcessorCount"],
        "memory_bytes": runtime.memGetInfo()[1],
        "driver": _driver(),
        "cuda_of_driver": _dotted(runtime.driverGetVersion()),
        "cuda_of_cupy": _dotted(runtime.runtimeGetVersion()),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "python": platform.python_version(),
        "cores": num_processors(),
        "cupy": cupy.__version__,
        **{package: _version(package) for package in PACKAGES},
        **OF_TORCH,
        "commit": _output(["git", "rev-parse", "--short", "HEAD"]),
    }
    yield found
    yield found | _of_torch()


def lines(found: Mapping[str, Any]) -> list[str]:
    """The findings of `describe`, for people."""
    if "driver" not in found:
        return [f"card       {found['card']}"]
    memory = found["memory_bytes"] / 2**30
    return [
        f"card       {found['card']} (sm_{found['compute_capability']}), {memory:.0f} GiB, "
        f"{found['multiprocessors']} multiprocessors, driver {found['driver']}",
        f"CUDA       {found['cuda_of_driver']} in the driver, {found['cuda_of_cupy']} in CuPy "
        f"{found['cupy']}, NVRTC {found['nvrtc']}, {found['cuda_of_torch']} in PyTorch "
        f"{found['torch']} with cuDNN {found['cudnn']}",
    ]


def _of_torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return OF_TORCH
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {"cuda_of_torch": torch.version.cuda, "cudnn": cudnn}


def _driver() -> str | None:
    return _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"])


def _output(command: list[str]) -> str | None:
    """The first line that a command prints, if it is there and succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [None])[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _dotted(number: int) -> str:
    """13000 is CUDA 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def main() -> int:
    """The command; returns its exit status."""
    try:
        tell(describe())
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
