"""Gradients of keys and values, summed over a scan's steps at its end.

The steps share keys and values. Adding to their gradients in each step would take three passes
over all rows; deferred to the end it is one product per sentence. A scan goes backward in chunks of
steps that depend on the mini-batch: in each a sum goes on where the chunk before left it, so that
its terms are added in the order of steps, whatever the chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.segment import groups


class StepProducts:
    """Σ_t weight_tj vector_tk for the rows j of sentence k, over the steps t of a scan.

    The last step comes first; each has the sentences of the one added before, and perhaps more.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._weights: list[Array] = []
        self._vectors: list[Array] = []
        self._sums: Array | None = None

    def add(self, weights: Array, vectors: Array) -> None:
        """Keep a step's weights, one per row, without a copy, and a copy of its vectors (K, D)."""
        self.take(weights, vectors.copy())

    def take(self, weights: Array, vectors: Array) -> None:
        """Keep a step's weights and vectors, to which nobody may write before they are summed."""
        self._weights.append(weights)
        self._vectors.append(vectors)

    def sum_up(self, offsets: Array) -> None:
        """Sum what was added until now, and let it go: other steps follow."""
        if self._weights:
            sums = self._sums
            if sums is None:
                of_step = self._vectors[0]
                sums = np.zeros((int(offsets[-1]), of_step.shape[1]), of_step.dtype)
            step_products(self._weights, self._vectors, offsets, None, sums)
            self._forget()
            self._sums = sums

    def add_to(self, out: Array, offsets: Array) -> None:
        if self._weights:
            step_products(self._weights, self._vectors, offsets, out, self._sums)
        self._forget()


@kernel(c=HOST)
def step_products(
    weights: Sequence[Array], vectors: Sequence[Array], offsets: Array,
    out: Array | None, sums: Array | None = None,
) -> None:  # fmt: skip
    """out_j += sums_j + Σ_t weights_tj vectors_tk for the rows j of sentence k.

    Args:
        weights: of each step, one number for each row of its sentences, which are the first ones.
        vectors: of each step, one row for each sentence: no fewer than in the step before.
        out:     None leaves the result in `sums`, from which another call can go on.
        sums:    of earlier calls; None for zeros. In C the terms are added to them one by one.

    Cost: a few sentences at a time, since it brings together what the steps left.
    """
    if out is None:
        assert sums is not None, "the result needs a place"
        out, sums = sums, None
    counts = [rows.shape[0] for rows in vectors]
    edges = offsets[: counts[-1] + 1]
    of_a_step = edges + out.shape[1] * np.arange(edges.size)  # numbers of sentences before
    for sentences, _ in groups(of_a_step, len(counts)):
        _add_some(weights, vectors, out, edges.tolist(), counts, sentences.start, sentences.stop)
    if sums is not None:
        np.add(out, sums, out=out)


def _add_some(
    weights: Sequence[Array], vectors: Sequence[Array], out: Array,
    edges: list[int], counts: list[int], first: int, last: int,
) -> None:  # fmt: skip
    begin = edges[first]
    of_rows = np.empty((len(counts), edges[last] - begin), out.dtype)
    of_sentences = np.empty((len(counts), last - first, out.shape[1]), out.dtype)
    for step, count in enumerate(counts):
        most = min(count, last)
        if most > first:
            of_rows[step, : edges[most] - begin] = weights[step][begin : edges[most]]
            of_sentences[step, : most - first] = vectors[step][first:most]
    for k in range(first, last):
        rows = slice(edges[k] - begin, edges[k + 1] - begin)
        begun = bisect_right(counts, k)  # the first step that has sentence k
        out[edges[k] : edges[k + 1]] += of_rows[begun:, rows].T @ of_sentences[begun:, k - first]


class DeferredGradients:
    """Deferred gradients of keys (N_k, D) and values (N_k, E) from the steps of a scan.

    Attributes:
        keys, values: their products.
        slopes, scores: of additive attention, (N_k, D) and (N_k,): Σ_t ds_tj u²_tj and Σ_t ds_tj.

    Args:
        rows: N_k.
        room: N_k · (D + 1) elements for these sums; None to make some.
    """

    def __init__(self, rows: int, room: Array | None = None) -> None:
        self.keys = StepProducts()
        self.values = StepProducts()
        self.slopes: Array | None = None
        self._rows = rows
        self._room = room

    def add_slopes(self, rows: slice, ds: Array, u: Array) -> None:
        """Add a step's ds (n,) and u² (n, D), which is overwritten, for some rows."""
        if self.slopes is None:
            count, width = self._rows, u.shape[1]
            size = count * (width + 1)
            room = np.empty(size, u.dtype) if self._room is None else self._room[:size]
            room[...] = 0
            self.slopes = room[: count * width].reshape(count, width)
            self.scores = room[count * width :]
        np.multiply(u, ds[:, None], out=u)
        np.add(self.slopes[rows], u, out=self.slopes[rows])
        self.scores[rows] += ds

    def sum_up(self, offsets: Array) -> None:
        """Sum what the steps of a chunk left, before those of another."""
        self.keys.sum_up(offsets)
        self.values.sum_up(offsets)

    def add_to(
        self, keys: Array | None, values: Array | None, offsets: Array, vector: Array | None = None
    ) -> None:
        """Add everything to the gradients of keys and values of all sentences.

        Args:
            vector: (D,) of additive attention.
        """
        if values is not None:
            self.values.add_to(values, offsets)
        if keys is None:
            return
        self.keys.add_to(keys, offsets)
        if self.slopes is not None and vector is not None:
            np.subtract(self.scores[:, None], self.slopes, out=self.slopes)
            np.multiply(self.slopes, vector, out=self.slopes)
            np.add(keys, self.slopes, out=keys)
