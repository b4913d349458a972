"""Two arrays that should be equal: whether they are, and what is said where they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import Operation
from dynbatch.parameter import Array

DUMP = 'graph.dump("graph.npz") writes a file that reproduces it (docs/trust.md)'

TOLERANCES = {"float32": 1e-4, "float64": 1e-9}


class Checker:
    """What all checked steps of a graph share.

    Args:
        on_device: whether it is a GPU that is checked.
        kernels:   starts what waits for it, and says what it is.

    Attributes:
        copies: parameters on the host, by uid, for the time of a run.
    """

    def __init__(self, on_device: bool, kernels: Callable[[], str]) -> None:
        self.on_device = on_device
        self.kernels = kernels
        self.copies: dict[int, Array] = {}

    def difference(self, shape: Shape, places: Array, found: Array, expected: Array) -> str:
        """The first of the elements that differ, and how many do."""
        place = tuple(int(i) for i in np.unravel_index(places[0], shape))
        first, second = float(found[places[0]]), float(expected[places[0]])
        here, there = ("on cuda", "by NumPy") if self.on_device else ("batched", "one by one")
        return (
            f"element {place} of shape {shape} is {first:.9g} {here}, {second:.9g} {there}; "
            f"{places.size} of {found.size} elements differ"
        )

    def advice(self, kind: type[Operation] | None) -> str:
        """What to do about a difference."""
        if kind is not None and not kind.names_kernels:
            return (
                f"{kind.__name__}.forward_batch and {kind.__name__}.backward_batch may use\n"
                "        each node's own rows only, and compute the same with NumPy and CuPy;\n"
                "        db.testing checks them alone;\n"
                f"        {DUMP}"
            )
        way = 'device="cpu"' if self.on_device else 'policy="one_by_one"'
        return f"report it, with this message; {way} goes round it;\n        {DUMP}"


def magnitude(array: Array) -> float:
    """The largest finite |element|; 0 of none."""
    finite = np.isfinite(array)
    return float(np.max(np.abs(array), initial=0.0, where=finite))


def largest(arrays: Iterable[Array]) -> float:
    """The largest finite |element| of several arrays."""
    return max([magnitude(array) for array in arrays], default=0.0)


def differing(found: Array, expected: Array, scale: float) -> Array:
    """Places of the elements that differ by more than rounding, in the flat arrays."""
    found, expected = found.ravel(), expected.ravel()
    tolerance = TOLERANCES[expected.dtype.name] * max(scale, magnitude(expected))
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(found.astype(np.float64) - expected) <= tolerance
    return np.flatnonzero(~(same | near))
