"""`SizedByInput`: layers whose parameters are made when their first input shows its width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from dynbatch.arguments import size
from dynbatch.backend import CPU, Array
from dynbatch.errors import ShapeError
from dynbatch.interrupts import deferred_interrupt
from dynbatch.models.initial import unfilled
from dynbatch.models.module import AwaitedSizes, Module
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter

Make = Callable[[int], Sequence[Parameter]]
"""Makes the parameters of a layer whose input has this width."""

WeightAndBias = tuple[Parameter, Parameter | None]

_sizing = RLock()


class UnsizedParameter(Parameter):
    """A parameter until its layer knows its width; then it is a `Parameter`, the same object.

    An optimizer may hold it before; nothing else can read it.
    """

    __slots__ = ()
    is_sized = False

    def __init__(self) -> None:
        super().__init__(np.zeros(1, np.float32))

    @property
    def _value(self) -> Any:
        raise ShapeError.at_caller(
            f"Parameter {self.name!r} has no values yet.\n"
            "  rule: its layer was made with None for its input's width, and takes that of the "
            "first input\n"
            "  fix:  call the model on one sentence first, as in `with db.Graph() as graph: "
            "model(…)`;\n        model.load_state_dict(state) tells the width, too"
        )

    @_value.setter
    def _value(self, array: Array) -> None:
        """Nothing is kept: `become` gives it the values."""

    @property
    def is_short(self) -> bool:
        return False

    def become(self, parameter: Parameter) -> None:
        """Take the values of a parameter, and be one from here on."""
        self.__class__ = Parameter  # type: ignore[assignment]
        self._value = parameter._value

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, of the first input's width)"


class Awaited:
    """Parameters of a layer that wait for its width, and what makes them.

    It is neither a tuple nor a dataclass, in which `Module` would find them a second time.
    """

    def __init__(self, parameters: list[UnsizedParameter], make: Make) -> None:
        self.parameters, self.make = parameters, make


class SizedByInput(Module):
    """Base of layers that take None for their input's width: their parameters follow from data.

    A layer that was made with its width has the same first values, from the same generator.
    """

    _awaited: Awaited | None = None

    def _width(self, name: str, width: int | None) -> int | None:
        """The argument `name`, a size or None."""
        return None if width is None else size(self, name, width)

    def _of_width(self, width: int | None, make: Make, count: int) -> list[Parameter]:
        """The parameters for this width of input; for None as many that wait for it."""
        if width is not None:
            return list(make(width))
        awaited = [UnsizedParameter() for _ in range(count)]
        self._awaited = Awaited(awaited, make)
        return list(awaited)

    def _pair_of_width(
        self, width: int | None, bias: bool, make: Callable[[int], WeightAndBias]
    ) -> WeightAndBias:
        """A weight, and a bias if there is one."""

        def present(width: int) -> list[Parameter]:
            return [each for each in make(width) if each is not None]

        parameters = self._of_width(width, present, 1 + bias)
        return parameters[0], parameters[1] if bias else None

    def _see(self, x: Node) -> None:
        """Make the parameters that wait for an input, as this one has it.

        Raises:
            ShapeError: in a trace, which changes nothing. A block then makes nodes of its operators
                once, and so comes here again.
        """
        if self._awaited is not None and isinstance(x, Node) and x.ndim:
            if x.graph.is_trace:
                raise ShapeError.at_caller(
                    f"a layer in a cell does not know the width of its input yet, {x.width}.\n"
                    "  rule: a cell is traced once; it computes and changes nothing\n"
                    "  fix:  give the width where the layer is made, or call the layer first on a "
                    "node outside the cell"
                )
            self._make_for(x.width, x.graph.device)

    def _make_for(self, width: int, device: Any = CPU) -> None:
        with _sizing:  # of threads that call it first, one makes them
            if self._awaited is None:
                return
            awaited = self._awaited
            made = [parameter.to(device) for parameter in awaited.make(width)]
            with deferred_interrupt():  # all of them become parameters, or none
                for unsized, parameter in zip(awaited.parameters, made, strict=True):
                    unsized.become(parameter)
                self._awaited = None

    def sizes_in(self, state: Mapping[str, Array], prefix: str) -> AwaitedSizes | None:
        """The sizes of the parameters that wait for an input: a state tells its width."""
        if self._awaited is None:
            return None
        first = self._awaited.parameters[0]
        name = next(name for name, each in self._members() if each is first)
        shape = np.shape(state.get(prefix + name, ()))
        if len(shape) < 2:
            return None
        width = shape[1] * getattr(self, "groups", 1)
        with unfilled(len(self._awaited.parameters)):  # draws nothing
            made = self._awaited.make(width)
        pairs = zip(self._awaited.parameters, made, strict=True)
        return AwaitedSizes({a.uid: b.shape for a, b in pairs}, partial(self._make_for, width))
