"""Steps of the optimizers: `run_updates` steps parameters in place, shared between threads.

What a step does to each element is an `UpdateRule`, written beside its optimizer in
`dynbatch.optim`, with its source. In NumPy it is a dozen elementwise passes over blocks, of which
only the first one fetches from memory; values between are in scratch that is reused. In C it is one
pass without scratch, on a GPU a launch for all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import numpy as np

from dynbatch.backend import CPU, Array, Device, device_of
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.kernels.scalar.update import SCRATCH, UpdateOutcome, UpdateRule

Arrays = Sequence[Array]
Slot = TypeVar("Slot")

# Bytes of one array's block. Adam on 8 million float32, Zen 5, 1 MiB of L2 and 32 MiB of L3, ms on
# one / two threads: 128 KiB 15 / 17, 256 KiB 14 / 11, 1 MiB 12.5 / 7.3; everything in one block 20.
# Smaller blocks fit L2 but lose more to the interpreter's lock, handed over at every pass.
BLOCK_BYTES = 1 << 20
# A thread is worth waking for this many elements: Adam takes about 200 µs in NumPy, 60 in C.
LEAST_ELEMENTS = 1 << 17


@dataclass(frozen=True)
class Rule:
    """One parameter's step: rule(value, gradient, slots, scratch).

    The slots are those of its outcome, the scratch two arrays of the value's shape and dtype.

    Args:
        update:  what it does to each element.
        numbers: in the order of the update's.
        only_touched_rows: whether rows that a sparse gradient has not are left alone.
    """

    update: UpdateRule
    numbers: tuple[float, ...]
    only_touched_rows: bool = False

    @cached_property
    def outcome(self) -> UpdateOutcome:
        """The outcome that follows from the numbers."""
        return self.update.outcome(self.numbers)

    def __call__(self, value: Array, gradient: Array, slots: Arrays, scratch: Arrays) -> None:
        first, second = scratch
        self.update.run(value, gradient, *self.every_slot(slots), first, second, *self.numbers)

    def every_slot(self, slots: Sequence[Slot]) -> list[Slot | None]:
        """`slots`, with None in the places of those that do not exist."""
        if len(slots) == len(self.update.slots):
            return [*slots]
        known = dict(zip(self.outcome.slots, slots, strict=True))
        return [known.get(name) for name in self.update.slots]


class ParameterSlice(NamedTuple):
    """One parameter's part of a step.

    Args:
        value:     C-contiguous, as are the gradient and the slots.
        gradient:  of the value's shape; with `rows` (K, width).
        slots:     the optimizer's arrays for this parameter, shaped as `value`.
        rule:      the arithmetic of one block.
        rows:      None for a dense gradient, else (K,) int64, the increasing rows that it has.
        every_row: whether the rows without gradient are stepped too, by a gradient of 0.
        norm:      on a GPU (1,) float64 that must be finite for the step to be done.
    """

    value: Array
    gradient: Array
    slots: tuple[Array, ...]
    rule: Rule
    rows: Array | None = None
    every_row: bool = True
    norm: Array | None = None

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
    """Scratch memory of each shard, kept from step to step: arrays of one block's size."""

    def __init__(self) -> None:
        self._num_arrays = len(SCRATCH) + 1  # of a sparse gradient's rows, made dense
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
    """Run updates: on the host shared evenly between the threads, on a GPU a launch for each dtype.

    The result does not depend on the cuts: every element is updated on its own, by operations whose
    rounding IEEE 754 fixes. On a GPU rules have one `UpdateRule`, gradients that were clipped in
    groups take a launch for each group, and nothing is waited for.
    """
    by_device: dict[Device, dict[object, list[ParameterSlice]]] = {}
    for part in parts:
        device = CPU if isinstance(part.value, np.ndarray) else device_of(part.value)
        key = (part.value.dtype, id(part.norm)) if device.is_cuda else None
        by_device.setdefault(device, {}).setdefault(key, []).append(part)
    for device, groups in by_device.items():
        stream = stream_of(device)
        for group in groups.values():
            update_together(group[0].value, group, scratch)
        stream.flush()


@kernel(cuda=HOST)
def update_together(array: Array, parts: Sequence[ParameterSlice], scratch: ShardScratch) -> None:
    """Update parameters of one device; on a GPU they have one dtype and one norm.

    Args:
        array: one of the values.
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


@kernel(c=HOST)
def update(shares: Sequence[Share], scratch: Sequence[Array]) -> None:
    """Step shares of parameters at the same time.

    Args:
        scratch: for each (arrays, bytes) uint8, one array more than a rule's; C leaves it alone.
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
    part.rule(value, gradient, slots, [each[: value.size] for each in buffers[:-1]])


def _touched_rows(part: ParameterSlice, units: slice, buffers: Array) -> None:
    assert part.rows is not None
    rows, arrays = part.rows[units], (part.value, *part.slots)
    value, *slots = gathered = [array[rows] for array in arrays]
    part.rule(value, part.gradient[units], slots, _shaped(buffers[:-1], value.shape))
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
