"""Steps of the optimizers: `run_updates` steps parameters in place, shared between threads.

In NumPy a step is a dozen elementwise passes over blocks, of which only the first one fetches from
memory; temporaries live in scratch that is reused. In C it is one pass without scratch.

A kernel is the arithmetic of one block. It has the arguments

    value     the parameter's block, changed.
    gradient  of its shape, left as it is.
    slots     the optimizer's arrays of its shape, changed; the kernel says which.
    scratch   arrays of its shape and dtype to write to, as many as the optimizer's `num_scratch`.

and then the numbers of the step. CUDA and C have kernels of the same names, which read the
same numbers in the same order; CUDA's step all parameters at once. What the steps are for, and
their sources, is told in `dynbatch.optim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import has_c

Arrays = Sequence[Array]

# Bytes of one array's block. Adam on 8 million float32, Zen 5, 1 MiB of L2 and 32 MiB of L3, ms on
# one / two threads: 128 KiB 15 / 17, 256 KiB 14 / 11, 1 MiB 12.5 / 7.3; everything in one block 20.
# Smaller blocks fit L2 but lose more to the interpreter's lock, handed over at every pass.
BLOCK_BYTES = 1 << 20
# A thread is worth waking for this many elements: Adam takes about 200 µs in NumPy, 60 in C.
LEAST_ELEMENTS = 1 << 17


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


class ParameterSlice(NamedTuple):
    """One parameter's part of a step.

    Args:
        value:     C-contiguous, as are the gradient and the slots.
        gradient:  of the value's shape; with `rows` (K, width).
        slots:     the optimizer's arrays for this parameter, shaped as `value`.
        rule:      the arithmetic of one block; on a GPU a `Rule`.
        rows:      None for a dense gradient, else (K,) int64, the increasing rows that it has.
        every_row: whether the rows without gradient are stepped too, by a gradient of 0.
    """

    value: Array
    gradient: Array
    slots: tuple[Array, ...]
    rule: Rule | Callable[..., None]
    rows: Array | None = None
    every_row: bool = True

    @property
    def num_units(self) -> int:
        """The number of elements, or of rows if the gradient is sparse: a step can be cut there."""
        if self.rows is None:
            return self.value.size
        return len(self.value) if self.every_row else len(self.rows)

    @property
    def unit_size(self) -> int:
        """Elements of a unit."""
        return 1 if self.rows is None else int(self.value.shape[1])

    @property
    def num_elements(self) -> int:
        """The number of elements to update."""
        return self.num_units * self.unit_size


class ShardScratch:
    """Scratch memory of each shard, kept from step to step.

    Args:
        num_arrays: arrays of one block's size that a rule writes to.
    """

    def __init__(self, num_arrays: int) -> None:
        self._num_arrays = num_arrays + 1  # and one for the rows of a sparse gradient, made dense
        self._shards: list[Array] = []

    def shards(self, count: int, least_bytes: int) -> list[Array]:
        """`count` separate (arrays, bytes) areas of uint8, each array of at least `least_bytes`."""
        wanted = -(-max(BLOCK_BYTES, least_bytes) // 64) * 64
        if self._shards and self._shards[0].shape[1] < wanted:
            self._shards.clear()
        while len(self._shards) < count:
            self._shards.append(np.empty((self._num_arrays, wanted), np.uint8))
        return self._shards[:count]


def run_updates(parts: Sequence[ParameterSlice], scratch: ShardScratch) -> None:
    """Run updates of the host, shared evenly between the threads.

    The result does not depend on the cuts: every element is updated on its own, by operations whose
    rounding IEEE 754 fixes.
    """
    parts = [part for part in parts if part.num_elements]
    total = sum([part.num_elements for part in parts])
    if not total:
        return
    num_shards = max(1, min(parallel.available(), total // LEAST_ELEMENTS))
    widest = max([part.unit_size * part.value.itemsize for part in parts])
    update(_shares(parts, -(-total // num_shards)), scratch.shards(num_shards, widest))


Share = Sequence[tuple[ParameterSlice, int, int]]
"""Parts of updates, with the first and the end of the units to step."""


def _shares(parts: Sequence[ParameterSlice], elements: int) -> list[Share]:
    """Cut updates into shares of about `elements` elements, in order."""
    shares: list[list[tuple[ParameterSlice, int, int]]] = [[]]
    room = elements
    for part in parts:
        start, num_units, unit_size = 0, part.num_units, part.unit_size
        while start < num_units:
            if room <= 0:
                shares.append([])
                room = elements
            # Rounded up, so that the last share is never larger than the others.
            units = min(num_units - start, -(-room // unit_size))
            shares[-1].append((part, start, start + units))
            room -= units * unit_size
            start += units
    return [*shares]


@has_c
def update(shares: Sequence[Share], scratch: Sequence[Array]) -> None:
    """Step shares of parameters at the same time.

    Args:
        scratch: for each (arrays, bytes) uint8, one array more than the rule's; C leaves it alone.
    """
    parallel.run([partial(_run_share, *pair) for pair in zip(shares, scratch, strict=False)])


def _run_share(share: Share, scratch: Array) -> None:
    for part, start, stop in share:
        buffers = scratch.view(part.value.dtype)
        length = max(1, buffers.shape[1] // max(1, part.unit_size))
        step = _dense_block
        if part.rows is not None:
            step = _all_rows if part.every_row else _touched_rows
        for begin in range(start, stop, length):
            step(part, slice(begin, min(begin + length, stop)), buffers)


def _dense_block(part: ParameterSlice, units: slice, buffers: Array) -> None:
    arrays = (part.value, part.gradient, *part.slots)
    value, gradient, *slots = [array.reshape(-1)[units] for array in arrays]
    part.rule(value, gradient, slots, [each[: value.size] for each in buffers])


def _touched_rows(part: ParameterSlice, units: slice, buffers: Array) -> None:
    assert part.rows is not None
    rows, arrays = part.rows[units], (part.value, *part.slots)
    value, *slots = gathered = [array[rows] for array in arrays]
    part.rule(value, part.gradient[units], slots, _shaped(buffers, value.shape))
    for array, stepped in zip(arrays, gathered, strict=True):
        array[rows] = stepped


def _all_rows(part: ParameterSlice, units: slice, buffers: Array) -> None:
    assert part.rows is not None
    value, *slots = [array[units] for array in (part.value, *part.slots)]
    *scratch, dense = _shaped(buffers, value.shape)
    dense.fill(0)
    first, last = np.searchsorted(part.rows, (units.start, units.stop))
    dense[part.rows[first:last] - units.start] = part.gradient[first:last]
    part.rule(value, dense, slots, scratch)


def _shaped(buffers: Array, shape: tuple[int, ...]) -> list[Array]:
    size = shape[0] * shape[1]
    return [buffer[:size].reshape(shape) for buffer in buffers]


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
    amsgrad: float,
) -> None:  # fmt: skip
    """g' = g + decay·θ;  M ← β₁·M + g';  V ← β₂·V + g'²;  θ ← shrink·θ - step_size·M / (√V + eps);
    with `amsgrad` U ← max(U, V), and √U in place of √V. Slots: M, V, then U with amsgrad.
    """
    (gradient_sum, square_sum), step = slots[:2], scratch[0]
    if decay:
        gradient = np.add(gradient, np.multiply(value, decay, out=step), out=scratch[1])
    if shrink != 1.0:
        value *= shrink
    gradient_sum *= beta1
    gradient_sum += gradient
    square_sum *= beta2
    square_sum += np.multiply(gradient, gradient, out=step)
    if amsgrad:
        square_sum = np.maximum(slots[2], square_sum, out=slots[2])
    np.sqrt(square_sum, out=step)
    step += eps
    np.divide(gradient_sum, step, out=step)
    step *= step_size
    value -= step


def adadelta(
    value: Array, gradient: Array, slots: Arrays, scratch: Arrays,
    lr: float, rho: float, rest: float, eps: float, decay: float,
) -> None:  # fmt: skip
    """g' = g + decay·θ;  v ← rho·v + rest·g'²;  d = √(u + eps) / √(v + eps)·g';
    u ← rho·u + rest·d²;  θ ← θ - lr·d. rest = 1 - rho. Slots: v, u.
    """
    (square_average, step_average), step, other = slots, scratch[0], scratch[1]
    direction = gradient
    if decay:
        direction = np.multiply(value, decay, out=other)
        direction += gradient
    np.multiply(direction, direction, out=step)
    square_average *= rho
    square_average += np.multiply(step, rest, out=step)
    np.add(square_average, eps, out=step)
    np.sqrt(step, out=step)
    np.divide(direction, step, out=step)
    np.add(step_average, eps, out=other)
    step *= np.sqrt(other, out=other)
    step_average *= rho
    np.multiply(step, step, out=other)
    step_average += np.multiply(other, rest, out=other)
    step *= lr
    value -= step


def exponentiated(
    value: Array, gradient: Array, slots: Arrays, scratch: Arrays, lr: float, momentum: float
) -> None:
    """θ ← θ·exp(-lr·d), where d is g, with momentum b ← momentum·b + g. Slots: b with momentum."""
    step, direction = scratch[0], gradient
    if momentum:
        (direction,) = slots
        direction *= momentum
        direction += gradient
    np.multiply(direction, -lr, out=step)
    value *= np.exp(step, out=step)
