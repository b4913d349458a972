"""The functions of `kernels/unary/` and `kernels/binary.py` as CUDA expressions.

Kernels and the loops of cells are generated from them. Each is one expression in the variables
named here, usable in any scope; every variable is a REAL and may be read more than once.
`common.cuh` defines the functions that C++ lacks. Numbers are integers or casts to REAL, so that
no float is computed as a double.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dynbatch.kernels import binary
from dynbatch.kernels.unary import FUNCTIONS


class UnaryExpression(NamedTuple):
    """y = f(x), with its static arguments a0, a1, ….

    forward:  over x and the arguments.
    backward: over dy, s and the arguments, with s the input or the output, as `reads` of the NumPy
              kernel says.
    """

    forward: str
    backward: str


def _unary() -> Iterator[tuple[str, UnaryExpression]]:
    for name, function in FUNCTIONS.items():
        yield name, UnaryExpression(function.cuda_forward, function.cuda_backward)
        for word, expressions in function.cuda_variants.items():
            yield f"{name}_{word}", UnaryExpression(*expressions)


UNARY = dict(_unary())

BINARY = {name: function.cuda for name, function in binary.FUNCTIONS.items()}
