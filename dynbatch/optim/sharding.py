"""Parts of parameters, of which each rank keeps the optimizer's state and makes the update.

Every parameter is cut by itself, at even places of its flat order: a rank then has its share of the
state whichever parameters are frozen or stay without a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.kernels.arrays import collect, distribute
from dynbatch.kernels.optimizers import ParameterSlice
from dynbatch.kernels.runtime.stream import flush
from dynbatch.parallel import Communicator
from dynbatch.parallel.buckets import buckets

JOINED_BYTES = 1 << 20
"""Up to which arrays travel together: a copy of them is made, and messages are fewer."""


def part_of(communicator: Communicator, size: int) -> slice:
    """The elements of a parameter of `size` elements that are this rank's, in their flat order."""
    first, end = communicator.bounds(size)[communicator.rank :][:2]
    return slice(first, end)


def slices_of(update: ParameterSlice, part: slice) -> list[ParameterSlice]:
    """The update of some elements of a parameter, in their flat order.

    A sparse gradient is cut at rows, and so is the update: the row in which the part begins, whole
    rows, and the row in which it ends.

    Args:
        update: of the whole parameter, with the slots of the part, which are flat.
    """
    value, slots = update.value.reshape(-1), update.slots
    if update.rows is None:
        return [update._replace(value=value[part], gradient=update.gradient.reshape(-1)[part])]
    width = update.unit_size
    whole_rows = (-(-part.start // width) * width, part.stop // width * width)
    inside = {index for index in whole_rows if part.start < index < part.stop}
    slices = []
    for first, end in pairwise(sorted({part.start, part.stop} | inside)):
        shape = (-1, min(width, end - first))
        row, column = divmod(first, width)
        chosen = slice(*np.searchsorted(update.rows, (row, -(-end // width))).tolist())
        rows = slice(first - part.start, end - part.start)
        slices.append(
            update._replace(
                value=value[first:end].reshape(shape),
                gradient=update.gradient[chosen, column : column + shape[1]],
                slots=tuple([slot[rows].reshape(shape) for slot in slots]),
                rows=update.rows[chosen] - row,
            )
        )
    return slices


def gather_parts(communicator: Communicator, arrays: Sequence[Array]) -> None:
    """Fill the parts of C-contiguous arrays that other ranks have, as `part_of` cuts them.

    A rank sends and receives (size - 1) / size times their bytes.
    """
    for group in buckets(arrays, JOINED_BYTES):
        flat = [array.reshape(-1) for array in group]
        if len(flat) == 1:
            communicator.all_gather(flat[0], communicator.bounds(flat[0].size))
            continue
        cuts = np.array([communicator.bounds(array.size) for array in flat])
        bounds = cuts.sum(axis=0).tolist()
        together = device_of(flat[0]).xp.empty(bounds[-1], flat[0].dtype)
        rank = communicator.rank
        collect(_parts(flat, cuts, [rank]), together[bounds[rank] : bounds[rank + 1]])
        communicator.all_gather(together, bounds)
        distribute(together, _parts(flat, cuts, range(communicator.size)))
        flush(together)


def _parts(flat: Sequence[Array], cuts: Array, ranks: Iterable[int]) -> list[Array]:
    """The parts of some ranks, in the order in which they travel: rank after rank."""
    return [
        array[first:end]
        for rank in ranks
        for array, (first, end) in zip(flat, cuts[:, rank : rank + 2].tolist(), strict=True)
    ]
