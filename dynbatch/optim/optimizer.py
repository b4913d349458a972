"""`Optimizer`: the base of all algorithms, each of which has a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import ClassVar

import numpy as np

from dynbatch.arguments import number, refused, state_differences, state_of
from dynbatch.backend import device_of
from dynbatch.errors import BackendError, CheckpointError, DtypeError, ShapeError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.optimizers import ParameterSlice, Rule, ShardScratch, run_updates
from dynbatch.kernels.runtime import transfer
from dynbatch.names import NamesChecked
from dynbatch.optim import device
from dynbatch.optim.norm import GradientNorm
from dynbatch.optim.parameters import Parameters, named
from dynbatch.parameter import Array, Parameter, RowSparse


class Optimizer(NamesChecked):
    """Base of the optimizers: `step()` updates every parameter that has a gradient.

    Frozen parameters and those whose `grad` is None are skipped, their state with them, as in
    PyTorch. A `RowSparse` gradient gives what its dense form would give.

    A new algorithm names its `slots` (arrays kept for each parameter, zero at first) and writes
    `rule`, the arithmetic of one block. On a GPU that must be a `Rule` whose kernel has a CUDA
    version.

    Args:
        parameters: a `Module`, a list of `Parameter`, or (name, `Parameter`) pairs.
        lr:         learning rate; the attribute may be changed between steps.
        slots:      names of the arrays kept for each parameter.

    Memory: one array of the parameter's size per slot, made at its first step where the parameter
    is, and on the CPU without C 2 or 3 MiB of scratch for each thread.
    Cost: on a GPU one launch for each dtype, of which nothing is waited for.

    Raises:
        ArgumentError: there are no parameters, `parameters` is not a list, or a setting has another
            name or is not a number of its range.
        DtypeError: `parameters` holds something else.

    Example:
        >>> import numpy as np
        >>> from dynbatch import optim
        >>> from dynbatch.parameter import Parameter
        >>> weight = Parameter(np.array([1.0, 2.0]))
        >>> optimizer = optim.SGD([weight], lr=0.5)
        >>> weight.grad = np.array([2.0, 0.0])
        >>> optimizer.step()
        >>> weight.value
        array([0., 2.])
    """

    num_scratch: ClassVar[int] = 1
    """Scratch arrays that `rule` writes to."""

    def __init__(self, parameters: Parameters, lr: float, slots: tuple[str, ...] = ()) -> None:
        self._states = [_State(*pair) for pair in named(type(self).__name__, parameters)]
        if not self._states:
            raise refused(
                type(self).__name__, "there are no parameters to optimize", "at least one",
                "give a model that has parameters; build it before the optimizer",
            )  # fmt: skip
        self.lr = lr
        self.slots = slots
        self._scratch = ShardScratch(self.num_scratch)
        self._started: list[tuple[GradientNorm, list[_State]]] = []

    @property
    def lr(self) -> float:
        """The learning rate, a number >= 0; it may be set between steps."""
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = number(self, "lr", lr, "[0, inf)")

    def rule(self, num_steps: int) -> Rule:
        """The update of one block at a parameter's step `num_steps`, counted from 1."""
        raise NotImplementedError

    def leaves_untouched_rows(self) -> bool:
        """Whether an element whose gradient is zero keeps its value and its slots."""
        return False

    def initial(self, slot: str) -> float:
        """The initial value of a slot."""
        return 0.0

    def step(self, clear: bool = True) -> None:
        """Update the parameters from their gradients, then clear these (unless `clear=False`).

        Raises:
            ShapeError:   a gradient's shape is not its parameter's; nothing has been updated.
            BackendError: a gradient is not on its parameter's device; nothing has been updated.
            NumericError: the step before, on a GPU, was left out, as the norm of its gradients is
                not finite, and nobody has read that norm yet; nothing has been updated.
        """
        self._settle()
        live = [s for s in self._states if s.parameter.grad is not None and not s.parameter.frozen]
        for state in live:
            state.check_gradient()
        parts = [self._part(state) for state in live]
        run_updates([p for p in parts if isinstance(p.value, np.ndarray)], self._scratch)
        on_device = [
            (part, state.parameter.norm)
            for part, state in zip(parts, live, strict=True)
            if not isinstance(part.value, np.ndarray)
        ]
        if on_device:
            device.run_updates(on_device)
        for norm in dict.fromkeys([norm for _, norm in on_device]):
            if norm is not None:
                self._started.append((norm, [s for s in live if s.parameter.norm is norm]))
        if clear:
            self.zero_grad()

    def _settle(self) -> None:
        """Undo the step counts of the last step if a GPU skipped it."""
        started, self._started = self._started, []
        for norm, states in started:
            if not norm.is_finite():
                for state in states:
                    state.num_steps -= 1
        for norm, _ in started:
            if not norm.was_read:
                norm.require_finite()

    def _part(self, state: _State) -> ParameterSlice:
        parameter = state.parameter
        value, gradient = parameter.value, parameter.grad
        assert gradient is not None
        rows = gradient.rows if isinstance(gradient, RowSparse) else None
        values = gradient.values if isinstance(gradient, RowSparse) else gradient
        if not value.flags.c_contiguous:
            value = parameter.value = device_of(value).xp.ascontiguousarray(value)
        if not values.flags.c_contiguous:
            values = device_of(values).xp.ascontiguousarray(values)
        state.num_steps += 1
        for slot in self.slots:
            state.prepare(slot, self.initial(slot))
        return ParameterSlice(
            value=value,
            gradient=values,
            slots=tuple([state.slots[slot] for slot in self.slots]),
            rule=self.rule(state.num_steps),
            rows=rows,
            every_row=not self.leaves_untouched_rows(),
        )

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for state in self._states:
            state.parameter.zero_grad()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The parameters with the names that `state_dict` uses."""
        return ((state.name, state.parameter) for state in self._states)

    def state_dict(self) -> dict[str, Array]:
        """The state that `step` changes, copied to the host.

        These are `lr`, and `"NAME/steps"` and `"NAME/SLOT"` for each parameter that was updated.
        The other settings are not state: the constructor gives them.

        Raises:
            NumericError: as `step`.
        """
        self._settle()
        state: dict[str, Array] = {"lr": np.array(self.lr, np.float64)}
        for each in self._states:
            if each.num_steps:
                state[f"{each.name}/steps"] = np.array(each.num_steps, np.int64)
                for slot in self.slots:
                    state[f"{each.name}/{slot}"] = download(each.slots[slot])
        return state

    def check_state_dict(self, state: Mapping[str, Array]) -> None:
        """Check that `load_state_dict` would take `state`.

        Raises:
            CheckpointError: a name is missing or unknown, a shape differs, or `lr` is not a number
                >= 0.
            ArgumentError:   the state is not a dict.
        """
        state = state_of(self, state)
        wanted: dict[str, tuple[int, ...]] = {"lr": ()}
        for each in self._states:
            if f"{each.name}/steps" in state:
                wanted[f"{each.name}/steps"] = ()
                wanted.update({f"{each.name}/{slot}": each.parameter.shape for slot in self.slots})
        given = {name: np.shape(array) for name, array in state.items()}
        if differences := state_differences(wanted, given, "optimizer"):
            raise CheckpointError(
                f"{type(self).__name__}: the state does not fit this optimizer; nothing was "
                f"loaded.\n{differences}\n"
                "  fix: use the algorithm, its settings and the model that it was saved with."
            )
        rate = np.asarray(state["lr"])
        if rate.dtype.kind not in "fiu" or not 0 <= rate < inf:
            raise CheckpointError(
                f"{type(self).__name__}: the state's lr is {rate}; nothing was loaded.\n"
                "  rule: a number >= 0\n  fix:  the file is damaged; take an earlier checkpoint"
            )

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load a `state_dict`, `lr` included. Everything is checked before anything is written.

        Raises:
            CheckpointError: a name is missing or unknown, or a shape differs.
        """
        self.check_state_dict(state)
        self._started.clear()
        self.lr = float(state["lr"])
        for each in self._states:
            each.num_steps = int(state.get(f"{each.name}/steps", np.array(0)))
            if not each.num_steps:
                each.slots.clear()
                continue
            for slot in self.slots:
                each.prepare(slot, self.initial(slot))
                transfer.overwrite(each.slots[slot], state[f"{each.name}/{slot}"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._states)} parameters, lr={self.lr:g})"


