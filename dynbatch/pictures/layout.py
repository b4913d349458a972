"""Layers of a graph, and places in them: the layout of `sentence()`.

Source: Sugiyama, Tagawa & Toda 1981, with layers by longest path, barycentres for the order, and
places by isotonic regression (pool adjacent violators).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

Edges = Sequence[tuple[int, int]]
"""Pairs of keys: who is read, and by whom."""

SWEEPS = 8


def layers_of(keys: Sequence[int], edges: Edges) -> dict[int, int]:
    """The layer of each node: 0 for what reads nothing, and everything as near its reader as it
    can be. A node that nobody reads lies just above what it reads.

    Args:
        keys: in a topological order.
    """
    read_by: dict[int, list[int]] = {key: [] for key in keys}
    reads: dict[int, list[int]] = {key: [] for key in keys}
    for source, reader in edges:
        read_by[source].append(reader)
        reads[reader].append(source)
    layer: dict[int, int] = {}
    for key in keys:
        layer[key] = 1 + max([layer[source] for source in reads[key]], default=-1)
    for key in reversed(keys):
        if read_by[key]:
            layer[key] = min([layer[reader] for reader in read_by[key]]) - 1
    return layer


def with_bends(layer: Mapping[int, int], edges: Edges) -> tuple[list[list[int]], list[list[int]]]:
    """Layers in which each edge goes from one to the next: long edges get bends.

    Returns:
        keys by layer, bends among them with keys below all others; and the path of each edge.
    """
    rows: list[list[int]] = [[] for _ in range(1 + max(layer.values(), default=0))]
    for key, number in layer.items():
        rows[number].append(key)
    paths, bend = [], min(0, *layer)
    shared: dict[tuple[int, int], int] = {}  # edges of one node bend together
    for source, reader in edges:
        path = [source]
        for number in range(layer[source] + 1, layer[reader]):
            if (source, number) not in shared:
                bend -= 1
                shared[source, number] = bend
                rows[number].append(bend)
            path.append(shared[source, number])
        paths.append([*path, reader])
    return rows, paths


def ordered(
    rows: Sequence[Sequence[int]], paths: Iterable[Sequence[int]], hint: Mapping[int, float]
) -> list[list[int]]:
    """The layers with few crossings: each sorted by the mean place of its neighbours, in sweeps.

    Args:
        hint: numbers that sort the keys at first; a bend has the mean of its readers.
    """
    above, below, first = _neighbours(rows, paths, hint)
    order = [sorted(row, key=lambda key: first[key]) for row in rows]
    best, fewest = order, _crossings(order, above)
    # Sweeps by mean positions (Sugiyama et al. 1981) may also make crossings: the best is kept.
    for sweep in range(SWEEPS):
        upward = sweep % 2 == 0
        neighbours = below if upward else above
        places = {key: column for row in order for column, key in enumerate(row)}
        order = [list(row) for row in order]
        for number in range(len(order)) if upward else reversed(range(len(order))):
            centre = {
                key: sum([places[other] for other in neighbours[key]]) / len(neighbours[key])
                if neighbours[key]
                else float(places[key])
                for key in order[number]
            }
            order[number].sort(key=lambda key: (centre[key], places[key]))
            places |= {key: column for column, key in enumerate(order[number])}
        crossings = _crossings(order, above)
        if crossings < fewest:
            best, fewest = order, crossings
    return best


def placed(
    rows: Sequence[Sequence[int]],
    paths: Iterable[Sequence[int]],
    width: Mapping[int, float],
    gap: float,
) -> dict[int, float]:
    """The middle of each node: near its neighbours, in the given order, `gap` apart or more."""
    above, below, _ = _neighbours(rows, paths, {})
    middle: dict[int, float] = {}
    for row in rows:
        at = 0.0
        for key in row:
            middle[key] = at + width[key] / 2
            at += width[key] + gap
        for key in row:
            middle[key] -= at / 2
    for sweep in range(2 * SWEEPS):
        upward = sweep % 2 == 1  # the last one: parents stand above the middle of their children
        neighbours = below if upward else above
        for row in rows if upward else reversed(rows):
            wanted = [
                sum([middle[other] for other in neighbours[key]]) / len(neighbours[key])
                if neighbours[key]
                else middle[key]
                for key in row
            ]
            for key, at in zip(row, _apart(wanted, [width[key] for key in row], gap), strict=True):
                middle[key] = at
    return middle


def _neighbours(
    rows: Sequence[Sequence[int]], paths: Iterable[Sequence[int]], hint: Mapping[int, float]
) -> tuple[dict[int, list[int]], dict[int, list[int]], dict[int, float]]:
    """The neighbours of each key above and below, each once, and its hint."""
    above: dict[int, dict[int, None]] = {key: {} for row in rows for key in row}
    below: dict[int, dict[int, None]] = {key: {} for row in rows for key in row}
    first = {key: hint.get(key, 0.0) for key in above}
    led: dict[int, list[float]] = {}  # for each bend where its edges lead
    for path in paths:
        for low, high in pairwise(path):
            above[low][high] = None
            below[high][low] = None
        for bend in path[1:-1]:
            led.setdefault(bend, []).append(first[path[-1]])
    first |= {bend: sum(keys) / len(keys) for bend, keys in led.items()}
    return (
        {key: list(keys) for key, keys in above.items()},
        {key: list(keys) for key, keys in below.items()},
        first,
    )


def _crossings(rows: Sequence[Sequence[int]], above: Mapping[int, Sequence[int]]) -> int:
    """Pairs of edges between neighbouring layers that cross."""
    places = {key: column for row in rows for column, key in enumerate(row)}
    count = 0
    for row in rows:
        ends = [sorted([places[other] for other in above[key]]) for key in row]
        seen: list[int] = []
        for uppers in ends:
            count += sum([other > end for end in uppers for other in seen])
            seen += uppers
    return count


def _apart(wanted: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The places nearest to those that are wanted, in order, at which boxes do not overlap.

    Least squares under x_k + (w_k + w_k+1) / 2 + gap <= x_k+1, by isotonic regression.
    """
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + gap)
    pools: list[tuple[float, int]] = []  # the sum and the number of neighbours at one place
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while pools and pools[-1][0] * count >= total * pools[-1][1]:
            more, number = pools.pop()
            total, count = total + more, count + number
        pools.append((total, count))
    levels = [total / count for total, count in pools for _ in range(count)]
    return [level + offset for level, offset in zip(levels, offsets, strict=True)]
