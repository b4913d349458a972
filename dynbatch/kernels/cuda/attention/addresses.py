"""Launches of `addresses.cu`: rows that lie anywhere on the device."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.cupy_types import device_address
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.walks import row_grid


def read_rows(addresses: Array, out: Array) -> None:
    _run("read_rows", out, addresses)


def write_rows(rows: Array, addresses: Array) -> None:
    _run("write_rows", rows, addresses)


def _run(name: str, rows: Array, addresses: Array) -> None:
    count, width = rows.shape
    queue().keep(rows)
    stride = rows.strides[0] // rows.itemsize
    args = (device_address(rows), stride, addresses, count, width)
    launch(rows, name, *row_grid(count, width), args)
