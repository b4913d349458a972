"""`ParameterState`: one parameter of an optimizer, with its step count and its slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.errors import BackendError, DtypeError, ShapeError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.optimizers import ParameterSlice, Rule
from dynbatch.kernels.rows import taken_rows
from dynbatch.kernels.runtime import transfer
from dynbatch.optim.sharding import slices_of
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse


class ParameterState:
    """One parameter with its step count and its slots.

    Attributes:
        slots: arrays by name, of the parameter's shape.
        part:  elements that the slots are of, if they are not of all; the slots then are flat.
    """

    __slots__ = ("name", "num_steps", "parameter", "part", "slots")

    def __init__(self, name: str, parameter: Parameter) -> None:
        if parameter.is_short:
            raise DtypeError.at_caller(
                f"Parameter {name!r} lies in 16 bits.\n"
                "  rule: parameters in bfloat16 are read, and not trained or averaged\n"
                '  fix:  load the model without dtype="bfloat16", or model.astype("float32")'
            )
        self.name = name
        self.parameter = parameter
        self.num_steps = 0
        self.slots: dict[str, Array] = {}
        self.part: slice | None = None

    def keep(self, part: slice) -> None:
        """Keep the slots of some elements only, in their flat order."""
        self.part = part
        self.slots = {name: self.of_part(array).copy() for name, array in self.slots.items()}

    def of_part(self, array: Array) -> Array:
        """The elements of an array of the parameter's shape that the slots are of."""
        return array if self.part is None else array.reshape(-1)[self.part]

    @property
    def is_live(self) -> bool:
        """Whether a step updates the parameter."""
        return self.parameter.grad is not None and not self.parameter.frozen

    def check_gradient(self) -> None:
        """Check that the gradient has the value's shape and device, and on a GPU its dtype."""
        gradient, shape = self.parameter.grad, self.parameter.shape
        assert gradient is not None
        if tuple(gradient.shape) != shape:
            raise ShapeError(
                f"Parameter {self.name!r}: its gradient has shape {tuple(gradient.shape)}, "
                f"its value {shape}.\n  rule: a gradient has its parameter's shape\n"
                "  fix:  optimizer.zero_grad(), after a parameter's shape was changed"
            )
        values = gradient.values if isinstance(gradient, RowSparse) else gradient
        is_on_host = isinstance(self.parameter.value, np.ndarray)
        if device_of(values) != self.parameter.device:
            ours, theirs = self.parameter.device.name, device_of(values).name
            raise BackendError(
                f"Parameter {self.name!r}: its gradient is on the {theirs}, its value on the "
                f"{ours}.\n  rule: a gradient is on its parameter's device\n"
                f"  fix:  model.to({ours!r}) moves both"
            )
        if not is_on_host and values.dtype != self.parameter.dtype:
            raise DtypeError(
                f"Parameter {self.name!r}: its gradient is {values.dtype}, its value "
                f"{self.parameter.dtype}.\n  rule: on a GPU a gradient has its parameter's dtype\n"
                f"  fix:  gradient.astype({str(self.parameter.dtype)!r})"
            )

    def trained_gradient(self, every_row: bool) -> RowSparse:
        """The gradient of the rows that are not frozen.

        Args:
            every_row: with zeros for rows that have none; else, where it is sparse, without them.
        """
        gradient, trained = self.parameter.grad, self.parameter.trained_rows
        is_frozen = self.parameter.row_is_frozen
        assert gradient is not None and trained is not None and is_frozen is not None
        shape = (self.parameter.shape[0], self.parameter.shape[1])
        if not isinstance(gradient, RowSparse):
            return RowSparse(trained, taken_rows(gradient, trained), shape)
        places = np.flatnonzero(~is_frozen[gradient.rows])
        rows, values = gradient.rows[places], taken_rows(gradient.values, places)
        if not every_row:
            return RowSparse(rows, values, shape)
        among = RowSparse(np.searchsorted(trained, rows), values, (trained.size, shape[1]))
        return RowSparse(trained, among.dense(starts=False), shape)

    def begin_step(
        self, rule: Callable[[int], Rule], initial: Callable[[str], float]
    ) -> list[ParameterSlice]:
        """Count a step, and return the updates that it makes of the value and the slots.

        Args:
            rule:    the update of a block, by the number of the step, from 1; the slots are those
                     of its outcome, so that settings may be switched between steps.
            initial: the initial value of a slot, by its name.
        """
        parameter = self.parameter
        self.num_steps += 1
        chosen = rule(self.num_steps)
        outcome = chosen.outcome
        every_row = not (outcome.needs_gradient or chosen.only_touched_rows)
        value, gradient = parameter.value, parameter.grad
        if parameter.row_is_frozen is not None:
            gradient, every_row = self.trained_gradient(every_row), False
        assert gradient is not None
        rows = gradient.rows if isinstance(gradient, RowSparse) else None
        values = gradient.values if isinstance(gradient, RowSparse) else gradient
        if not value.flags.c_contiguous:
            value = parameter.value = device_of(value).xp.ascontiguousarray(value)
        if not values.flags.c_contiguous:
            values = device_of(values).xp.ascontiguousarray(values)
        self.prepare({slot: initial(slot) for slot in outcome.slots})
        self.drop_others(outcome.slots)
        update = ParameterSlice(
            value=value,
            gradient=values,
            slots=tuple([self.slots[slot] for slot in outcome.slots]),
            rule=chosen,
            rows=rows,
            every_row=every_row,
            norm=None if parameter.norm is None else parameter.norm.array,
        )
        return [update] if self.part is None else slices_of(update, self.part)

    def load(self, saved: Mapping[str, Array], initial: Mapping[str, float]) -> None:
        """Load step count and slots from the state of the whole optimizer.

        Args:
            initial: the initial value of each slot.
        """
        self.num_steps = int(saved.get(f"{self.name}/steps", np.array(0)))
        if not self.num_steps:
            self.slots.clear()
            return
        self.prepare(initial)
        self.drop_others(initial)
        for slot in initial:
            array = np.asarray(saved[f"{self.name}/{slot}"])
            transfer.overwrite(self.slots[slot], self.of_part(array))

    def prepare(self, initial: Mapping[str, float]) -> None:
        """Make slots that there are not, of initial values; move or convert them with the value."""
        value = self.parameter.value
        for slot, number in initial.items():
            array = self.slots.get(slot)
            if array is None:
                array = device_of(value).xp.empty(self.of_part(value).shape, value.dtype)
                array.fill(number)
                self.slots[slot] = array
            elif array.dtype != value.dtype:
                array = self.slots[slot] = transfer.convert(array, value.dtype)
            if device_of(array) != device_of(value):
                self.slots[slot] = transfer.to_device(array, device_of(value))

    def drop_others(self, slots: Collection[str]) -> None:
        """Drop the slots that are not among `slots`."""
        for slot in self.slots.keys() - slots:
            del self.slots[slot]

    def download(self, slot: str) -> Array:
        """A copy of a slot on the host, of the parameter's shape; only its part is filled in."""
        slot_values = download(self.slots[slot])
        if self.part is None:
            return slot_values
        whole = np.empty(self.parameter.shape, slot_values.dtype)
        whole.reshape(-1)[self.part] = slot_values
        return whole
