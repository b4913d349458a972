"""The rule of dot-product attention: its weights made again, as nodes of each head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.differentiation.repeated import rows_of
from dynbatch.differentiation.rules.shape import reshaped
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.nodes.attention.base import AttentionBase
from dynbatch.nodes.attention.bias import ClippedDistance, DistanceBuckets, DistanceSlopes
from dynbatch.nodes.attention.dot_product import BiasedAttention, DotProductAttention
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape
from dynbatch.nodes.shape.reshape import Reshape
from dynbatch.nodes.shape.scatter import scattered
from dynbatch.nodes.shape.slice import Slice

HIDDEN = -1e30
"""The score of a key that a query does not see."""


class Head(NamedTuple):
    """One head of queries, with its head of keys and values, its weights p and gradient dy.

    capped: tanh of the scaled products over the softcap; None without one.
    """

    q: Node
    k: Node
    v: Node
    p: Node
    dy: Node
    capped: Node | None

    def of_scores(self) -> Node:
        """The gradient of the scores, p ⊙ (dp - Σ_j p_j dp_j) with dp = dy vᵀ."""
        weighted = self.p * (self.dy @ F.transpose(self.v))
        return weighted - self.p * F.sum(weighted, dim=-1)

    def of_products(self, scale: float) -> Node:
        """The gradient of q · k, before scale and softcap."""
        ds = self.of_scores() * scale
        return ds if self.capped is None else ds * (1 - self.capped * self.capped)


@rule(DotProductAttention, BiasedAttention)
def _attention(y: DotProductAttention, dy: Node) -> tuple[Made, ...]:
    heads = cache(lambda: list(_heads(y, dy)))
    scores = cache(lambda: [head.of_products(y.scale) for head in heads()])

    def of_queries() -> Node:
        parts = [ds @ head.k for ds, head in zip(scores(), heads(), strict=True)]
        return reshaped(F.concat(parts), y.inputs[0])

    def of_keys() -> Node:
        parts = zip(scores(), heads(), strict=True)
        return _shared(y, [F.transpose(ds) @ head.q for ds, head in parts])

    def of_values() -> Node:
        return _shared(y, [F.transpose(head.p) @ head.dy for head in heads()])

    def of_bias() -> Node:
        parts, b = [head.of_scores() for head in heads()], y.inputs[3]
        is_shared = b.rows == y.inputs[0].rows
        return reshaped(add_up(parts) if is_shared else F.concat(parts, dim=0), b)

    return (of_queries, of_keys, of_values, of_bias)[: len(y.inputs)]


@parameter_rule(DotProductAttention)
def _of_attention(y: DotProductAttention, dy: Node) -> Mapping[str, Callable[[], Node]]:
    def of_table() -> Node:
        assert y.table is not None  # it is wanted
        ids, columns = _rows_of_table(y), []
        for head in _heads(y, dy):
            ds = head.of_scores()
            column = Reshape(ds, target=(ids.size, 1), lengths=ROWS)
            columns.append(scattered(column, ids, y.table.shape[0]))
        if len(y.table.shape) < 2:
            return F.reshape(add_up(columns), y.table.shape)
        return F.concat(columns)

    return {"table": of_table}


def _heads(y: DotProductAttention, dy: Node) -> Iterator[Head]:
    q, k, v = y.inputs[:3]
    q, dy = rows_of(q), rows_of(dy)
    mask = visible(y)
    ks, vs = _cut(k, y.kv_heads), _cut(v, y.kv_heads)
    for h, (q_h, dy_h) in enumerate(zip(_cut(q, y.heads), _cut(dy, y.heads), strict=True)):
        k_h, v_h = ks[h // y.shared_by()], vs[h // y.shared_by()]
        scores = q_h @ F.transpose(k_h) * y.scale
        capped = None
        if y.softcap:
            capped = F.tanh(scores / y.softcap)
            scores = capped * y.softcap
        seen = mask
        if y.bias is not None or len(y.inputs) > 3:
            bias = _bias(y, h)
            scores = scores + bias
            if len(y.inputs) > 3:  # a matrix may hide keys by -inf, all of a query's even
                seen = bias > HIDDEN if mask is None else mask * (bias > HIDDEN)
        yield Head(q_h, k_h, v_h, weights_of(scores, seen), dy_h, capped)


def _distances(y: DotProductAttention) -> Array:
    """(T_q, T_k) how far each key is behind a query."""
    q, k, *_ = y.inputs
    distances: Array = np.arange(k.rows) - np.arange(q.rows)[:, None]
    return distances


def _rows_of_table(y: DotProductAttention) -> Array:
    if y.features is not None:
        return y.features.astype(np.int64).reshape(-1)
    assert isinstance(y.bias, ClippedDistance | DistanceBuckets)  # it has a table
    return y.bias.rows(_distances(y)).reshape(-1)


def _bias(y: DotProductAttention, head: int) -> Node:
    """The numbers that are added to the scores of a head, (T_q, T_k)."""
    if len(y.inputs) > 3:
        b, rows = y.inputs[3], y.inputs[0].rows
        matrices = Reshape(b, target=(b.rows, b.width), lengths=ROWS | WIDTH)
        return matrices if b.rows == rows else matrices[head * rows : (head + 1) * rows]
    distances = _distances(y)
    if isinstance(y.bias, DistanceSlopes):
        return _matrix(y, -y.bias.slopes[head] * np.abs(distances))
    assert y.table is not None  # all others have one
    table = F.parameter(y.graph, y.table)
    column = F.reshape(table, (-1, 1)) if table.ndim < 2 else table[:, head]
    return of_pairs(F.gather_rows(column, _rows_of_table(y)), distances.shape)


def visible(y: AttentionBase) -> Node | None:
    """1 for each key that a query sees, (T_q, T_k); None where all see all."""
    if y.mask is NO_MASK:
        return None
    scores = np.zeros((y.inputs[0].rows, y.inputs[1].rows))
    y.mask.hide(scores, 0, 0)
    return _matrix(y, scores == 0)


def weights_of(scores: Node, mask: Node | None) -> Node:
    """The softmax of the scores that are seen; zeros where none is."""
    if mask is None:
        return F.softmax(scores)
    return F.softmax(F.where(mask, scores, HIDDEN)) * mask


def _matrix(x: Node, array: Array) -> Node:
    """An array of a number for each pair of tokens as a node, whose width is a length."""
    return of_pairs(F.input(x.graph, array.reshape(-1, 1)), array.shape)


def of_pairs(column: Node, shape: Shape) -> Node:
    """A number for each pair of tokens, (T_q · T_k, 1), as a matrix whose width is a length."""
    return Reshape(column, target=shape, lengths=column.ragged | WIDTH)


def _cut(x: Node, heads: int) -> list[Node]:
    if heads == 1:
        return [x]
    width = x.width // heads
    return [Slice(x, tokens=None, features=slice(h * width, (h + 1) * width)) for h in range(heads)]


def _shared(y: DotProductAttention, parts: Sequence[Node]) -> Node:
    """The gradient of keys or values: each head's is the sum of those of the queries' heads."""
    totals = []
    for first in range(0, y.heads, y.shared_by()):
        totals.append(add_up(parts[first : first + y.shared_by()]))
    return F.concat(totals)


def add_up(parts: Sequence[Node]) -> Node:
    """The sum of nodes of one shape, in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
