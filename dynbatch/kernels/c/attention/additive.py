"""`kernels.attention.additive` in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.mask import Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention, pair_offsets
from dynbatch.kernels.c.attention.mask import mask_table
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime.tasks import share_rows
from dynbatch.kernels.segment import WORTH_A_THREAD

# Parts of a batch whose shares of the vector's gradient are added in order. Threads share them.
BLOCKS = 8

library = Library("attention/additive.c")


def additive_attention(
    packed: PackedAttention, vector: Array, masks: Sequence[Mask],
    out: Array, weights: Array, scratch: Array,
) -> Any:  # fmt: skip
    functions = library.functions(out.dtype)
    if functions is None or not _fits(packed, vector, out, weights):
        return NotImplemented
    pairs = pair_offsets(packed)
    table, _held = mask_table(masks)  # what the table points to lives until the end
    places = [address(x) for x in (packed.query_offsets, packed.key_offsets, pairs, table)]
    inputs = [*_of_queries(packed, vector), address(weights), address(out), row_stride(out)]
    count = len(packed.key_offsets) - 1
    elements = int(pairs[-1]) * vector.size // max(1, count)
    share_rows(functions.additive, count, elements, *places, *inputs, least=WORTH_A_THREAD)
    return None


def additive_attention_backward(
    packed: PackedAttention, vector: Array, weights: Array, dout: Array, wanted: AttentionGradients,
    scratch: Array,
) -> Any:  # fmt: skip
    functions = library.functions(dout.dtype)
    gradients = (wanted.queries, wanted.keys, wanted.values)
    if functions is None or not _fits(packed, vector, dout, weights, *gradients):
        return NotImplemented
    dq, dk, dv = gradients
    pairs, count = pair_offsets(packed), len(packed.key_offsets) - 1
    most = int(np.diff(packed.key_offsets).max(initial=0))
    # As many rows of `most` elements as are in the scratch for sure.
    blocks = max(1, min(BLOCKS, count, scratch.size // max(1, most)))
    shares = np.zeros((blocks, vector.size), vector.dtype)
    tables = (packed.query_offsets, packed.key_offsets, pairs)
    arguments = [
        blocks, count, *[address(x) for x in tables], *_of_queries(packed, vector),
        address(weights), address(dout), row_stride(dout), int(wanted.accumulate), address(dq),
        0 if dq is None else row_stride(dq), address(dk), address(dv), address(scratch), most,
        address(shares),
    ]  # fmt: skip
    elements = int(pairs[-1]) * vector.size // blocks
    share_rows(functions.additive_backward, blocks, elements, *arguments, least=WORTH_A_THREAD)
    return shares.sum(axis=0)


def _fits(
    packed: PackedAttention, vector: Array, y: Array, weights: Array, dq: Array | None = None,
    *others: Array | None,
) -> bool:  # fmt: skip
    packed_ones = (packed.keys, packed.values, vector, weights, *others)
    return is_packed(*packed_ones) and has_rows(vector, packed.queries, y, dq)


def _of_queries(packed: PackedAttention, vector: Array) -> list[int | None]:
    """The inputs as the functions in C take them."""
    q, keys, values = packed[:3]
    widths = (vector.size, values.shape[1])
    return [*widths, address(vector), address(q), row_stride(q), address(keys), address(values)]
