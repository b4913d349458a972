"""A CUDA kernel against its NumPy version: the same call on both, and every array afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.ragged import Ragged
from tests.kernels.table.call import Scratch, changed
from tests.kernels.table.call import Values as Values

Array = np.ndarray[Any, np.dtype[Any]]

# A rounding of float64 in one of float32, 2^-29: a device contracts and calls functions of its own.
ROUNDINGS = float(np.finfo(np.float64).eps / np.finfo(np.float32).eps)


@contextmanager
def launches(count: int) -> Iterator[None]:
    """Require the work inside, to its flush, to launch so many kernels."""
    before = queue().launches
    yield
    assert queue().launches - before == count


def assert_versions_agree(
    kernel: Callable[..., Any],
    *arguments: Any,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **named: Any,
) -> list[Array]:
    """Call a `@kernel` with host and with device arrays; all its values must agree.

    Args:
        kernel:     what `kernel` made of a NumPy function.
        arguments:  `Values` become device arrays; so do those inside `Ragged` and named tuples.
            Everything else is passed as it is.
        rtol, atol: for float32; float64 is held to as many of its own roundings.

    Returns:
        the device's arrays, inputs and outputs, in order.
    """
    with library.reference_only():
        host, on_host = _call(kernel, arguments, named, lambda array: array.copy())
    device, on_device = _call(kernel, arguments, named, queue().cupy.asarray)
    queue().flush()
    found = []
    for position, (expected, got) in enumerate(
        zip([*host, *_flat(on_host)], [*device, *_flat(on_device)], strict=True)
    ):
        got = got if isinstance(got, np.ndarray) else got.get()
        assert got.dtype == expected.dtype and got.shape == expected.shape
        factor = 1 if got.dtype != np.float64 else ROUNDINGS
        message = f"{kernel.__name__}: array {position}"
        np.testing.assert_allclose(
            got, expected, rtol=factor * rtol, atol=factor * atol, err_msg=message
        )
        found.append(got)
    return found


def _call(kernel: Any, arguments: Any, named: Any, make: Any) -> tuple[list[Any], Any]:
    made: list[Any] = []

    def convert(value: Any) -> Any:
        if isinstance(value, Scratch):
            return make(value.array)
        if isinstance(value, Values):
            made.append(make(value.array))
            return made[-1]
        if isinstance(value, Ragged):
            return Ragged(convert(value.values), value.lengths, widths=value.widths)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[convert(item) for item in value])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return changed(value, convert)
        return value

    with np.errstate(all="ignore"):
        returned = kernel(
            *[convert(argument) for argument in arguments],
            **{name: convert(argument) for name, argument in named.items()},
        )
    return made, returned


def _flat(returned: Any) -> list[Any]:
    if returned is None or isinstance(returned, int | float):
        return []
    return [array for array in (returned if isinstance(returned, tuple) else (returned,))]
