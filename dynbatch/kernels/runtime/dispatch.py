"""Which twin of a kernel runs: NumPy's, or the CUDA one of the same name, where its arrays live."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from dynbatch.errors import BackendError

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

CUDA_KERNELS: dict[str, Callable[..., Any]] = {}
"""Every kernel that has a CUDA twin, as MODULE.NAME."""


def has_cuda(place: int | str = 0) -> Callable[[Kernel], Kernel]:
    """Let a kernel NAME of `kernels.MODULE` give way to NAME of `kernels.cuda.MODULE`.

    Both have the same parameters. Tables (offsets, ids) are NumPy arrays in both.

    Args:
        place: which positional argument tells where the values live; a name means that attribute
            of the first argument.
    """

    def decorate(kernel: Kernel) -> Kernel:
        module = kernel.__module__.removeprefix("dynbatch.kernels.")
        name = kernel.__name__
        found: list[Callable[..., Any]] = []

        @wraps(kernel)
        def choose(*args: Any, **named: Any) -> Any:
            array = args[place] if isinstance(place, int) else getattr(args[0], place)
            if isinstance(array, np.ndarray):
                return kernel(*args, **named)
            if not found:
                found.append(cuda_version(module, name))
            return found[0](*args, **named)

        choose.place = place  # type: ignore[attr-defined]
        CUDA_KERNELS[f"{module}.{name}"] = choose
        return cast(Kernel, choose)

    return decorate


def cuda_version(module: str, name: str) -> Callable[..., Any]:
    """The CUDA kernel of that name.

    Raises:
        BackendError: there is none.
    """
    try:
        home = importlib.import_module(f"dynbatch.kernels.cuda.{module}")
        return cast(Callable[..., Any], getattr(home, name))
    except (ModuleNotFoundError, AttributeError):
        raise BackendError(
            f"the kernel {module}.{name} has no CUDA twin.\n"
            '  fix:  run this model with device="cpu", or report it'
        ) from None
