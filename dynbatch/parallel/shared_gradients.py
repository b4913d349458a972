"""`SharedGradients`: dense gradients in memory that all ranks of one machine have."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import arrays as kernels
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.shared_memory import shared_blocks
from dynbatch.parameter import Parameter

ALIGNMENT = 64
"""Bytes: a line of the processor's cache."""

CHUNK_BYTES = 1 << 18
"""Of all ranks together, summed at once: as much as stays in a processor's own cache."""


class GradientPlace(NamedTuple):
    """The place of a parameter's gradients.

    Args:
        number: of the blocks of memory, the same on all ranks.
        first:  of its bytes in each block.
        parts:  all ranks' gradients, flat.
        own:    this rank's gradient.
    """

    number: int
    first: int
    parts: Sequence[Array]
    own: Array

    def is_of(self, parameter: Parameter) -> bool:
        return self.own.dtype == parameter.dtype and parameter.gradient_state[1] is self.own


class SharedGradients:
    """Dense gradients of parameters, in memory that all ranks of one machine have.

    A parameter's gradient is moved there when it is summed first, and later backwards write it
    there: nothing is packed or sent any more. Each rank then adds one part of all gradients, in
    the order of ranks, and writes the sum to all of them.

    Attributes:
        compared: parameters whose values were equal on all ranks when they were first summed.
    """

    def __init__(self) -> None:
        self.compared: WeakSet[Parameter] = WeakSet()
        self._places: WeakKeyDictionary[Parameter, GradientPlace] = WeakKeyDictionary()
        self._have_memory = True
        self._number = 0
        _in_use.add(self)

    def digest(self, parameters: Sequence[Parameter]) -> bytes:
        """Bytes that are equal on all ranks if the parameters have equal places on all of them.

        A parameter of another dtype by now, or whose memory was taken away, has none any more.
        """
        numbers = []
        for each in parameters:
            slot = self._places.get(each)
            if slot is not None and not slot.is_of(each):
                slot = None
                del self._places[each]
            numbers.append((-1, -1) if slot is None else (slot.number, slot.first))
        return blake2b(np.array(numbers).tobytes(), digest_size=16).digest()

    def leave(self, parameters: Iterable[Parameter] | None = None) -> None:
        """Move gradients, by default all, to memory of their own; what was shared is given back.

        They get other places when they are summed next.
        """
        for parameter in list(self._places if parameters is None else parameters):
            slot = self._places.pop(parameter, None)
            if slot is not None and slot.is_of(parameter):
                parameter.keep_gradient_in(None)

    def sum(self, communicator: Communicator, parameters: Sequence[Parameter]) -> bool:
        """Replace dense gradients on the host by their sums over all ranks.

        Args:
            communicator: the same at all times.
            parameters:   the same on all ranks, with equal digests; each has a dense gradient.

        Returns:
            Whether it was done; if not, on no rank, as they have no memory in common.
        """
        self._place(communicator, [each for each in parameters if each not in self._places])
        if not self._have_memory:
            return False
        places = [self._places[each] for each in parameters]
        for parameter, slot in zip(parameters, places, strict=True):
            grad = cast("Array", parameter.grad)
            if grad is not slot.own and grad.base is not None:
                parameter.grad = grad.copy()  # it may lie where another's is moved to
        for parameter, slot in zip(parameters, places, strict=True):
            parameter.keep_gradient_in(slot.own)
        communicator.barrier()  # all gradients are there
        bounds, offset = communicator.bounds(sum([slot.own.size for slot in places])), 0
        start, stop = bounds[communicator.rank :][:2]  # of this rank's part of all numbers
        for slot in places:
            _sum_part(slot.parts, max(0, start - offset), min(slot.own.size, stop - offset))
            offset += slot.own.size
        communicator.barrier()  # all sums are there
        return True

    def _place(self, communicator: Communicator, parameters: Sequence[Parameter]) -> None:
        if not parameters or not self._have_memory:
            return
        starts, end = [], 0
        for parameter in parameters:
            starts.append(math.ceil(end / ALIGNMENT) * ALIGNMENT)
            end = starts[-1] + parameter.value.nbytes
        blocks = shared_blocks(communicator, end)
        if blocks is None:
            self._have_memory = False
            return
        self._number += 1
        for parameter, first in zip(parameters, starts, strict=True):
            end = first + parameter.value.nbytes
            parts = [block[first:end].view(parameter.dtype) for block in blocks]
            array = parts[communicator.rank].reshape(parameter.shape)
            self._places[parameter] = GradientPlace(self._number, first, parts, array)
            parameter.keep_gradient_in(array)


def _sum_part(gradients: Sequence[Array], start: int, stop: int) -> None:
    """Add a part of all ranks' gradients, and write the sum to all of them."""
    chunk = CHUNK_BYTES // (len(gradients) * gradients[0].itemsize)
    for first in range(start, stop, chunk):
        parts = [each[first : min(first + chunk, stop)] for each in gradients]
        for part in parts[1:]:
            kernels.accumulate(part, parts[0])
        for part in parts[1:]:
            kernels.copy(parts[0], part)


_in_use: WeakSet[SharedGradients] = WeakSet()


def _leave_shared_memory() -> None:
    """Have a forked process write gradients to memory of its own, not into its parent's."""
    for each in list(_in_use):
        each.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_shared_memory)
