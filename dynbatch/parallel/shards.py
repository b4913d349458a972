"""`balanced`: a mini-batch cut into shards of equal cost, one for each rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dynbatch import arguments
from dynbatch.arguments import refused
from dynbatch.backend import Array

UNITS = 1 << 40
"""The highest cost of an example as an integer: sums of integers have no order, ties are ties."""

CLOSE_ENOUGH = 200
"""Improvement ends where the costs of two extreme shards differ by this part of the higher."""

WORTH = 0.95
"""Shards of like lengths must be this much cheaper than mixed ones, in which errors of predicted
costs even out."""

ROUNDS = 4
"""Exchanges a shard, at most: where the costs are uneven, more of them gain little."""


def balanced(
    costs: Sequence[float] | Array, size: int, longest: Array | None = None
) -> list[list[int]]:
    """Cut a mini-batch into `size` shards, so that the most expensive is as cheap as can be found.

    The cost of a shard S is Σ_{i∈S} costs_i + Σ_k max_{i∈S} longest_ik: what every example takes,
    and what the longest one takes for all, such as the launches of a scan's steps.

    Examples go, the most expensive first, to the shard that is cheapest so far (Graham 1969:
    without `longest` at most 4/3 - 1/(3 size) times the best possible). With `longest` they are
    also cut in the order of cost, so that examples of like length share a shard. Then examples of
    the most expensive shard are moved to the cheapest one, or exchanged for its own, while the
    more expensive of the two gets cheaper. Of the two cuts the first is taken, unless the second's
    most expensive shard is a twentieth cheaper: in mixed shards errors of predictions even out.

    Equal costs give equal shards, on every rank and machine: sums are of integers, and of several
    examples or shards that would do, the first is taken.

    Args:
        costs:   (N,) of each example, such as its number of tokens: >= 0.
        size:    number of shards.
        longest: (N, K) what each example would cost as the longest one of its shard, for each of
                 its K lengths: >= 0.

    Returns:
        The places of each shard's examples, ascending; a shard without examples is empty.

    Raises:
        ArgumentError: a cost is negative, infinite or NaN; `size` is no integer >= 1.

    Source: R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied
    Mathematics 17 (1969).

    Example:
        >>> from dynbatch import parallel
        >>> parallel.balanced([30, 1, 9, 10, 10], size=2)
        [[0], [1, 2, 3, 4]]
    """
    arguments.size("balanced", "size", size)
    scaled, tops = _integers(costs, longest)
    alone = (scaled + tops.sum(axis=1)).tolist()
    order = sorted(range(len(alone)), key=lambda each: (-alone[each], each))
    cuts = [_most_expensive_first(order, scaled, tops, size)]
    if tops.any():
        cuts.append(_in_order(order, scaled, tops, size))
    for shards in cuts:
        _improve(shards, scaled, tops)
    mixed, *like = [max([_cost(shard, scaled, tops) for shard in shards]) for shards in cuts]
    best = cuts[-1] if like and like[0] < WORTH * mixed else cuts[0]
    return [sorted(shard) for shard in best]


def _integers(costs: Sequence[float] | Array, longest: Array | None) -> tuple[Array, Array]:
    """(N,) and (N, K) int64: both in units of which the greatest number has `UNITS`."""
    numbers = np.asarray(costs, np.float64)
    tops = np.zeros((len(numbers.ravel()), 0)) if longest is None else np.asarray(longest)
    both = np.concatenate([numbers.ravel(), tops.ravel()])
    fits = numbers.ndim == 1 and tops.ndim == 2 and len(tops) == len(numbers)
    if not fits or not np.isfinite(both).all() or (both < 0).any():
        said = f"costs are {str(costs)[:80]}"
        said += "" if longest is None else f", and longest is {str(longest)[:80]}"
        raise refused(
            "balanced", said, "a list of numbers >= 0, one for each example; longest is (N, K)",
            "give the number of tokens of each example, or a predicted cost",
        )  # fmt: skip
    scale = UNITS / (both.max(initial=0.0) or 1.0)
    return np.rint(numbers * scale).astype(np.int64), np.rint(tops * scale).astype(np.int64)


def _cost(shard: Sequence[int], own: Array, tops: Array) -> int:
    if not shard:
        return 0
    return int(own[shard].sum() + tops[shard].max(axis=0).sum())


def _most_expensive_first(order: list[int], own: Array, tops: Array, size: int) -> list[list[int]]:
    """Each example, in this order, to the shard that is cheapest so far."""
    shards: list[list[int]] = [[] for _ in range(size)]
    cheapest = [(0, 0, shard) for shard in range(size)]  # its cost, its examples, its place
    highest: list[tuple[int, ...]] = [(0,) * tops.shape[1]] * size
    costs, rows = own.tolist(), tops.tolist()
    for example in order:
        cost, count, shard = heapq.heappop(cheapest)
        shards[shard].append(example)
        before = highest[shard]
        highest[shard] = after = tuple(map(max, before, rows[example]))
        cost += costs[example] + sum(after) - sum(before)
        heapq.heappush(cheapest, (cost, count + 1, shard))
    return shards


def _in_order(order: list[int], own: Array, tops: Array, size: int) -> list[list[int]]:
    """Neighbours share a shard: the least limit that `size` shards can keep, found by halves."""
    low, high = int(own.sum()) // size, _cost(order, own, tops)
    cuts = [0, len(order)]
    while (high - low) * CLOSE_ENOUGH > high:
        limit = (low + high) // 2
        shards = _cuts(own[order], tops[order], limit, size)
        if shards is None:
            low = limit
        else:
            cuts, high = shards, limit
    cuts += [len(order)] * (size + 1 - len(cuts))
    return [order[begin:end] for begin, end in pairwise(cuts)]


def _cuts(own: Array, tops: Array, limit: int, size: int) -> list[int] | None:
    """Cuts of a list into pieces that cost at most `limit`; None if `size` pieces do not do."""
    cuts = [0]
    while cuts[-1] < len(own):
        begin, width, count = cuts[-1], 2 * len(own) // size + 1, 0
        while True:
            piece = slice(begin, begin + width)
            total = own[piece].cumsum() + np.maximum.accumulate(tops[piece]).sum(axis=1)
            count = int(total.searchsorted(limit, "right"))
            if count < width:
                break
            width *= 2
        if not count or len(cuts) > size:
            return None
        cuts.append(begin + count)
    return cuts


def _improve(shards: list[list[int]], own: Array, tops: Array) -> None:
    """Move or exchange examples of the most expensive and the cheapest shard, while that gains."""
    totals = [_cost(shard, own, tops) for shard in shards]
    for _ in range(ROUNDS * len(shards)):
        most, least = max(totals), min(totals)
        if (most - least) * CLOSE_ENOUGH <= most:
            return
        dear, cheap = totals.index(most), totals.index(least)
        worst = _exchanged(shards[dear], shards[cheap], own, tops)
        i, j = divmod(int(worst.argmin()), worst.shape[1])
        if worst[i, j] >= most:
            return
        gone = shards[dear].pop(i)
        if j < len(shards[cheap]):
            shards[dear].append(shards[cheap].pop(j))
        shards[cheap].append(gone)
        totals[dear], totals[cheap] = [_cost(shards[each], own, tops) for each in (dear, cheap)]


def _exchanged(dear: list[int], cheap: list[int], own: Array, tops: Array) -> Array:
    """The dearer one's cost after example i of `dear` went for j of `cheap`, or for none (last)."""
    none = np.zeros((1, tops.shape[1]), np.int64)
    out, back = own[dear], np.append(own[cheap], 0)
    moved = np.subtract.outer(out, back)
    high_out, high_back = tops[dear], np.concatenate([tops[cheap], none])
    left = np.maximum(_without(high_out)[:, None], high_back).sum(axis=2)
    kept = np.concatenate([_without(high_back[:-1]), high_back.max(axis=0, keepdims=True)])
    grown = np.maximum(kept, high_out[:, None]).sum(axis=2)
    worst: Array = np.maximum(out.sum() - moved + left, back.sum() + moved + grown)
    return worst


def _without(rows: Array) -> Array:
    """(N, K): of each row, the maxima of all others."""
    if len(rows) < 2:
        return np.zeros_like(rows)
    second, first = np.partition(rows, len(rows) - 2, axis=0)[-2:]
    first_at = rows.argmax(axis=0) == np.arange(len(rows))[:, None]
    others: Array = np.where(first_at, second, first)
    return others
