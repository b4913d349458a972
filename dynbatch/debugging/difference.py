"""Compares two arrays up to rounding, and describes differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS, of_products
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import Operation

DUMP = 'graph.dump("graph.npz") writes a file that reproduces it (docs/guides/trust.md)'

TOLERANCES = {"float32": 1e-4, "float64": 1e-9}


class Checker:
    """The settings that the checks of a graph's steps share.

    Args:
        on_device: whether the graph runs on a GPU.
        kernels:   starts what waits for the GPU; returns the kernels' names.
        rounds:    whether what forward leaves for backward is rounded to bfloat16 after it.

    Attributes:
        copies: parameters on the host by uid, during a run.
    """

    def __init__(self, on_device: bool, kernels: Callable[[], str], rounds: bool = False) -> None:
        self.on_device = on_device
        self.kernels = kernels
        self.rounds = rounds
        self.copies: dict[int, Array] = {}

    def difference(self, shape: Shape, wrong: Array, actual: Array, expected: Array) -> str:
        """Describe the first differing element; `wrong` has the flat indices of all."""
        index = element(wrong[0], shape)
        first, second = float(actual[wrong[0]]), float(expected[wrong[0]])
        here, there = ("on cuda", "by NumPy") if self.on_device else ("batched", "one by one")
        return (
            f"element {index} of shape {shape} is {first:.9g} {here}, {second:.9g} {there}; "
            f"{wrong.size} of {actual.size} elements differ"
        )

    def advice(self, node_type: type[Operation] | None) -> str:
        if node_type is not None and not node_type.is_built_in:
            name = node_type.__name__
            return (
                f"{name}.forward_batch and {name}.backward_batch may use\n"
                "        each node's own rows only, and compute the same with NumPy and CuPy;\n"
                "        db.testing checks them alone;\n"
                f"        {DUMP}"
            )
        way = 'device="cpu"' if self.on_device else 'policy="one_by_one"'
        return f"report it, with this message; {way} avoids it;\n        {DUMP}"


def magnitude(array: Array) -> float:
    """The largest finite |element|, or 0."""
    finite = np.isfinite(array)
    return float(np.max(np.abs(array), initial=0.0, where=finite))


def largest(arrays: Iterable[Array]) -> float:
    """The largest finite |element| of several arrays."""
    return max([magnitude(array) for array in arrays], default=0.0)


def scale_of(arrays: Iterable[Array]) -> Callable[[], float]:
    """A function that gives `largest` of several arrays, computed when it is first called."""
    return cache(partial(largest, arrays))


def rounding(expected: Array, scale: float) -> float:
    """The rounding error to allow; `scale` is the largest operand."""
    return tolerance_of(expected.dtype.name, of_products()) * max(scale, magnitude(expected))


def tolerance_of(dtype: str, precision: str) -> float:
    """The difference to allow, as a share of the largest element.

    Rounded factors of products may each be off by 2^-bits: a GPU may cut where we go to the
    nearest, and rounds apart what lies at a boundary.
    """
    if precision == FULL:
        return TOLERANCES[dtype]
    return max(TOLERANCES[dtype], 2.0 ** (1 - MANTISSA_BITS[precision]))


def differing(actual: Array, expected: Array, tolerance: float) -> Array:
    """Flat indices of the elements that differ by more than a tolerance. NaN equals NaN."""
    actual, expected = actual.ravel(), expected.ravel()
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(actual.astype(np.float64) - expected) <= tolerance
    return np.flatnonzero(~(same | near))


def element(index: int, shape: Shape) -> tuple[int, ...]:
    """The indices, in an array of a shape, of the element at a flat index."""
    return tuple([int(i) for i in np.unravel_index(index, shape)])