class _State:
    """One parameter with its step count and its slots."""

    __slots__ = ("name", "num_steps", "parameter", "slots")

    def __init__(self, name: str, parameter: Parameter) -> None:
        self.name = name
        self.parameter = parameter
        self.num_steps = 0
        self.slots: dict[str, Array] = {}

    def check_gradient(self) -> None:
        gradient, shape = self.parameter.grad, self.parameter.shape
        assert gradient is not None
        if tuple(gradient.shape) != shape:
            raise ShapeError(
                f"Parameter {self.name!r}: its gradient has shape {tuple(gradient.shape)}, "
                f"its value {shape}.\n  fix: clear the gradients after changing a parameter's "
                "shape (optimizer.zero_grad())."
            )
        values = gradient.values if isinstance(gradient, RowSparse) else gradient
        is_on_host = isinstance(self.parameter.value, np.ndarray)
        if is_on_host is not isinstance(values, np.ndarray):
            ours, theirs = self.parameter.device.name, device_of(values).name
            raise BackendError(
                f"Parameter {self.name!r}: its gradient is on the {theirs}, its value on the "
                f"{ours}.\n  fix: move both with model.to({ours!r})."
            )
        if not is_on_host and values.dtype != self.parameter.dtype:
            raise DtypeError(
                f"Parameter {self.name!r}: its gradient is {values.dtype}, its value "
                f"{self.parameter.dtype}.\n  fix: on a GPU give the gradient the value's dtype."
            )

    def prepare(self, slot: str, initial: float) -> None:
        """Make the slots at the first step; move or convert them with the parameter."""
        value, array = self.parameter.value, self.slots.get(slot)
        if array is None:
            array = self.slots[slot] = self.parameter.empty_like()
            array.fill(initial)
        elif array.dtype != value.dtype:
            array = self.slots[slot] = transfer.convert(array, value.dtype)
        if isinstance(array, np.ndarray) is not isinstance(value, np.ndarray):
            self.slots[slot] = transfer.to_device(array, device_of(value))
