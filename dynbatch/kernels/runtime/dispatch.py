"""Dispatches kernels to the NumPy or the CUDA version by the device of their arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import numpy as np

from dynbatch.errors import BackendError

P = ParamSpec("P")
Result = TypeVar("Result")

CUDA_KERNELS: dict[str, Callable[..., object]] = {}
"""Every kernel that has a CUDA version, as MODULE.NAME."""


def has_cuda(decider: int | str = 0) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Dispatch the kernel NAME of `kernels.MODULE` to NAME of `kernels.cuda.MODULE` on a GPU.

    Both have the same parameters. Tables (offsets, ids) are NumPy arrays in both.

    Args:
        decider: which positional argument tells where the values live; a name means that attribute
            of the first argument.
    """

    def decorate(kernel: Callable[P, Result]) -> Callable[P, Result]:
        module = kernel.__module__.removeprefix("dynbatch.kernels.")
        name = kernel.__name__
        known: list[Callable[P, Result]] = []

        @wraps(kernel)
        def choose(*args: P.args, **named: P.kwargs) -> Result:
            array = args[decider] if isinstance(decider, int) else getattr(args[0], decider)
            if isinstance(array, np.ndarray):
                return kernel(*args, **named)
            if not known:
                known.append(cast(Callable[P, Result], cuda_version(module, name)))
            return known[0](*args, **named)

        choose.decider = decider  # type: ignore[attr-defined]
        CUDA_KERNELS[f"{module}.{name}"] = choose
        return choose

    return decorate


def no_scratch_on_gpu(workspace: Callable[P, int]) -> Callable[P, int]:
    """Make a kernel's scratch size 0 if its first argument is on a GPU."""

    @wraps(workspace)
    def choose(*args: P.args, **named: P.kwargs) -> int:
        return workspace(*args, **named) if isinstance(args[0], np.ndarray) else 0

    return choose


def cuda_version(module: str, name: str) -> Callable[..., object]:
    """The CUDA kernel of that name.

    Raises:
        BackendError: there is none.
    """
    try:
        home = importlib.import_module(f"dynbatch.kernels.cuda.{module}")
        return cast(Callable[..., object], getattr(home, name))
    except (ModuleNotFoundError, AttributeError):
        raise BackendError(
            f"the kernel {module}.{name} has no CUDA version.\n"
            '  fix:  run this model with device="cpu", or report it'
        ) from None
