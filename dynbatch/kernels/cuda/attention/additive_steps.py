"""`AdditiveSteps`: additive attention of a scan's steps to one memory, prepared for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.cupy_types import device_address
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.attention.additive import THREADS
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.packing import PerStep
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.ragged import offsets_of

RowsOfSteps = tuple[Array, int | Array]
"""Rows in each step: the address of the first, and elements from a row to the next."""


class AdditiveSteps:
    """One query a sentence over its own keys, in steps that have the first sentences each.

    No step has more sentences than the one before it. What a step leaves for backward lies in one
    array for all steps.

    Args:
        vector:  (D,).
        keys:    (N_k, D), and `values` (N_k, E), of all sentences, packed.
        offsets: (K + 1,) where each sentence's keys begin.
        counts:  sentences of each step.
        keeps:   whether backward follows; else all steps leave their weights in one place.

    Attributes:
        dvectors: (K, D) the sum of each sentence's gradients of the vector, once backward began.
    """

    def __init__(
        self, vector: Array, keys: Array, values: Array, offsets: Array, counts: Array, keeps: bool
    ) -> None:
        self._vector, self._keys, self._values = vector, keys, values
        self._offsets = offsets
        self._counts = counts
        pairs = offsets[counts]
        first = offsets_of(pairs)[:-1] if keeps else np.zeros_like(pairs)
        most = int((first + pairs).max(initial=0))
        self._weights = queue().cupy.empty(most, keys.dtype)
        self._first = first * keys.itemsize + device_address(self._weights)
        self._most = int(pairs.max(initial=0))
        self.dvectors: Array | None = None

    def forward(self, loop: PreparedLoop, order: Array, queries: RowsOfSteps, out: Array) -> None:
        """Add y_i = Σ_j w_j v_j to steps of a loop.

        Args:
            order:   numbers of the loop's steps.
            queries: in each of these steps.
            out:     addresses of whole rows (E,) in each of these.
        """
        queue().keep(self._weights)
        addresses, stride = queries
        args = (
            PerStep(addresses), self._keys, self._values, self._vector, PerStep(out),
            PerStep(self._first[order]), None, self._offsets, self._offsets, None, None,
            *self._sizes(order), stride,
        )  # fmt: skip
        loop.kernel("additive_attention", (self._counts[order],), (THREADS,), args)

    def backward(
        self, loop: PreparedLoop, order: Array, queries: RowsOfSteps, dout: Array,
        dqueries: RowsOfSteps, dkeys: Array | None, dvalues: Array | None,
    ) -> None:  # fmt: skip
        """Add gradients to steps of a loop. Those of keys, values and vectors are added to.

        Args:
            dout:     addresses of whole rows.
            dqueries: are written; an address of 0 stands for those that nobody wants.
        """
        if self.dvectors is None:
            shape = (self._offsets.size - 1, self._vector.size)
            self.dvectors = queue().cupy.empty(shape, self._keys.dtype)
            arrays.fill(self.dvectors, 0)
        slopes = queue().empty(self._most, self._keys.dtype)
        queue().keep(self._weights, self.dvectors)
        addresses, stride = queries
        args = (
            PerStep(addresses), self._keys, self._values, self._vector,
            PerStep(self._first[order]), PerStep(dout), slopes, self.dvectors,
            PerStep(dqueries[0]), dkeys, dvalues, True, None, self._offsets, self._offsets,
            *self._sizes(order), stride, dqueries[1], True,
        )  # fmt: skip
        loop.kernel("additive_attention_backward", (self._counts[order],), (THREADS,), args)

    def _sizes(self, order: Array) -> Sequence[PerStep | int]:
        return PerStep(self._counts[order]), self._keys.shape[1], self._values.shape[1]
