"""`CachedAttention`: causal attention of new rows to themselves and to rows that came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from dynbatch.kernels.attention.dot_product import dot_attention_of_pages
from dynbatch.kernels.attention.packed import PagedKeys
from dynbatch.nodes.attention.dot_product import DotProductAttention
from dynbatch.nodes.batch import Batch
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged


class KeyCache(Protocol):
    """Keys and values of one sentence and one attention, in pages.

    Attributes:
        length: rows that came before.
        pages:  with room for the new ones.
    """

    length: int

    @property
    def pages(self) -> Sequence[tuple[Array, Array]]: ...

    def append(self, *arrays: Array) -> None:
        """Write new rows behind the `length` first."""


class CachedAttention(DotProductAttention):
    """`DotProductAttention` of new rows of a sentence, which writes their keys and values.

    Shape:  q (T, heads · d), k (T, kv_heads · d), v (T, kv_heads · e) -> y (T, heads · e). Row i
        stands at position `past.length` + i.
    Batches with:  every other one of the same heads, widths and bias.
    """

    __slots__ = ("past",)
    differentiable: ClassVar[bool] = False
    past: KeyCache

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return {}

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return 0

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        q, k, v = xs
        caches: list[KeyCache] = batch.column("past")
        edges, lengths = k.offsets.tolist(), []
        for cache, first, end in zip(caches, edges, edges[1:], strict=False):
            cache.append(k.values[first:end], v.values[first:end])
            lengths.append(cache.length + end - first)
        scoring = cls.scoring(batch, batch.column("mask"))
        scoring = scoring._replace(starts=[cache.length for cache in caches])
        paged = PagedKeys([cache.pages for cache in caches], lengths)
        dot_attention_of_pages(q.values, q.offsets, paged, scoring, y.values)


class MemoryAttention(CachedAttention):
    """Attention of new rows to keys and values that were computed once for their sentence.

    Shape:  q (T, heads · d) -> y (T, heads · e).
    Batches with:  every other one of the same heads and widths.
    """

    __slots__ = ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (q,) = xs
        caches: list[KeyCache] = batch.column("past")
        scoring = cls.scoring(batch, batch.column("mask"))
        paged = PagedKeys([cache.pages for cache in caches], [cache.length for cache in caches])
        dot_attention_of_pages(q.values, q.offsets, paged, scoring, y.values)
