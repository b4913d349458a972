"""Runs updates in cache-sized blocks, shared between threads.

An update is a dozen elementwise passes. Over whole parameters each pass would fetch everything from
memory again; over blocks that stay in cache only the first one does, and the temporaries of a block
live in scratch that is reused for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dynbatch.kernels.optimizers import Rule
from dynbatch.kernels.runtime import parallel
from dynbatch.optim.norm import GradientNorm
from dynbatch.parameter import Array, Gradient, RowSparse

# Bytes of one array's block. Adam on 8 million float32, Zen 5, 1 MiB of L2 and 32 MiB of L3, ms on
# one / two threads: 128 KiB 15 / 17, 256 KiB 14 / 11, 1 MiB 12.5 / 7.3; everything in one block 20.
# Smaller blocks fit L2 but lose more to the interpreter's lock, handed over at every pass.
BLOCK_BYTES = 1 << 20
# A thread is worth waking for this many elements (about 200 µs of Adam).
LEAST_ELEMENTS = 1 << 17


@dataclass(slots=True)
class BlockUpdate:
    """One parameter's step. It can be cut anywhere along its units: elements, or rows if sparse.

    Args:
        value:      the parameter's array, C-contiguous.
        gradient:   dense, or `RowSparse`.
        slots:      the optimizer's arrays for this parameter, shaped as `value`.
        rule:       the arithmetic of one block: changes `value` and `slots` in place, `gradient`
                    never.
        touched:    rows whose gradient is zero stay as they are, so only the others are visited.
        norm:       on a GPU, what must be finite for the step to be done; None for nothing.

    Attributes:
        num_units: how many units it has.
        unit_size: elements of a unit.
    """

    value: Array
    gradient: Gradient
    slots: tuple[Array, ...]
    rule: Rule
    touched: bool = False
    norm: GradientNorm | None = None
    num_units: int = field(init=False)
    unit_size: int = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.gradient, RowSparse):
            rows, width = self.value.shape
            self.num_units = self.gradient.rows.size if self.touched else rows
            self.unit_size = width
        else:
            self.num_units, self.unit_size = self.value.size, 1

    def run(self, start: int, stop: int, scratch: Array) -> None:
        """Update units `start` to `stop` with scratch (arrays, bytes), of uint8."""
        buffers = scratch.view(self.value.dtype)
        length = max(1, buffers.shape[1] // self.unit_size)
        block = self._block()
        for begin in range(start, stop, length):
            block(begin, min(begin + length, stop), buffers)

    def _block(self) -> Callable[[int, int, Array], None]:
        if not isinstance(self.gradient, RowSparse):
            arrays = [array.reshape(-1) for array in (self.value, *self.slots)]
            return partial(self._dense_block, arrays, self.gradient.reshape(-1))
        block = self._touched_rows if self.touched else self._all_rows
        return partial(block, (self.value, *self.slots), self.gradient)

    def _dense_block(
        self, arrays: Sequence[Array], gradient: Array, start: int, stop: int, buffers: Array
    ) -> None:
        value, *slots = [array[start:stop] for array in arrays]
        self.rule(value, gradient[start:stop], slots, [each[: stop - start] for each in buffers])

    def _touched_rows(
        self, arrays: Sequence[Array], gradient: RowSparse, start: int, stop: int, buffers: Array
    ) -> None:
        rows = gradient.rows[start:stop]
        value, *slots = gathered = [array[rows] for array in arrays]
        self.rule(value, gradient.values[start:stop], slots, _shaped(buffers, value.shape))
        for array, part in zip(arrays, gathered, strict=True):
            array[rows] = part

    def _all_rows(
        self, arrays: Sequence[Array], gradient: RowSparse, start: int, stop: int, buffers: Array
    ) -> None:
        value, *slots = [array[start:stop] for array in arrays]
        *scratch, dense = _shaped(buffers, value.shape)
        dense.fill(0)
        first, last = np.searchsorted(gradient.rows, (start, stop))
        dense[gradient.rows[first:last] - start] = gradient.values[first:last]
        self.rule(value, dense, slots, scratch)


def _shaped(buffers: Array, shape: tuple[int, ...]) -> list[Array]:
    size = shape[0] * shape[1]
    return [buffer[:size].reshape(shape) for buffer in buffers]


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


def run_updates(updates: Sequence[BlockUpdate], scratch: ShardScratch) -> None:
    """Run updates of the host, shared evenly between the threads.

    The result does not depend on the cuts: every element is updated on its own, by operations whose
    rounding IEEE 754 fixes.
    """
    total = sum([update.num_units * update.unit_size for update in updates])
    if not total:
        return
    num_shards = max(1, min(parallel.available(), total // LEAST_ELEMENTS))
    widest = max([update.unit_size * update.value.itemsize for update in updates])
    areas = scratch.shards(num_shards, widest)
    shares = share(updates, -(-total // num_shards))
    parallel.run(
        [partial(_run_share, each, area) for each, area in zip(shares, areas, strict=False)]
    )


Share = list[tuple[BlockUpdate, int, int]]


def share(updates: Sequence[BlockUpdate], elements: int) -> list[Share]:
    """Cut updates into shares of about `elements` elements, in order: (update, start, stop)."""
    shares: list[Share] = [[]]
    room = elements
    for update in updates:
        start = 0
        while start < update.num_units:
            if room <= 0:
                shares.append([])
                room = elements
            # Rounded up, so that the last share is never larger than the others.
            units = min(update.num_units - start, -(-room // update.unit_size))
            shares[-1].append((update, start, start + units))
            room -= units * update.unit_size
            start += units
    return shares


def _run_share(share: Share, scratch: Array) -> None:
    for update, start, stop in share:
        update.run(start, stop, scratch)
