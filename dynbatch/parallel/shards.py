"""`balanced`: a mini-batch cut into shards of equal cost, one for each rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dynbatch import arguments
from dynbatch.arguments import refused
from dynbatch.backend import Array

UNITS = 1 << 40
"""The dearest example's cost as an integer: sums of integers have no order, and ties are ties."""

CLOSE_ENOUGH = 1000
"""Improvement ends where the dearest and the cheapest shard differ by this part of the mean."""


def balanced(costs: Sequence[float] | Array, size: int) -> list[list[int]]:
    """Cut a mini-batch into `size` shards, so that the dearest one is as cheap as can be found.

    Examples go, the dearest first, to the shard that is cheapest so far (Graham 1969: at most
    4/3 - 1/(3 size) times the best possible); then examples of the dearest shard are moved to the
    cheapest one, or exchanged for its own, as long as that makes the dearer of the two cheaper.
    Equal costs give equal shards, on every rank and machine: sums are of integers, and of several
    examples or shards that would do, the first is taken.

    Args:
        costs: of each example, such as its number of tokens: >= 0.
        size:  number of shards.

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
    units = _integers(costs)
    shards: list[list[int]] = [[] for _ in range(size)]
    totals = [0] * size
    cheapest = [(0, 0, shard) for shard in range(size)]  # its cost, its examples, its place
    for example in sorted(range(len(units)), key=lambda each: (-units[each], each)):
        _, count, shard = heapq.heappop(cheapest)
        shards[shard].append(example)
        totals[shard] += units[example]
        heapq.heappush(cheapest, (totals[shard], count + 1, shard))
    _improve(shards, totals, units)
    return [sorted(shard) for shard in shards]


def _integers(costs: Sequence[float] | Array) -> list[int]:
    given = np.asarray(costs, np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any():
        raise refused(
            "balanced", f"costs are {costs!r}"[:200],
            "a list of numbers >= 0, one for each example",
            "give the number of tokens of each example, or a predicted cost",
        )  # fmt: skip
    dearest = given.max(initial=0.0)
    return [int(each) for each in np.rint(given / dearest * UNITS)] if dearest else [0] * len(given)


def _improve(shards: list[list[int]], totals: list[int], units: list[int]) -> None:
    """Move or exchange examples of the dearest shard and the cheapest one, while that gains."""
    while True:
        dear = totals.index(max(totals))
        cheap = totals.index(min(totals))
        apart = totals[dear] - totals[cheap]
        if apart * CLOSE_ENOUGH * len(totals) <= sum(totals):
            return
        out = np.array([units[each] for each in shards[dear]])
        back = np.array([units[each] for each in shards[cheap]] + [0])  # or nothing comes back
        moved = np.subtract.outer(out, back)
        loss = np.where((moved > 0) & (moved < apart), np.abs(apart - 2 * moved), apart)
        i, j = divmod(int(loss.argmin()), len(back))
        if loss[i, j] == apart:
            return
        gone = shards[dear].pop(i)
        if j < len(shards[cheap]):
            shards[dear].append(shards[cheap].pop(j))
        shards[cheap].append(gone)
        totals[dear] -= int(moved[i, j])
        totals[cheap] += int(moved[i, j])
