"""The functions of `dynbatch.nodes` by name, for methods and operators of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dynbatch.errors import DtypeError

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Every function of `F` by name; `dynbatch.nodes` enters them when all are defined.

`row` and `getitem` implement x[...]; `stack_calls` is `F.stack` for results of calls.
"""

HABITS = {
    "axis": "the name is dim, as in PyTorch: dim=0 for tokens, dim=-1 for features",
    "keepdim": "leave it out: over features (T, D) gives (T, 1), over tokens (D,), of which "
    "F.unsqueeze makes (1, D)",
    "unbiased": "correction=1 for unbiased=True, correction=0 for unbiased=False",
    "retain_graph": "leave it out: a graph takes one backward after the other until it is closed",
    "create_graph": "leave it out: db.grad(function) builds gradients that have gradients",
}
HABITS["keepdims"] = HABITS["keepdim"]
"""Arguments of PyTorch's and NumPy's functions that do not exist here."""


def not_an_argument(what: str, habits: Mapping[str, object]) -> DtypeError:
    """The error for keyword arguments that a function does not take."""
    name, value = next(iter(habits.items()))
    fix = HABITS.get(name, f"help(F.{what}) names its arguments")
    return DtypeError.at_caller(f"{what}: no argument {name}={value!r}.\n  fix:  {fix}")
