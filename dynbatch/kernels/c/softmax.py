"""`kernels.softmax` in C: segments of one column, as those over features are."""

from __future__ import annotations

from functools import partial
from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.segment import WORTH_A_THREAD

_library = Library("softmax.c")


def softmax(x: Array, offsets: Array, out: Array) -> Any:
    return _in_segments("softmax", offsets, x, out)


def softmax_backward(dy: Array, y: Array, offsets: Array, out: Array) -> Any:
    return _in_segments("softmax_backward", offsets, dy, y, out)


def _in_segments(name: str, offsets: Array, *arrays: Array) -> Any:
    functions = _library.functions(arrays[0].dtype)
    if functions is None or arrays[0].shape[1] != 1 or not is_packed(*arrays):
        return NotImplemented
    run = getattr(functions, name)
    places = [address(offsets), *[address(array) for array in arrays]]
    count = offsets.size - 1
    least = -(-WORTH_A_THREAD * count // max(1, arrays[0].size))
    parallel.run([partial(run, *span, *places) for span in parallel.shards(count, least)])
    return None
