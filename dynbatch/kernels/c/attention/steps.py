"""Attention of a scan's steps to one memory: what all steps share is given once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.ragged import offsets_of

_library = Library("attention/deferred.c")


class StepProducts:
    """Σ_t weight_tj vector_tk for the rows j of sentence k, over the steps t of a scan.

    Steps share keys and values. Adding to their gradients in each would take three passes over all
    rows; at the end it is one. A scan goes backward in chunks of steps that depend on the
    mini-batch: in each a sum goes on where the chunk before left it, term by term.

    The last step comes first; each has the sentences of the one added before, and perhaps more.
    """

    def __init__(self) -> None:
        self._weights: list[Array] = []
        self._vectors: list[Array] = []
        self._sums: Array | None = None

    def add(self, weights: Array, vectors: Array) -> None:
        """Keep a step's weights, one per row, and vectors, a row for each sentence.

        Nobody may write to them before they are summed.
        """
        self._weights.append(weights)
        self._vectors.append(vectors)

    def sum_up(self, offsets: Array) -> None:
        """Sum what was added until now, and let it go: other steps follow."""
        if self._weights:
            if self._sums is None:
                of_step = self._vectors[0]
                self._sums = np.zeros((int(offsets[-1]), of_step.shape[1]), of_step.dtype)
            self._run(offsets, None)

    def add_to(self, out: Array, offsets: Array) -> None:
        """Add all sums to `out`, and let them go."""
        if self._weights:
            self._run(offsets, out)
        self._sums = None

    def _run(self, offsets: Array, out: Array | None) -> None:
        functions = _library.functions(self._vectors[0].dtype)
        assert functions is not None, "steps in C need C to sum their products"
        counts = np.array([rows.shape[0] for rows in self._vectors], np.int64)
        tables = [
            np.array([address(x) for x in arrays], np.int64)
            for arrays in (self._weights, self._vectors)
        ]
        functions.step_products(
            0, int(counts[-1]), address(offsets), counts.size, address(counts),
            *[address(x) for x in tables], self._vectors[0].shape[1], address(out),
            address(self._sums),
        )  # fmt: skip
        self._weights, self._vectors = [], []


class SharedBySteps(ctypes.Structure):
    """`shared_by_steps` of `steps.h`."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("queries", "offsets", "pairs", "rows")],
        *[(name, ctypes.c_void_p) for name in ("scorer", "keys", "values")],
        *[(name, ctypes.c_int64) for name in ("width", "value_width")],
        *[(name, ctypes.c_void_p) for name in ("weights", "dkeys", "dvector", "scratch")],
        *[(name, ctypes.c_void_p) for name in ("slopes", "seen", "gradients")],
    )


