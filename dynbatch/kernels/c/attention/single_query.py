"""`kernels.attention.single_query` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.attention import additive
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime.tasks import share_rows
from dynbatch.kernels.segment import SUMS_WORTH_A_THREAD

library = Library("attention/single_query.c")


def dot_attention(
    packed: PackedAttention, scales: Array, sentences: Array,
    out: Array, log_sums: Array | None, scratch: Array,
) -> Any:  # fmt: skip
    functions = library.functions(out.dtype)
    if functions is None or not _fits(packed, scales, out, log_sums, scratch):
        return NotImplemented
    arguments = [*_inputs(packed, scales), address(scratch), address(out), row_stride(out)]
    _share(packed, functions.dot, *arguments, address(log_sums))
    return None


def dot_attention_backward(
    packed: PackedAttention, scales: Array, sentences: Array,
    log_sums: Array, dout: Array, wanted: AttentionGradients, scratch: Array,
) -> Any:  # fmt: skip
    dq, dk, dv = wanted.queries, wanted.keys, wanted.values
    functions = library.functions(dout.dtype)
    takes = _fits(packed, scales, dout, log_sums, dk, dv, dq=dq)
    if functions is None or not takes:
        return NotImplemented
    p, ds = np.empty((2, packed.keys.shape[0]), dout.dtype)
    deferred = wanted.deferred if wanted.accumulate else None
    to_keys, to_values = (dk, dv) if deferred is None else (None, None)
    _share(
        packed, functions.dot_backward, *_inputs(packed, scales), address(log_sums), address(dout),
        row_stride(dout), int(wanted.accumulate), address(p), address(ds), address(dq),
        0 if dq is None else row_stride(dq), address(to_keys), address(to_values),
    )  # fmt: skip
    if deferred is not None:
        deferred.values.add(p, dout)
        deferred.keys.add(ds, packed.queries)
    return None


def additive_attention(
    packed: PackedAttention, vector: Array, sentences: Array, out: Array, weights: Array,
    scratch: Array,
) -> Any:  # fmt: skip
    return additive.forward(packed, vector, (), out, weights, packed.key_offsets)


def additive_attention_backward(
    packed: PackedAttention, vector: Array, sentences: Array,
    weights: Array, dout: Array, wanted: AttentionGradients, scratch: Array,
) -> Any:  # fmt: skip
    offsets = packed.key_offsets
    return additive.backward(packed, vector, weights, dout, wanted, scratch, offsets)


def _fits(
    packed: PackedAttention, scales: Array, y: Array, *others: Array | None, dq: Array | None = None
) -> bool:
    packed_ones = (scales, packed.keys, packed.values, *others)
    return is_packed(*packed_ones) and has_rows(scales, packed.queries, y, dq)


def _inputs(packed: PackedAttention, scales: Array) -> list[int | None]:
    """The inputs as the functions in C take them, after the range of sentences."""
    q, keys, values = packed[:3]
    return [
        address(packed.key_offsets), keys.shape[1], values.shape[1], address(q), row_stride(q),
        address(keys), address(values), address(scales), int(scales.size == 1),
    ]  # fmt: skip


def _share(packed: PackedAttention, function: Any, *arguments: int | None) -> None:
    """Run a function over all sentences; threads share them where it is worth it."""
    count = len(packed.key_offsets) - 1
    elements = (packed.keys.size + packed.values.size) // max(1, count)
    share_rows(function, count, elements, *arguments, least=SUMS_WORTH_A_THREAD)
