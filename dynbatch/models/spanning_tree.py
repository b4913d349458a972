"""The best dependency tree of one sentence, from a score for each possible arc."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ShapeError


def maximum_spanning_tree(scores: Array) -> Array:
    """Heads of the tree with the highest sum of scores, in which one token depends on the root.

    Args:
        scores: (T, T + 1) of token i's possible heads: column 0 is the root, column j + 1 token j.

    Returns:
        (T,) int64 columns: 0 for the root, j + 1 for token j.

    Raises:
        ShapeError: the scores have another shape, or one is NaN or infinite.

    Cost: O(T²) a cycle; most sentences have none, and are done by one maximum a token.
    Source: Chu & Liu 1965; Edmonds 1967; McDonald et al. 2005, HLT/EMNLP. That only one token
        depends on the root is had by making each such arc dearer than all scores together.

    Example:
        >>> maximum_spanning_tree(np.array([[5.0, 0.0, 6.0], [4.0, 7.0, 0.0]])).tolist()
        [0, 1]
    """
    tokens = scores.shape[0]
    if scores.shape != (tokens, tokens + 1) or not np.isfinite(scores).all():
        raise ShapeError(
            f"maximum_spanning_tree: scores {scores.shape}.\n"
            "  rule: (T, T + 1) finite numbers: a row for each token, the root in column 0"
        )
    weights = np.full((tokens + 1, tokens + 1), -np.inf)  # from head (row) to dependent (column)
    weights[:, 1:] = scores.T
    weights[0, 1:] -= 1 + 2 * tokens * np.abs(scores).max(initial=0)
    np.fill_diagonal(weights, -np.inf)
    return _arborescence(weights)[1:]


def _arborescence(weights: Array) -> Array:
    """Heads of all nodes of the best tree from node 0, which is its own head here."""
    heads: Array = weights.argmax(axis=0)
    heads[0] = 0
    cycle = _cycle(heads)
    if not cycle.size:
        return heads
    # The cycle becomes one node, the last. To enter it at v costs the arc of the cycle into v.
    rest = np.setdiff1d(np.arange(heads.size), cycle)
    into = weights[np.ix_(rest, cycle)] - weights[heads[cycle], cycle]
    out_of = weights[np.ix_(cycle, rest)]
    smaller = np.full((rest.size + 1, rest.size + 1), -np.inf)
    smaller[:-1, :-1] = weights[np.ix_(rest, rest)]
    smaller[:-1, -1] = into.max(axis=1)
    smaller[-1, :-1] = out_of.max(axis=0)
    smaller_heads = _arborescence(smaller)
    entering = smaller_heads[-1]
    heads[cycle[into[entering].argmax()]] = rest[entering]
    from_cycle = smaller_heads[:-1] == rest.size
    heads[rest] = np.where(
        from_cycle, cycle[out_of.argmax(axis=0)], rest[np.where(from_cycle, 0, smaller_heads[:-1])]
    )
    return heads


def _cycle(heads: Array) -> Array:
    """The nodes of one cycle, in order of their numbers; empty if there is none."""
    seen_from = np.zeros(heads.size, np.int64)  # the walk that met a node first
    for start in range(1, heads.size):
        node = start
        while node and not seen_from[node]:
            seen_from[node] = start
            node = int(heads[node])
        if node and seen_from[node] == start:
            cycle = [node]
            while (following := int(heads[cycle[-1]])) != node:
                cycle.append(following)
            return np.sort(cycle)
    return np.zeros(0, np.int64)
