"""NumPy's protocols on nodes: operators are the node's, all else is an error with the fix."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from dynbatch.errors import DtypeError
from dynbatch.nodes.syntax.registry import FUNCTIONS

# NumPy's names for what `F` calls otherwise.
NAMES = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "concatenate": "concat",
    "fabs": "abs",
    "flip": "reverse",
    "power": "pow",
    "rint": "round",
    "true_divide": "divide",
    "vstack": "stack",
}
# What `array ∘ node` and `np.float64 ∘ node` are for NumPy, and for the node.
OPERATORS = frozenset(
    ["add", "divide", "greater", "greater_equal", "less", "less_equal", "matmul", "multiply", "pow",
     "subtract"]
)  # fmt: skip


class NumpyProtocols:
    """Base of `Node`: an operator between an array and a node calls the node's method.

    A function of NumPy would have to run the graph and would lose the gradient, so it is refused.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = NAMES.get(ufunc.__name__, ufunc.__name__)
        if method == "__call__" and not options and name in OPERATORS:
            return FUNCTIONS[name](*inputs)
        if name in ("equal", "not_equal") and method == "__call__" and not options:
            return self == inputs[1 if inputs[0] is self else 0]  # an error: see `__eq__`
        if options.get("out"):
            raise self._refused(
                ufunc.__name__, "a node cannot change an array; add node.value to it"
            )
        raise self._refused(ufunc.__name__, _instead(name))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        name = function.__name__
        raise self._refused(name, _instead(NAMES.get(name, name)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise self._refused("asarray", "node.value is the array; F.stack and F.concat join nodes")

    def _refused(self, name: str, fix: str) -> DtypeError:
        return DtypeError.at_caller(
            f"np.{name} of {self!r}: NumPy computes with arrays, not with nodes.\n  fix:  {fix}"
        )


def _instead(name: str) -> str:
    if name in ("shape", "ndim"):
        return f"node.{name}"
    known = f"F.{name} in the network, " if name in FUNCTIONS else ""
    return f"{known}node.value outside it, which is an array"
