"""Reads the parameters given to optimizers, clipping or sums: a model, a list, or named pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dynbatch.arguments import listed
from dynbatch.backend import DType
from dynbatch.errors import DtypeError
from dynbatch.parameter import Parameter


@runtime_checkable
class HasParameters(Protocol):
    """A model or an optimizer: an object that lists its parameters by name."""

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]: ...


Parameters = (
    HasParameters
    | Iterable[Parameter]
    | Iterable[tuple[str, Parameter]]
    | Iterable[Mapping[str, Any]]
)
"""What an optimizer or clipping takes; groups, which are dicts, only an optimizer."""


def graph_dtype(parameters: Iterable[Parameter]) -> DType:
    """The dtype of a graph that reads these: that of one that keeps its own, else a graph's own."""
    return next((one.dtype for one in parameters if not one._is_fresh), np.dtype(np.float32))


def named(owner: str, parameters: Parameters) -> list[tuple[str, Parameter]]:
    """Every parameter once, in the given order, under a unique name.

    Args:
        owner:      the class or function that they are given to; errors name it.
        parameters: a `Module` or `Optimizer`, parameters, or (name, parameter) pairs. Parameters
            without pairs go by `parameter.name`; a name met again gets its position as a suffix.

    Raises:
        DtypeError:    an item is neither a `Parameter` nor a (name, `Parameter`) pair.
        ArgumentError: there are no items: one parameter, a class, None.
    """
    items: Iterable[object]
    if isinstance(parameters, HasParameters) and not isinstance(parameters, type):
        items = parameters.named_parameters()
    else:
        fix = "give a model instance: optim.Adam(model); or [parameter] for one parameter"
        items = listed(owner, "parameters", parameters, fix)
    parameter_of: dict[str, Parameter] = {}
    seen: set[int] = set()
    for position, item in enumerate(items):
        name, parameter = item if isinstance(item, tuple) else (getattr(item, "name", ""), item)
        if not isinstance(parameter, Parameter):
            join = "       of several models [*a.parameters(), *b.parameters()];\n"
            raise DtypeError(
                f"item {position} of the parameters is {type(parameter).__name__}, "
                "not a Parameter.\n"
                "  fix: give a Module, a list of Parameters or a list of (name, Parameter) pairs;\n"
                f"{join if isinstance(parameter, HasParameters) else ''}"
                '       an optimizer takes groups too, [{"params": …, "lr": 1e-4}, …].'
            )
        if parameter.uid not in seen:
            seen.add(parameter.uid)
            while name in parameter_of:
                name = f"{name}.{position}"
            parameter_of[name] = parameter
    return list(parameter_of.items())
