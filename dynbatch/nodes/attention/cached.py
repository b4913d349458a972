"""`CachedAttention`: causal attention of new rows to themselves and to rows that came before."""

from __future__ import annotations

from typing import ClassVar

from dynbatch.kernels.attention.addresses import PagedRows
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.dot_product import dot_attention_of_pages
from dynbatch.nodes.attention.dot_product import DotProductAttention
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import NO_FLOPS, BatchSizes, Flops
from dynbatch.ragged import Ragged


class CachedAttention(DotProductAttention):
    """`DotProductAttention` of new rows of sentences, which writes their keys and values.

    Row i of a sentence stands behind those that `past` has of it.

    Batches with:  every other one of the same heads, widths and bias.

    Attributes:
        past: keys and values of all sentences.
    """

    __slots__ = ("past",)
    differentiable: ClassVar[bool] = False
    past: PagedRows

    def strided(self) -> tuple[int, ...]:
        return ()

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return {}

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        """No count: the cache has been written on by the time that anyone asks."""
        return NO_FLOPS

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return 0

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        pasts = batch.column("past")
        # In a block several operators may be one step, which have the same sentences.
        parts = [batch] if len(pasts) == 1 else batch.by_operator()
        rows = y.values.shape[0] // len(pasts)
        offsets = y.offsets[: len(y.offsets) // len(pasts) + 1]
        for number, (part, past) in enumerate(zip(parts, pasts, strict=True)):
            here = slice(number * rows, (number + 1) * rows)
            q, *added = [x.values[here] for x in xs]
            if added:
                past.append(*added)
            scoring = cls.known_scoring(part)
            if added:
                scoring = scoring._replace(starts=past.table.lengths)
            dot_attention_of_pages(q, offsets, past, scoring, y.values[here])

    @classmethod
    def known_scoring(cls, batch: Batch) -> Scoring:
        """`scoring`, which without a bias is the same each time that a batch runs."""
        known: Scoring | None = batch.memo.get("scoring")
        if known is None:
            known = cls.scoring(batch)
            if known.bias is None:
                batch.memo["scoring"] = known
        return known


class MemoryAttention(CachedAttention):
    """Attention of new rows to keys and values that were computed once for their sentences.

    Shape:  q (T, heads · d) -> y (T, heads · e).
    Batches with:  every other one of the same heads and widths.
    """

    __slots__ = ()
    shape_rule = ""
