"""`Average`: a running mean of a model's weights, to validate and to use in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from dynbatch.arguments import number, size, state_differences, state_of
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError
from dynbatch.kernels.arrays import download
from dynbatch.kernels.runtime import transfer
from dynbatch.named_parameters import Parameters, named
from dynbatch.names import NamesChecked
from dynbatch.optim.combination import combine
from dynbatch.optim.norm import GradientNorm
from dynbatch.optim.parameter_state import ParameterState
from dynbatch.parameter import Parameter

SLOT = "average"


class Average(NamesChecked):
    """The mean of a model's weights over updates; it is often a better model than the last one.

    With weights θ_t after update t, and the first one taken in as it is:

        a ← decay·a + (1 - decay)·θ_t     with a decay: an exponential moving average
        a ← a + (θ_t - a) / n             without: the mean of n weights, all alike

    Every number is averaged, also rows of a table that an update did not touch. `Trainer(average=
    ...)` does everything by itself: validations and the best checkpoint then have the mean.

    Args:
        parameters: a `Module`, or what else an optimizer takes, but for groups.
        decay:      from 0 to below 1. With 0.999 about the last thousand updates count.
        start:      updates that are left out at first.

    Memory: a copy of the parameters. Cost: a pass over them at each update.

    Raises:
        ArgumentError: a setting is not a number of its range.

    Example:
        >>> from dynbatch import models, optim
        >>> model = models.Linear(1, 1)
        >>> average = optim.Average(model, decay=0.75)
        >>> for weight in (0.0, 4.0):
        ...     model.weight.assign([[weight]])
        ...     average.update()  # after each optimizer.step()
        >>> with average.applied():
        ...     print(model.weight.value)
        [[1.]]

    Source: Polyak & Juditsky 1992, SIAM J. Control Optim. 30(4); Izmailov et al. 2018,
            arXiv:1803.05407; as PyTorch's `swa_utils.AveragedModel`.
    """

    def __init__(self, parameters: Parameters, decay: float | None = None, start: int = 0) -> None:
        self._states = [ParameterState(*pair) for pair in named(type(self).__name__, parameters)]
        self.decay = None if decay is None else number(self, "decay", decay, "[0, 1)")
        self.start = size(self, "start", start, 0)
        self.num_updates = 0
        self._is_applied = False

    @property
    def num_averaged(self) -> int:
        """The number of weights that the mean is of."""
        return max(0, self.num_updates - self.start)

    def update(self, norm: GradientNorm | None = None) -> None:
        """Take in the present weights, after an optimizer's step.

        Args:
            norm: of the step's gradients on a GPU, if they were measured: as the step itself, this
                does nothing there unless it is finite.
        """
        self.num_updates += 1
        if not self.num_averaged:
            return
        for state in self._states:
            state.prepare({SLOT: 0.0})
        averages = [state.slots[SLOT] for state in self._states]
        values = [state.parameter.value for state in self._states]
        share = 1.0 / self.num_averaged if self.decay is None else 1.0 - self.decay
        if self.num_averaged == 1:
            share = 1.0
        combine(averages, values, 1.0 - share, share, None if norm is None else norm.array)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the parameters have the mean, and afterwards their own weights again.

        Nothing is copied: arrays change places. As long as the mean is of no weights, and within
        another `applied`, nothing changes.
        """
        if not self.num_averaged or self._is_applied:
            yield
            return
        for state in self._states:
            state.prepare({SLOT: 0.0})
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        self._is_applied = not self._is_applied
        for state in self._states:
            state.slots[SLOT], state.parameter.value = state.parameter.value, state.slots[SLOT]

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The parameters that it averages, with the names that `state_dict` uses."""
        return ((state.name, state.parameter) for state in self._states)

    def state_dict(self) -> dict[str, Array]:
        """The mean of each parameter by its name, on the host; none before the first."""
        if not self.num_averaged:
            return {}
        return {
            state.name: download(state.parameter.value if self._is_applied else state.slots[SLOT])
            for state in self._states
        }

    def check_state_dict(self, state: Mapping[str, Array], num_updates: int) -> None:
        """Check that `load_state_dict` would take the arguments.

        Raises:
            CheckpointError: a name is missing or unknown, or a shape differs.
        """
        state = state_of(self, state)
        wanted = {each.name: each.parameter.shape for each in self._states}
        if num_updates <= self.start:
            wanted = {}
        shapes = {name: np.shape(array) for name, array in state.items()}
        if differences := state_differences(wanted, shapes, "average"):
            raise CheckpointError(
                f"{type(self).__name__}: the state does not fit; nothing was loaded.\n"
                f"{differences}\n"
                "  fix: use the model and the start that it was saved with."
            )

    def load_state_dict(self, state: Mapping[str, Array], num_updates: int) -> None:
        """Go on from a `state_dict` that was made after `num_updates` updates.

        Raises:
            CheckpointError: a name is missing or unknown, or a shape differs.
        """
        self.check_state_dict(state, num_updates)
        self.num_updates = num_updates
        for each in self._states:
            each.slots.clear()
            if self.num_averaged:
                each.prepare({SLOT: 0.0})
                transfer.overwrite(each.slots[SLOT], state[each.name])
