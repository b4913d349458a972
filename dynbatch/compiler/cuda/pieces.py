"""Columns of products that a lane adds to each other, so that one sum takes all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dynbatch.compiler.ir import Op, Value
from dynbatch.compiler.lanes import Lane


class Pieces(NamedTuple):
    """A lane's needs of products: sums, each of the same products.

    numbers: the sum in which each segment is, by its key.
    heads:   segments that stand for their sum; the others add zero.
    terms:   products, each with its first column of each sum.
    """

    numbers: dict[tuple[int, int], int]
    heads: set[tuple[int, int]]
    terms: list[tuple[Op, list[int]]]


def pieces_of(
    lane: Lane,
    segments: Sequence[Value],
    products: Mapping[int, Op],
    leaves: Callable[[Value], bool],
) -> Pieces:
    """The pieces of a lane.

    Args:
        segments: columns of products that it reads.
        products: by the identity of what the lane reads of each.
        leaves:   whether anything but the lane's group reads some columns.
    """
    reads = Counter([x.key for scalar in lane.ops for x in scalar.inputs])
    added = {x.key: s.output for s in lane.ops if s.op.is_add for x in s.inputs}
    sums: dict[tuple[int, int], dict[int, Value]] = {}
    for segment in segments:
        total = segment
        # A product that is read only to be added can be summed in the same registers as the total.
        while reads[total.key] == 1 and total.key in added and not leaves(total):
            total = added[total.key]
        known = sums.get(total.key, {})
        # Two columns of one product cannot share a sum: each pass over the terms makes one of them.
        key = segment.key if id(segment.base) in known else total.key
        sums.setdefault(key, {})[id(segment.base)] = segment
    parts = [[*each.values()] for each in sums.values()]
    terms: dict[int, list[int]] = {}
    for segment in [x for each in parts for x in each]:
        terms.setdefault(id(segment.base), []).append(segment.column)
    return Pieces(
        {x.key: number for number, each in enumerate(parts) for x in each},
        {each[0].key for each in parts},
        [(products[base], firsts) for base, firsts in terms.items()],
    )
