"""Dispatches kernels to NumPy, C or CUDA by the device of their arrays.

The NumPy version is the kernel itself: always there, and the reference of the two others. NAME of
`kernels.MODULE` may have a C version in `kernels.c.MODULE` and a CUDA version in
`kernels.cuda.MODULE`, each with the same name and parameters. A C version returns `NotImplemented`
for arguments that it does not take, and where no C is used; NumPy's runs then.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import numpy as np

from dynbatch.backend import ArraySpec
from dynbatch.errors import BackendError

P = ParamSpec("P")
Result = TypeVar("Result")

CUDA_KERNELS: dict[str, Callable[..., object]] = {}
"""Every kernel that has a CUDA version, as MODULE.NAME."""

C_KERNELS: dict[str, Callable[..., object]] = {}
"""Every kernel that has a C version, as MODULE.NAME."""


class NotInCError(Exception):
    """A kernel that was to run in C has no version there for its arguments."""


class OnlyC(threading.local):
    """Whether this thread wants kernels to run in C, or not at all."""

    wanted = False


only_c = OnlyC()


def has_c(kernel: Callable[P, Result]) -> Callable[P, Result]:
    """Dispatch the kernel NAME of `kernels.MODULE` to NAME of `kernels.c.MODULE` where it can run.

    It stands below `has_cuda`, whose arrays on a CPU come here.
    """
    label = f"{kernel.__module__.removeprefix('dynbatch.kernels.')}.{kernel.__name__}"
    known: list[Callable[..., object]] = []

    @wraps(kernel)
    def choose(*args: P.args, **named: P.kwargs) -> Result:
        if not known:
            known.append(c_version(choose))
        result = known[0](*args, **named)
        if result is not NotImplemented:
            return cast(Result, result)
        if only_c.wanted:
            raise NotInCError(label)
        return kernel(*args, **named)

    C_KERNELS[label] = choose
    return choose


def c_version(kernel: Callable[..., object]) -> Callable[..., object]:
    """The C version of a kernel, which has the same parameters."""
    home = kernel.__module__.replace("dynbatch.kernels.", "dynbatch.kernels.c.", 1)
    return cast(Callable[..., object], getattr(importlib.import_module(home), kernel.__name__))


def has_cuda(decider: int | str = 0) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Dispatch the kernel NAME of `kernels.MODULE` to NAME of `kernels.cuda.MODULE` on a GPU.

    Both have the same parameters. Tables (offsets, ids) are NumPy arrays in both.

    Args:
        decider: which positional argument tells where the values live, an array, or a spec of
            arrays, where a size is asked for; a name means that attribute of the first argument.
    """

    def decorate(kernel: Callable[P, Result]) -> Callable[P, Result]:
        module = kernel.__module__.removeprefix("dynbatch.kernels.")
        name = kernel.__name__
        known: list[Callable[P, Result]] = []

        @wraps(kernel)
        def choose(*args: P.args, **named: P.kwargs) -> Result:
            array = args[decider] if isinstance(decider, int) else getattr(args[0], decider)
            if isinstance(array, np.ndarray) or (
                type(array) is ArraySpec and not array.device.is_cuda
            ):
                return kernel(*args, **named)
            if not known:
                known.append(cast(Callable[P, Result], cuda_version(module, name)))
            return known[0](*args, **named)

        choose.decider = decider  # type: ignore[attr-defined]
        CUDA_KERNELS[f"{module}.{name}"] = choose
        return choose

    return decorate


def no_scratch_on_gpu(workspace: Callable[P, int]) -> Callable[P, int]:
    """Make a kernel's scratch size 0 if its first argument, an `ArraySpec`, is of a GPU."""

    @wraps(workspace)
    def choose(*args: P.args, **named: P.kwargs) -> int:
        spec = cast(ArraySpec, args[0])
        return 0 if spec.device.is_cuda else workspace(*args, **named)

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
