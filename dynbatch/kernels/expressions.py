"""The functions of `kernels/unary/` and `kernels/binary.py` as expressions of CUDA.

Kernels and the loops of cells are generated from them. Each is one expression in the variables
named here, usable in any scope; every variable is a REAL and may be read more than once. They are
calls of functions that are printed, as unary.cuh and pairs.cuh, from their definitions.
"""

from __future__ import annotations

from typing import NamedTuple

from dynbatch.kernels import binary
from dynbatch.kernels.scalar.expressions import variables
from dynbatch.kernels.scalar.pair import Pair
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


class PairExpression(NamedTuple):
    """y = f(a, b).

    forward:    over a and b.
    backward_a: over dy, and those of a and b that it reads.
    backward_b: likewise, of the gradient of b. Both are empty where there is no gradient.
    """

    forward: str
    backward_a: str = ""
    backward_b: str = ""

    @classmethod
    def of(cls, f: Pair) -> PairExpression:
        forward = f"{f.name}_of(a, b)"
        if not f.is_differentiable:
            return cls(forward)
        read = [variables(gradient) for gradient in f.gradients("cuda")]
        arguments = [
            ", ".join([x if x in names else "0" for x in ("dy", "a", "b")]) for names in read
        ]
        return cls(forward, *[f"{f.name}_back_{x}({arguments[k]})" for k, x in enumerate("ab")])


UNARY = {f.name: UnaryExpression.of(f) for f in every_function()}

BINARY = {f.name: PairExpression.of(f) for f in binary.FUNCTIONS.values()}

# Over a mask m beside a and b. Nothing of the other side comes through, not even a NaN.
WHERE = PairExpression("where_of(m, a, b)", "where_back_a(dy, m)", "where_back_b(dy, m)")
