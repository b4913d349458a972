"""Limits of a machine: the fastest products that any library here gets from it; copies.

A training step is mostly matrix products, so its floating-point operations a second, over the rate
of a large product, say how much a faster implementation of the same arithmetic could still bring.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import dynbatch as db
from benchmarks.networks import Array
from dynbatch import nodes as F
from dynbatch.kernels.runtime.precision import FULL

SHAPE = (1324, 384, 1024)
"""Rows, terms and columns of the product: as large as those of a mini-batch of 64 sentences."""
PRECISIONS = (FULL, "bfloat16")
_REPEATS = 30
_COPIED_BYTES = 1 << 28  # several times what caches hold


class ProductRate(NamedTuple):
    """The most floating-point operations a second that a product reached, and whose it was."""

    flops_per_second: float
    library: str

    def __str__(self) -> str:
        return f"{self.flops_per_second / 1e9:.0f} GFLOP/s ({self.library})"


class Limits(NamedTuple):
    """The rates of a machine with some threads.

    Args:
        products: of `SHAPE`, by their precision.
        copied_bytes_per_second: read, and as many written at the same time.
    """

    products: Mapping[str, ProductRate]
    copied_bytes_per_second: float

    def __str__(self) -> str:
        rows, terms, columns = SHAPE
        rates = ", ".join([f"{name} {rate}" for name, rate in self.products.items()])
        copied = self.copied_bytes_per_second / 1e9
        return f"product of {rows} × {terms} × {columns}: {rates}; {copied:.1f} GB/s copied"


def of_machine(threads: int) -> Limits:
    """Measure all rates. dynbatch and PyTorch run with the threads that they were told to take."""
    products = {precision: product_rate(precision) for precision in PRECISIONS}
    return Limits(products, copy_rate(threads))


def product_rate(precision: str = FULL) -> ProductRate:
    """The fastest of many products of `SHAPE`, by dynbatch and, where it is imported, PyTorch."""
    rows, terms, columns = SHAPE
    rng = np.random.default_rng(0)
    left = rng.standard_normal((rows, terms), np.float32)
    right = rng.standard_normal((terms, columns), np.float32)
    products = {"dynbatch": lambda: _of_a_map(left, right, precision)}
    if torch := sys.modules.get("torch"):
        a, b = [torch.from_numpy(x).to(getattr(torch, precision)) for x in (left, right)]
        products["PyTorch"] = lambda: _seconds(lambda: torch.mm(a, b))
    fastest = {
        library: min([product() for _ in range(_REPEATS)]) for library, product in products.items()
    }
    library = min(fastest, key=fastest.__getitem__)
    return ProductRate(2 * rows * terms * columns / fastest[library], library)


def copy_rate(threads: int) -> float:
    """Bytes a second that threads copy side by side from and to memory; those read are counted."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros_like(source)
    with ThreadPoolExecutor(threads) as pool:
        pairs = [np.array_split(x, threads) for x in (target, source)]
        fastest = min([_seconds(lambda: [*pool.map(np.copyto, *pairs)]) for _ in range(5)])
    return _COPIED_BYTES / fastest


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _of_a_map(left: Array, right: Array, precision: str) -> float:
    """Seconds in the kernel of a linear map: what multiplies two nodes is not rounded."""
    weight = db.Parameter(np.ascontiguousarray(right.T))
    with db.Graph(grad=False, matmul=precision) as graph:
        _ = F.linear(F.input(graph, left), weight).value
    return graph.statistics.kernel_seconds
