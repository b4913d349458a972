"""Attention of sentences with one query, which sees all keys, in C: a pass that needs no tiles.

A sentence goes this way in any company, so that its bits are those that it has alone.
"""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime.tasks import share_rows
from dynbatch.kernels.segment import SUMS_WORTH_A_THREAD

library = Library("attention/single_query.c")


def lone_sentences(
    packed: PackedAttention, scoring: Scoring, y: Array, *others: Array | None,
    dq: Array | None = None,
) -> Array:  # fmt: skip
    """The numbers of the sentences that go this way."""
    fits = is_packed(y[:0], packed.keys, packed.values, *others) and has_rows(packed.queries, y, dq)
    if not (fits and scoring.is_plain):
        return np.empty(0, np.int64)
    is_lone = (np.diff(packed.query_offsets) == 1) & (np.diff(packed.key_offsets) > 0)
    if not all([mask is NO_MASK for mask in scoring.masks]):
        is_lone &= [mask is NO_MASK for mask in scoring.masks]
    return np.flatnonzero(is_lone)


def attend(
    packed: PackedAttention, scoring: Scoring, lone: Array, out: Array, log_sums: Array | None,
    scratch: Array,
) -> None:  # fmt: skip
    """The results of `dot_attention` of these sentences; scratch holds an element for each key."""
    rest = address(scratch), address(out), row_stride(out), address(log_sums)
    _share("dot", packed, scoring, lone, *rest)


def attend_backward(
    packed: PackedAttention, scoring: Scoring, lone: Array, log_sums: Array, dout: Array,
    wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of these sentences; scratch holds two elements for each key."""
    dq, rows = wanted.queries, len(packed.keys)
    _share(
        "dot_backward", packed, scoring, lone, address(log_sums), address(dout), row_stride(dout),
        int(wanted.accumulate), address(scratch), address(scratch[rows:]), address(dq),
        0 if dq is None else row_stride(dq), address(wanted.keys), address(wanted.values),
    )  # fmt: skip


def _share(
    name: str, packed: PackedAttention, scoring: Scoring, lone: Array, *arguments: int | None
) -> None:
    """Run a function over the sentences; threads share them where it is worth it."""
    q, keys, values, *offsets = packed
    queries, starts, ends = offsets[0][lone], offsets[1][lone], offsets[1][lone + 1]
    scales = np.asarray(scoring.scales[lone], q.dtype)
    share_rows(
        getattr(library.functions(q.dtype), name), lone.size,
        (keys.size + values.size) // max(1, len(scoring.masks)), address(queries), address(starts),
        address(ends), keys.shape[1], values.shape[1], address(q), row_stride(q), address(keys),
        address(values), address(scales), 0, *arguments, least=SUMS_WORTH_A_THREAD,
        alive=(queries, starts, ends, scales),
    )  # fmt: skip
