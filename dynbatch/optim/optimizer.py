"""`Optimizer`: the base of all algorithms, each of which has a file."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from dynbatch.arguments import number, refused, state_of, switch
from dynbatch.backend import Array
from dynbatch.interrupts import deferred_interrupt
from dynbatch.kernels.optimizers import Rule, ShardScratch, run_updates
from dynbatch.kernels.runtime.writes import written
from dynbatch.kernels.scalar.update import UpdateRule
from dynbatch.named_parameters import Parameters, named
from dynbatch.names import NamesChecked, check_names
from dynbatch.optim.groups import read_groups
from dynbatch.optim.norm import GradientNorm
from dynbatch.optim.parameter_state import ParameterState
from dynbatch.optim.saved_state import names_array, require_fitting
from dynbatch.optim.sharding import gather_parts, part_of
from dynbatch.parallel import Communicator
from dynbatch.parameter import Parameter


class Optimizer(NamesChecked):
    """Base of the optimizers: `step()` updates every parameter that has a gradient.

    Frozen parameters and those whose `grad` is None are skipped, their state with them, as in
    PyTorch; so are the frozen rows of a matrix (`Parameter.frozen_rows`). A `RowSparse` gradient
    gives what its dense form would give.

    A new algorithm writes its `update`: expressions of new elements, of which NumPy, C and CUDA
    code is made. Its slots (arrays kept for each parameter, zero at first) follow from it, and
    whether rows without gradient change. Numbers in it are attributes of these names, or `numbers`.

    Settings are attributes, which may be changed between steps. A slot that they need no longer, as
    momentum's where it is 0, is dropped, and begins anew when they need it again.

    Args:
        parameters: a `Module`, a list of `Parameter`, or (name, `Parameter`) pairs; or groups of
            them with settings of their own, [{"params": model.encoder, "lr": 1e-4}, ...], each with
            any of the optimizer's arguments.
        lr:         learning rate; the attribute may be changed between steps. The rates of groups
            keep their proportion to it. If all groups have their own, it is the first one's.
        maximize:   step up the gradient, by the opposite of it; weight decay is as it is.

    Memory: one array of the parameter's size per slot, made at its first step where the parameter
    is, and on the CPU without C 2 or 3 MiB of scratch for each thread.
    Cost: on a GPU one launch for each dtype, of which nothing is waited for.

    Raises:
        ArgumentError: there are no parameters, `parameters` is not a list, a setting has another
            name or is not a number of its range, or a parameter is in two groups.
        DtypeError: `parameters` holds something else, or parameters in 16 bits.

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

    update: ClassVar[UpdateRule]
    """The arithmetic of a step."""

    only_touched_rows: ClassVar[bool] = False
    """Whether rows without gradient stay, though a gradient of 0 would step them."""

    _groups: Sequence[Optimizer] = ()
    _communicator: Communicator | None = None
    _arguments: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def __new__(cls, *positional: Any, **arguments: Any) -> Self:
        self = super().__new__(cls, *positional, **arguments)
        self._arguments = positional, arguments  # what groups do not say
        return self

    def __init__(self, parameters: Parameters, lr: float, *, maximize: bool = False) -> None:
        name = type(self).__name__
        arguments, self._arguments = self._arguments, ((), {})
        self.maximize = switch(self, "maximize", maximize)
        self._scratch = ShardScratch()
        self._started: list[tuple[GradientNorm, list[ParameterState]]] = []
        groups = read_groups(name, parameters)
        if groups is None:
            self._states = [ParameterState(*pair) for pair in named(name, parameters)]
        else:
            self._groups = [self._of_group(*group, *arguments) for group in groups]
            self._states = [state for group in self._groups for state in group._states]
            if all(["lr" in settings for settings, _ in groups]):
                lr = self._groups[0].lr
        if not self._states:
            raise refused(
                name, "there are no parameters to optimize", "at least one",
                "give a model that has parameters; build it before the optimizer",
            )  # fmt: skip
        self._lr = self._first_lr = number(self, "lr", lr, "[0, inf)")
        self._first_rates = [group.lr for group in self._groups]
        if not self._lr and any(self._first_rates):
            raise refused(
                name, f"lr is 0, and the groups' rates are {self._first_rates}",
                "the rates of groups keep their proportion to lr", "give the optimizer an lr > 0",
            )  # fmt: skip

    def _of_group(
        self, said: Mapping[str, Any], pairs: Any, values: tuple[Any, ...], by_name: dict[str, Any]
    ) -> Optimizer:
        """An optimizer for one group: what the group does not say itself is as it was given."""
        check_names(type(self), said)
        first, *names = list(inspect.signature(type(self).__init__).parameters)[1:]
        arguments = {**dict(zip(names, values[1:], strict=False)), **by_name, **said}
        arguments.pop(first, None)
        return type(self)(pairs, **arguments)

    @property
    def groups(self) -> Sequence[Optimizer]:
        """An optimizer for each group of parameters; without groups, the optimizer itself.

        A group's settings are attributes: `optimizer.groups[1].weight_decay`.
        """
        return self._groups or (self,)

    @property
    def lr(self) -> float:
        """The learning rate, a number >= 0; it may be set between steps.

        Setting it to r sets the rate of each group to its first rate times r / the first lr.
        """
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = number(self, "lr", lr, "[0, inf)")
        for group, first in zip(self._groups, self._first_rates, strict=True):
            group.lr = first * (self._lr / self._first_lr) if first else 0.0

    def shard(self, communicator: Communicator) -> Self:
        """Keep the state of this rank's part of each parameter only, 1 / size of it; all ranks do.

        Each `step` then updates this rank's elements and gets the others' from their ranks. The
        parameters have the bits that they have without it. Gradients must be the same on all ranks,
        summed by `parallel.sum_gradients`, before they are clipped. `state_dict` and
        `load_state_dict` are of the whole state: it goes on with any number of ranks, and without
        them.

        Memory: up to 1 MiB while parameters travel; `state_dict` has the whole state on the host.
        Cost: a rank sends and receives (size - 1) / size times the parameters' bytes at each step,
            half as much as their gradients' sum does.

        Returns:
            The optimizer itself.
        Raises:
            ArgumentError: it is sharded already.
            ParallelError: by `step` and `state_dict`, which all ranks call: another rank failed.

        Example:
            >>> from dynbatch import models, optim, parallel
            >>> communicator = parallel.connect()
            >>> optimizer = optim.Adam(models.Linear(3, 2), lr=0.01).shard(communicator)

        Source: Rajbhandari, Rasley, Ruwase & He 2020, SC20, arXiv:1910.02054, stage 1.
        """
        if self._communicator is not None:
            raise refused(
                f"{type(self).__name__}.shard", "the optimizer is sharded already",
                "its state is cut once", "make a new optimizer, and load this one's state_dict()",
            )  # fmt: skip
        self._communicator = communicator
        if communicator.size > 1:
            for state in self._states:
                state.keep(part_of(communicator, state.parameter.size))
        return self

    @property
    def communicator(self) -> Communicator | None:
        """The communicator of ranks that have parts of its state; None where it is not sharded."""
        return self._communicator

    @property
    def state_bytes(self) -> int:
        """Bytes of the slots that it keeps here once each parameter that is not frozen was updated.

        They are made at a parameter's first update, in its dtype and on its device.
        """
        return sum(
            [
                len(group.slots) * int(state.of_part(state.parameter.value).nbytes)
                for group in self.groups
                for state in group._states
                if not state.parameter.frozen
            ]
        )

    def rule(self, num_steps: int) -> Rule:
        """The update of one block at a parameter's step `num_steps`, counted from 1."""
        update = self.update.maximizing if self.maximize else self.update
        return Rule(update, self._all_numbers(num_steps), self.only_touched_rows)

    def _all_numbers(self, num_steps: int) -> tuple[float, ...]:
        known = self.numbers(num_steps)
        names = self.update.numbers
        return tuple([float(known[x] if x in known else getattr(self, x)) for x in names])

    def numbers(self, num_steps: int) -> dict[str, float]:
        """The numbers of `update` that are not attributes, at a parameter's step `num_steps`."""
        return {}

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the arrays kept for each parameter, by the settings of now."""
        return self.update.outcome(self._all_numbers(1)).slots

    def initial(self, slot: str) -> float:
        """The initial value of a slot."""
        return 0.0

    def step(self, clear: bool = True) -> None:
        """Update the parameters from their gradients, then clear these (unless `clear=False`).

        Ctrl-C, and other signals that the program handles, take effect when all of it is done.

        Raises:
            ShapeError:   a gradient's shape is not its parameter's; nothing has been updated.
            BackendError: a gradient is not on its parameter's device; nothing has been updated.
            NumericError: the step before, on a GPU, was left out, as the norm of its gradients is
                not finite, and nobody has read that norm yet; nothing has been updated.
        """
        with deferred_interrupt():
            self._step(clear)

    def _step(self, clear: bool) -> None:
        self._settle()
        rules = [cache(group.rule) for group in self.groups]  # of equally many steps one for all
        grouped = [
            (group, rule, state)
            for group, rule in zip(self.groups, rules, strict=True)
            for state in group._states
            if state.is_live
        ]
        live = [state for _, _, state in grouped]
        for state in live:
            state.check_gradient()
        starts = [state.begin_step(rule, group.initial) for group, rule, state in grouped]
        run_updates([part for parts in starts for part in parts], self._scratch)
        if self._communicator is not None:
            gather_parts(self._communicator, [state.parameter.value for state in live])
        written([s.parameter.value for s in live if isinstance(s.parameter.value, np.ndarray)])
        for norm in dict.fromkeys([state.parameter.norm for state in live]):
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

    def _initial_slots(self) -> dict[str, float]:
        return {slot: self.initial(slot) for slot in self.slots}

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for state in self._states:
            state.parameter.zero_grad()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The parameters with the names that `state_dict` uses."""
        return ((state.name, state.parameter) for state in self._states)

    def state_dict(self) -> dict[str, Array]:
        """The state that `step` changes, copied to the host.

        These are `lr`, `"NAME/steps"` and `"NAME/SLOT"` for each parameter that was updated, and
        `"groups/K/lr"` and `"groups/K/names"` for each group. The other settings are not state: the
        constructor gives them.

        Raises:
            NumericError: as `step`.
        """
        self._settle()
        state: dict[str, Array] = {"lr": np.array(self.lr, np.float64)}
        for k, part in enumerate(self._groups):
            state[f"groups/{k}/lr"] = np.array(part.lr, np.float64)
            state[f"groups/{k}/names"] = names_array([each.name for each in part._states])
        whole = []
        for group in self.groups:
            for each in group._states:
                if each.num_steps:
                    state[f"{each.name}/steps"] = np.array(each.num_steps, np.int64)
                    each.prepare(group._initial_slots())
                    for slot in group.slots:
                        whole.append(each.download(slot))
                        state[f"{each.name}/{slot}"] = whole[-1]
        if self._communicator is not None:
            gather_parts(self._communicator, whole)
        return state

    def check_state_dict(self, state: Mapping[str, Array]) -> None:
        """Check that `load_state_dict` would take `state`.

        Raises:
            CheckpointError: a name is missing or unknown, a shape differs, `lr` is not a number
                >= 0, or the parameters were in other groups.
            ArgumentError:   the state is not a dict.
        """
        members = [[each.name for each in group._states] for group in self._groups]
        slots = {
            each.name: dict.fromkeys(group.slots, each.parameter.shape)
            for group in self.groups
            for each in group._states
        }
        require_fitting(type(self).__name__, members, slots, state_of(self, state))

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load a `state_dict`, `lr` included. Everything is checked before anything is written.

        Raises:
            CheckpointError: as `check_state_dict`.
        """
        self.check_state_dict(state)
        self._started.clear()
        self.lr = float(state["lr"])
        for k, part in enumerate(self._groups):
            part.lr = float(state[f"groups/{k}/lr"])
        for group in self.groups:
            for each in group._states:
                each.load(state, group._initial_slots())

    def __repr__(self) -> str:
        groups = f" in {len(self._groups)} groups" if len(self._groups) > 1 else ""
        return f"{type(self).__name__}({len(self._states)} parameters{groups}, lr={self.lr:g})"
