"""Steps of the optimizers: the arithmetic of one block of one parameter, in place.

Each kernel has the arguments

    value     the parameter's block, changed.
    gradient  of its shape, left as it is.
    slots     the optimizer's arrays of its shape, changed; the kernel says which.
    scratch   arrays of its shape and dtype to write to, as many as the optimizer's `num_scratch`.

and then the numbers of the step. `kernels/cuda/optimizers.cu` has a kernel of the same name, which
reads the same numbers in the same order and steps all parameters at once. What the steps are for,
and their sources, is told in `dynbatch.optim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array

Arrays = Sequence[Array]


class Rule(NamedTuple):
    """One parameter's step: rule(value, gradient, slots, scratch).

    Args:
        kernel:  one of this module; on a GPU, the one of its name.
        numbers: what it takes after `scratch`.
    """

    kernel: Callable[..., None]
    numbers: tuple[float, ...]

    def __call__(self, value: Array, gradient: Array, slots: Arrays, scratch: Arrays) -> None:
        self.kernel(value, gradient, slots, scratch, *self.numbers)


def sgd(
    value: Array, gradient: Array, slots: Arrays, scratch: Arrays,
    lr: float, momentum: float, share: float, decay: float, nesterov: float,
) -> None:  # fmt: skip
    """g' = g + decay·θ;  b ← momentum·b + share·g';  θ ← θ - lr·d, where d is b with momentum, with
    `nesterov` too g' + momentum·b, else g'. Slots: b with momentum, else none.
    """
    step, direction = scratch[0], gradient
    if decay:
        direction = np.multiply(value, decay, out=scratch[1])
        direction += gradient
    if momentum:
        (average,) = slots
        average *= momentum
        average += direction if share == 1.0 else np.multiply(direction, share, out=step)
        if nesterov:
            np.multiply(average, momentum, out=step)
            direction = np.add(direction, step, out=scratch[1])
        else:
            direction = average
    np.multiply(direction, lr, out=step)
    value -= step


def adagrad(
    value: Array, gradient: Array, slots: Arrays, scratch: Arrays,
    lr: float, decay: float, eps: float,
) -> None:  # fmt: skip
    """g' = g + decay·θ;  s ← s + g'²;  θ ← θ - lr·g' / (√s + eps). Slots: s."""
    (square_sum,), step, direction = slots, scratch[0], gradient
    if decay:
        direction = np.multiply(value, decay, out=scratch[1])
        direction += gradient
    square_sum += np.multiply(direction, direction, out=step)
    np.sqrt(square_sum, out=step)
    step += eps
    np.divide(direction, step, out=step)
    step *= lr
    value -= step


def rmsprop(
    value: Array, gradient: Array, slots: Arrays, scratch: Arrays,
    lr: float, alpha: float, rest: float, eps: float, decay: float, momentum: float,
    centered: float,
) -> None:  # fmt: skip
    """g' = g + decay·θ;  v ← alpha·v + rest·g'²;  if `centered` a ← alpha·a + rest·g', else a = 0;
    d = g' / (√(v - a²) + eps);  with momentum b ← momentum·b + d, θ ← θ - lr·b, else θ ← θ - lr·d.
    rest = 1 - alpha. Slots: v, then a if centered, then b with momentum.
    """
    square_average, step, direction = slots[0], scratch[0], gradient
    if decay:
        direction = np.multiply(value, decay, out=scratch[1])
        direction += gradient
    np.multiply(direction, direction, out=step)
    square_average *= alpha
    square_average += np.multiply(step, rest, out=step)
    if centered:
        gradient_average = slots[1]
        gradient_average *= alpha
        gradient_average += np.multiply(direction, rest, out=step)
        np.multiply(gradient_average, gradient_average, out=step)
        np.subtract(square_average, step, out=step)
        np.sqrt(step, out=step)
    else:
        np.sqrt(square_average, out=step)
    step += eps
    np.divide(direction, step, out=step)
    if momentum:
        average = slots[-1]
        average *= momentum
        average += step
        np.multiply(average, lr, out=step)
    else:
        step *= lr
    value -= step


def adam(
    value: Array, gradient: Array, slots: Arrays, scratch: Arrays,
    step_size: float, beta1: float, beta2: float, eps: float, decay: float, shrink: float,
) -> None:  # fmt: skip
    """g' = g + decay·θ;  M ← β₁·M + g';  V ← β₂·V + g'²;  θ ← shrink·θ - step_size·M / (√V + eps).
    Slots: M, V.
    """
    (gradient_sum, square_sum), step = slots, scratch[0]
    if decay:
        gradient = np.add(gradient, np.multiply(value, decay, out=step), out=scratch[1])
    if shrink != 1.0:
        value *= shrink
    gradient_sum *= beta1
    gradient_sum += gradient
    square_sum *= beta2
    square_sum += np.multiply(gradient, gradient, out=step)
    np.sqrt(square_sum, out=step)
    step += eps
    np.divide(gradient_sum, step, out=step)
    step *= step_size
    value -= step
