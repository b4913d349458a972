"""The rule of additive attention: its hidden layer made again, a row for each query and key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.differentiation.repeated import rows_of, sum_of_rows
from dynbatch.differentiation.rules.attention import of_pairs, visible, weights_of
from dynbatch.differentiation.rules.shape import reshaped
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.indexing import repeat
from dynbatch.nodes.attention.additive import BahdanauAttention
from dynbatch.nodes.node import ROWS, Node
from dynbatch.nodes.shape.reshape import Reshape
from dynbatch.nodes.shape.scatter import scattered


class Pairs(NamedTuple):
    """The values that a rule reads, with a row for each pair of a query and a key.

    Attributes:
        queries, keys: of each pair.
        hidden:        tanh(q_i + k_j), (T_q · T_k, D).
        weights:       (T_q, T_k).
        of_scores:     the gradient of each pair's score, (T_q · T_k, 1).
    """

    queries: Array
    keys: Array
    hidden: Node
    weights: Node
    of_scores: Node


def _pairs(y: BahdanauAttention, dy: Node) -> Pairs:
    q, k, v = y.inputs
    shape = q.rows, k.rows
    queries, keys = repeat(np.arange(q.rows), k.rows), np.tile(np.arange(k.rows), q.rows)
    hidden = F.tanh(F.gather_rows(q, queries) + F.gather_rows(k, keys))
    scores = of_pairs(F.sum(hidden * y.vector, dim=-1), shape)
    weights = weights_of(scores, visible(y))
    weighted = weights * (rows_of(dy) @ F.transpose(v))
    matrix = weighted - weights * F.sum(weighted, dim=-1)
    of_scores = Reshape(matrix, target=(queries.size, 1), lengths=ROWS)
    return Pairs(queries, keys, hidden, weights, of_scores)


@rule(BahdanauAttention)
def _additive(y: BahdanauAttention, dy: Node) -> tuple[Made, ...]:
    pairs = cache(lambda: _pairs(y, dy))
    of_sums = cache(lambda: pairs().of_scores * y.vector * (1.0 - pairs().hidden * pairs().hidden))
    q, k, _ = y.inputs
    return (
        lambda: reshaped(scattered(of_sums(), pairs().queries, q.rows), q),
        lambda: scattered(of_sums(), pairs().keys, k.rows),
        lambda: F.transpose(pairs().weights) @ rows_of(dy),
    )


@parameter_rule(BahdanauAttention)
def _of_additive(y: BahdanauAttention, dy: Node) -> Mapping[str, Callable[[], Node]]:
    def of_vector() -> Node:
        pairs = _pairs(y, dy)
        return sum_of_rows(pairs.of_scores * pairs.hidden)

    return {"vector": of_vector}
