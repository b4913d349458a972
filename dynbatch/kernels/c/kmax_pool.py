"""`kernels.kmax_pool` in C: the k largest so far of as many columns as a vector has lanes."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels import kmax_pool as kernels
from dynbatch.kernels.c.runtime.calls import call_of
from dynbatch.kernels.runtime.dispatch import SEGMENTS

MOST = 64  # as in kmax_pool.c

_forward = call_of(kernels.kmax_pool, SEGMENTS)
_backward = call_of(kernels.kmax_pool_backward, SEGMENTS)


def kmax_pool(x: Array, offsets: Array, k: int, out: Array, place: Array | None) -> Any:
    return NotImplemented if k > MOST else _forward(x, offsets, k, out, place)


def kmax_pool_backward(dy: Array, offsets: Array, k: int, place: Array, out: Array) -> Any:
    return NotImplemented if k > MOST else _backward(dy, offsets, k, place, out)
