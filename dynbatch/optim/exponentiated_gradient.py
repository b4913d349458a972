"""The exponentiated gradient, for parameters that are probabilities."""

from __future__ import annotations

import numpy as np

from dynbatch.arguments import number, refused
from dynbatch.backend import device_of
from dynbatch.kernels import binary, segment
from dynbatch.kernels.arrays import download
from dynbatch.kernels.rows import add_rows, scatter_rows, taken_rows
from dynbatch.kernels.runtime.stream import flush
from dynbatch.kernels.runtime.transfer import to_device
from dynbatch.kernels.scalar.expressions import Expression, equal, where
from dynbatch.kernels.scalar.update import Replaced, update_rule
from dynbatch.kernels.unary.arithmetic import exp
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer
from dynbatch.parameter import Parameter


@update_rule
def exponentiated(
    value: Expression, gradient: Expression, momentum_buffer: Expression, lr: Expression,
    momentum: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `EG`, before rows are divided by their sums."""
    b = where(equal(momentum, 0), momentum_buffer, momentum * momentum_buffer + gradient)
    d = where(equal(momentum, 0), gradient, b)
    return {"value": value * exp(d * -lr), "momentum_buffer": b}


class EG(Optimizer):
    """θ ← θ·exp(-lr·b) / Σ θ·exp(-lr·b), with b ← momentum·b + g: weights that stay probabilities.

    The sum is over the last dimension: each row of a matrix adds up to 1 after a step. A number
    that is 0 stays 0; where all are alike at first, nothing is preferred.

    Raises:
        ArgumentError: a parameter has a number below 0 or a row of zeros; or as `Optimizer`.

    Source: Kivinen & Warmuth 1997, Information and Computation 132(1), 1-63; momentum as in DyNet's
            EGTrainer, with lr in the form of `SGD`.

    Example:
        >>> import numpy as np
        >>> import dynbatch as db
        >>> from dynbatch import optim
        >>> weights = db.Parameter(np.full(2, 0.5))
        >>> optimizer = optim.EG([weights], lr=np.log(3))
        >>> weights.grad = np.array([0.0, 1.0])
        >>> optimizer.step()
        >>> weights.value
        array([0.75, 0.25])
    """

    update = exponentiated

    def __init__(
        self, parameters: Parameters, lr: float = 0.1, momentum: float = 0.9, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        self.momentum = number(self, "momentum", momentum, "[0, 1)")
        super().__init__(parameters, lr, maximize=maximize)
        for state in self._states:
            value = download(state.parameter.value)
            if value.size and not (value.min() >= 0 and (value.sum(axis=-1) > 0).all()):
                raise refused(
                    type(self).__name__,
                    f"parameter {state.name!r} has a number below 0, or a row of zeros",
                    "every row can be divided by its sum to give probabilities",
                    "np.full(shape, 1 / shape[-1]) is a start",
                )  # fmt: skip

    def step(self, clear: bool = True) -> None:
        live = [state.parameter for state in self._states if state.is_live]
        super().step(clear)
        for parameter in live:
            _normalize(parameter)


def _normalize(parameter: Parameter) -> None:
    """Divide each row by its sum, and frozen rows by 1."""
    value, frozen, trained = parameter.value, parameter.frozen_rows, parameter.trained_rows
    if not value.size:
        return
    offsets = np.arange(0, value.size + 1, value.shape[-1] if value.ndim else 1)
    sums = device_of(value).xp.empty((offsets.size - 1, 1), value.dtype)
    segment.sum_segments(value.reshape(-1, 1), offsets, sums)
    if frozen is not None and trained is not None:
        scatter_rows(taken_rows(sums, trained), trained, sums)
        add_rows(to_device(np.ones((frozen.size, 1), value.dtype), parameter.device), frozen, sums)
    flat = value.reshape(-1)
    binary.combine_number(binary.divide, flat, sums.reshape(-1), offsets, flat, 0)
    flush(value)
