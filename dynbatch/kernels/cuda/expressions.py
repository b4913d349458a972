"""The functions of `kernels/unary/` and `kernels/binary.py` as CUDA expressions.

Kernels and the loops of cells are generated from them. Each is one expression in the variables
named here, usable in any scope; every variable is a REAL and may be read more than once. Those of
one value are calls of functions that are printed, as unary.cuh, from their definitions.
"""

from __future__ import annotations

from typing import NamedTuple

from dynbatch.kernels import binary
from dynbatch.kernels.unary import Function, every_function


class UnaryExpression(NamedTuple):
    """y = f(x), with its static arguments a0, a1, ….

    forward:  over x and the arguments.
    backward: over dy, s and the arguments, with s the input or the output, as `reads` of the
              function says, else not read.
    """

    forward: str
    backward: str

    @classmethod
    def of(cls, f: Function) -> UnaryExpression:
        numbers = "".join([f", a{k}" for k in range(len(f.names))])
        saved = "0" if f.reads == "none" else "s"
        return cls(f"{f.name}_of(x{numbers})", f"{f.name}_back(dy, {saved}{numbers})")


UNARY = {f.name: UnaryExpression.of(f) for f in every_function()}

BINARY = {name: function.cuda for name, function in binary.FUNCTIONS.items()}
