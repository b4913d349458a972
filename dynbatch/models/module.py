"""`Module`: a tree of parameters and sub-modules with a name for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from dynbatch.errors import CheckpointError, DtypeError
from dynbatch.parameter import Array, Parameter


class Module:
    """Base of every model. Attributes that are parameters, modules, or lists of modules are found.

    Names are attribute paths joined by dots, `"encoder.layers.0.weight_ih"`, and are the keys of
    `state_dict()`. A parameter reachable by two paths (tied weights) appears once, under the first.
    """

    training: bool = True

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their names, in order of assignment."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                for position, item in enumerate(value):
                    if isinstance(item, Module):
                        yield f"{name}.{position}", item

    def modules(self) -> Iterator[Module]:
        """This module and every module below it."""
        yield self
        for _, child in self.children():
            yield from child.modules()

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, with its path. Also writes the path into `parameter.name`."""
        seen: set[int] = set()
        for name, parameter in self._walk(prefix):
            if parameter.uid not in seen:
                seen.add(parameter.uid)
                parameter.name = name
                yield name, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
        for name, child in self.children():
            yield from child._walk(f"{prefix}{name}.")

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [parameter for _, parameter in self.named_parameters()]

    def num_parameters(self) -> int:
        """Number of trainable scalars."""
        return sum(parameter.size for parameter in self.parameters())

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameter values by name."""
        return {name: parameter.value.copy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy values into the parameters. Checks every name and shape before it writes any.

        Raises:
            CheckpointError: a name is missing or unknown, or a shape differs.
        """
        own = dict(self.named_parameters())
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        shapes = [
            f"{name}: model {own[name].shape}, state {np.shape(state[name])}"
            for name in own.keys() & state.keys()
            if own[name].shape != np.shape(state[name])
        ]
        if missing or unknown or shapes:
            raise CheckpointError(
                f"{type(self).__name__}: the state does not fit this model; nothing was loaded.\n"
                f"  missing: {missing}\n  unknown: {unknown}\n  shapes differ: {sorted(shapes)}\n"
                "  fix: build the model with the sizes it was saved with."
            )
        for name, parameter in own.items():
            np.copyto(parameter.value, state[name])

    def train(self, mode: bool = True) -> Self:
        """Turn dropout on (`mode=True`) or off, here and below."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Turn dropout off, here and below."""
        return self.train(False)

    def astype(self, dtype: Any) -> Self:
        """Convert every parameter to float32 or float64 in place. Gradients are forgotten."""
        if np.dtype(dtype) not in (np.float32, np.float64):
            raise DtypeError(f"{type(self).__name__}: float32 or float64 expected, got {dtype}.")
        for parameter in self.parameters():
            parameter.value = parameter.value.astype(dtype)
            parameter.grad = None
        return self
