"""Dispatches kernels to NumPy, C or CUDA by the device of their arrays.

The NumPy version is the kernel itself: always there, and the reference of the two others. NAME of
`kernels.MODULE` may have a C version and a CUDA version, each with the same name and parameters. A
version that declares its walk is derived from its text (`kernels.c.runtime.calls`,
`kernels.cuda.walks`); any other is a function of `kernels.c.MODULE`, or `kernels.cuda.MODULE`. A C
version returns `NotImplemented` for arguments that it does not take, and where no C is used;
NumPy's runs then.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast, overload

import numpy as np

from dynbatch.backend import ArraySpec
from dynbatch.errors import BackendError
from dynbatch.kernels.matrices import Matrices, run_by_matrix

P = ParamSpec("P")
Result = TypeVar("Result")


class Walk(Enum):
    """The way a kernel's version in one language goes through its arrays.

    A version with a walk has no Python of its own: its text has the kernel's name and parameters,
    and what the walk tells it besides.

    ELEMENTS: all elements of arrays of one size.
    ROWS:     the rows of matrices; in CUDA the columns of rows, or of segments, each by a thread.
    SEGMENTS: the segments of rows that the parameter `offsets` tells.
    HOST:     a function of Python, with the kernel's name and parameters, calls C or launches CUDA.
    """

    ELEMENTS = "elements"
    ROWS = "rows"
    SEGMENTS = "segments"
    HOST = "host"


ELEMENTS, ROWS, SEGMENTS, HOST = Walk


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


@overload
def kernel(
    at: int | str = 0,
    c: Walk | None = None,
    cuda: Walk | None = None,
    most: Mapping[str, int] | None = None,
) -> Callable[[Callable[P, Result]], Callable[P, Result]]: ...
@overload
def kernel(
    at: int | str = 0,
    c: Walk | None = None,
    cuda: Walk | None = None,
    most: Mapping[str, int] | None = None,
    *,
    reduced: Sequence[str],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]: ...
def kernel(
    at: int | str = 0, c: Walk | None = None, cuda: Walk | None = None,
    most: Mapping[str, int] | None = None, reduced: Sequence[str] | None = None,
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:  # fmt: skip
    """Dispatch a NumPy kernel to its version in C, or on a GPU to that in CUDA.

    Tables (offsets, ids) are NumPy arrays in each.

    Args:
        at:      which positional argument tells where the values live, an array, or a spec of
            arrays, where a size is asked for; a name means that attribute of the first argument.
        c, cuda: how the version walks; None where there is none.
        most:    the largest numbers that C takes, by the parameters' names.
        reduced: lets `offsets` be `Matrices`, and names the arrays with one row per segment. C and
            NumPy are called for each run of one width.
    """

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        label = f"{function.__module__.removeprefix('dynbatch.kernels.')}.{function.__name__}"
        parameters = [*inspect.signature(function).parameters]
        segments = None if reduced is None else parameters.index("offsets")
        of_segment = [parameters.index(name) for name in reduced or ()]
        in_c: list[Callable[P, Result]] = []
        on_gpu: list[Callable[P, Result]] = []

        @wraps(function)
        def choose(*args: P.args, **named: P.kwargs) -> Result:
            if cuda is not None:
                array = args[at] if isinstance(at, int) else getattr(args[0], at)
                if not isinstance(array, np.ndarray) and not _is_of_host(array):
                    if not on_gpu:
                        on_gpu.append(cuda_version(choose))
                    return on_gpu[0](*args, **named)
            if segments is not None and type(args[segments]) is Matrices:
                return cast(Result, run_by_matrix(choose, args, segments, of_segment))
            if c is not None:
                if not in_c:
                    in_c.append(c_version(choose))
                result = in_c[0](*args, **named)
                if result is not NotImplemented:
                    return result
            if only_c.wanted:
                raise NotInCError(label)
            return function(*args, **named)

        vars(choose).update(at=at, c=c, cuda=cuda, most=most)
        if c is not None:
            C_KERNELS[label] = choose
        if cuda is not None:
            CUDA_KERNELS[label] = choose
        return choose

    return decorate


def _is_of_host(array: object) -> bool:
    return type(array) is ArraySpec and not array.device.is_cuda


def c_version(chosen: Callable[..., object]) -> Callable[..., Any]:
    """The C version of a kernel, which has the same parameters."""
    walk = vars(chosen)["c"]
    if walk is not HOST:
        calls = importlib.import_module("dynbatch.kernels.c.runtime.calls")
        return cast(
            Callable[..., Any], calls.call_of(inspect.unwrap(chosen), walk, vars(chosen)["most"])
        )
    home = chosen.__module__.replace("dynbatch.kernels.", "dynbatch.kernels.c.", 1)
    return cast(Callable[..., Any], getattr(importlib.import_module(home), chosen.__name__))


def cuda_version(chosen: Callable[..., object]) -> Callable[..., Any]:
    """The CUDA version of a kernel, which has the same parameters.

    Raises:
        BackendError: there is none.
    """
    walk = vars(chosen)["cuda"]
    if walk is not HOST:
        walks = importlib.import_module("dynbatch.kernels.cuda.walks")
        return cast(Callable[..., Any], walks.launch_of(inspect.unwrap(chosen), walk))
    home = chosen.__module__.replace("dynbatch.kernels.", "dynbatch.kernels.cuda.", 1)
    try:
        return cast(Callable[..., Any], getattr(importlib.import_module(home), chosen.__name__))
    except (ModuleNotFoundError, AttributeError):
        label = f"{chosen.__module__.removeprefix('dynbatch.kernels.')}.{chosen.__name__}"
        raise BackendError(
            f"the kernel {label} has no CUDA version.\n"
            '  fix:  run this model with device="cpu", or report it'
        ) from None


def no_scratch_on_gpu(workspace: Callable[P, int]) -> Callable[P, int]:
    """Make a kernel's scratch size 0 if its first argument, an `ArraySpec`, is of a GPU."""

    @wraps(workspace)
    def choose(*args: P.args, **named: P.kwargs) -> int:
        spec = cast(ArraySpec, args[0])
        return 0 if spec.device.is_cuda else workspace(*args, **named)

    return choose