class AttentionSteps:
    """Attention of one query row a sentence to its keys, step by step, each one call of C.

    Steps are numbered. A step has the first n sentences, and no step more than the one before. The
    functions of C count from the first step of `begin`, or of `begin_backward`:

        forward(shared, t, n, x, its stride, out, its stride)
        backward(shared, t, n, dy, its stride, x, its stride, dx, its stride)

    Attributes:
        shared:    the address of what they get first.
        addresses: their own, so that other functions of C can call them.
        dvector:   gradient of the vector of additive scores, which backward adds to.

    Args:
        functions: those of `additive.c` or `single_query.c`.
        name:      "additive" or "dot".
        scorer:    the vector (D,) of additive scores, or (1,) the scale of dot products.
    """

    def __init__(self, functions: Any, name: str, scorer: Array) -> None:
        self._forward = getattr(functions, f"{name}_step")
        self._backward = getattr(functions, f"{name}_step_backward")
        both = (self._forward, self._backward)
        self.addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in both]
        self._adds_up = name == "additive"  # each step adds to the gradient of the keys
        self._shared = SharedBySteps()
        self.shared = ctypes.addressof(self._shared)
        self._scorer = scorer
        self.dvector = np.zeros_like(scorer)
        self._arrays: dict[str, Array | None] = {}
        self._of_keys, self._of_values = StepProducts(), StepProducts()
        self._point(scorer=scorer, dvector=self.dvector)

    def begin(
        self, keys: Array, values: Array, offsets: Array,
        first: int, counts: Sequence[int], keeps: bool,
    ) -> None:  # fmt: skip
        """Prepare forward.

        Args:
            keys, values: (N_k, D) and (N_k, E), packed.
            offsets:      (K + 1,) where each sentence's keys begin.
            first:        number of the first step.
            counts:       sentences of each step.
            keeps:        whether backward follows.
        """
        self._first = first
        self._pairs = offsets_of(offsets[list(counts)])
        most = int(self._pairs[-1])
        if not keeps:  # all steps use the first one's
            most = int(offsets[counts[0]]) if counts else 0
            self._pairs[...] = 0
        self._read(keys, values, offsets)
        self._point(pairs=self._pairs, weights=np.empty(most, keys.dtype))

    def begin_backward(
        self, keys: Array, values: Array, offsets: Array, dkeys: Array | None,
        dvalues: Array | None, first: int, counts: Sequence[int],
    ) -> None:  # fmt: skip
        """Prepare backward of some of the steps of `begin`, with the gradients to add to."""
        self._read(keys, values, offsets)
        self._dkeys, self._dvalues = dkeys, dvalues
        self._skipped = first - self._first
        self._rows = offsets_of(counts)
        rows, longest = int(self._rows[-1]), int(np.diff(offsets).max(initial=0))
        kept = np.empty((rows, values.shape[1]), keys.dtype)
        self._point(
            pairs=self._pairs[self._skipped :], rows=self._rows,
            gradients=None if dvalues is None else kept,
        )  # fmt: skip
        if self._adds_up:
            self._point(dkeys=dkeys, scratch=np.empty(longest, keys.dtype))
        else:
            kept = np.empty((rows, keys.shape[1]), keys.dtype)
            slopes = np.empty(self._pairs[-1], keys.dtype)
            self._point(slopes=slopes, seen=None if dkeys is None else kept)

    def forward(self, t: int, n: int, out: Array, x: Array) -> None:
        """out = the weighted means of the values, for the queries x."""
        t -= self._first
        places = (address(x), row_stride(x), address(out), row_stride(out))
        self._forward(self.shared, t, n, *places)

    def backward(self, t: int, n: int, dy: Array, x: Array, dx: Array | None) -> None:
        """Overwrite dx; leave what keys and values get for `finish`."""
        stride = 0 if dx is None else row_stride(dx)
        t -= self._first + self._skipped
        self._backward(
            self.shared, t, n, address(dy), row_stride(dy), address(x), row_stride(x), address(dx),
            stride,
        )  # fmt: skip

    def sum_up(self) -> None:
        """Sum what the steps of backward left, before another `begin_backward`."""
        for products, _ in self._left():
            products.sum_up(self._offsets)

    def finish(self) -> None:
        for products, gradient in self._left():
            if gradient is not None:
                products.add_to(gradient, self._offsets)

    def forget(self) -> None:
        """Free the weights: no backward follows."""
        self._point(weights=None)

    def _left(self) -> list[tuple[StepProducts, Array | None]]:
        """The products, with what the steps since `begin_backward` left, and their gradients."""
        starts, pairs = self._rows.tolist(), self._pairs[self._skipped :].tolist()
        both = [(self._of_values, "weights", "gradients"), (self._of_keys, "slopes", "seen")]
        for products, of_pairs, of_rows in both:
            weights, rows = self._arrays.get(of_pairs), self._arrays.get(of_rows)
            if weights is not None and rows is not None:
                for t in range(len(starts) - 2, -1, -1):
                    products.add(weights[pairs[t] : pairs[t + 1]], rows[starts[t] : starts[t + 1]])
        self._point(slopes=None, seen=None, gradients=None)
        return [(self._of_values, self._dvalues), (self._of_keys, self._dkeys)]

    def _read(self, keys: Array, values: Array, offsets: Array) -> None:
        self._offsets = offsets
        self._shared.width, self._shared.value_width = keys.shape[1], values.shape[1]
        queries = np.arange(offsets.size)
        self._point(keys=keys, values=values, offsets=offsets, queries=queries)

    def _point(self, **arrays: Array | None) -> None:
        """Give C the arrays of these names, which live on here."""
        self._arrays.update(arrays)
        for name, array in arrays.items():
            setattr(self._shared, name, address(array))
