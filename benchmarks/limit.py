"""What a machine can do at most: the fastest float32 product that any library here gets from it.

A training step is mostly matrix products, so its floating-point operations a second, over this
rate, say how much a faster implementation of the same arithmetic could still bring.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import dynbatch as db
from benchmarks.networks import Array
from dynbatch import nodes as F

SHAPE = (1324, 384, 1024)
"""Rows, terms and columns of the product: as large as those of a mini-batch of 64 sentences."""
_REPEATS = 30


class ProductRate(NamedTuple):
    """The most floating-point operations a second that a product reached, and whose it was."""

    flops_per_second: float
    library: str

    def __str__(self) -> str:
        rows, terms, columns = SHAPE
        return (
            f"{self.flops_per_second / 1e9:.0f} GFLOP/s in a product of {rows} × {terms} × "
            f"{columns} ({self.library})"
        )


def product_rate() -> ProductRate:
    """The fastest of many products of `SHAPE`, by dynbatch and, where it is imported, PyTorch.

    Each runs with the threads that it was told to take.
    """
    rows, terms, columns = SHAPE
    rng = np.random.default_rng(0)
    left = rng.standard_normal((rows, terms), np.float32)
    right = rng.standard_normal((terms, columns), np.float32)
    products = {"dynbatch": lambda: _of_a_map(left, right)}
    if torch := sys.modules.get("torch"):
        a, b = torch.from_numpy(left), torch.from_numpy(right)
        products["PyTorch"] = lambda: _seconds(lambda: torch.mm(a, b))
    fastest = {
        library: min([product() for _ in range(_REPEATS)]) for library, product in products.items()
    }
    library = min(fastest, key=fastest.__getitem__)
    return ProductRate(2 * rows * terms * columns / fastest[library], library)


def _seconds(product: Callable[[], object]) -> float:
    begin = time.perf_counter()
    product()
    return time.perf_counter() - begin


def _of_a_map(left: Array, right: Array) -> float:
    """Seconds in the kernel of a linear map."""
    with db.Graph(grad=False) as graph:
        _ = F.matmul(F.input(graph, left), F.input(graph, right)).value
    return graph.statistics.kernel_seconds
