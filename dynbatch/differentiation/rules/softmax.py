"""Rules of softmax, log-softmax and sparsemax, and of layer and RMS normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynbatch import nodes as F
from dynbatch.differentiation.repeated import spread, sum_of_rows
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.nodes.layer_norm import FeatureNormalization, LayerNormalization, RmsNormalization
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.reduce import Sum
from dynbatch.nodes.softmax import LogSoftmax, Softmax, Sparsemax


@rule(Softmax)
def _softmax(y: Softmax, dy: Node) -> tuple[Made, ...]:
    def centred() -> Node:
        weighted = dy * y
        return weighted - y * spread(Sum(weighted, over=y.over), y)

    return (centred,)


@rule(LogSoftmax)
def _log_softmax(y: LogSoftmax, dy: Node) -> tuple[Made, ...]:
    return (lambda: dy - F.exp(y) * spread(Sum(dy, over=y.over), y),)


@rule(Sparsemax)
def _sparsemax(y: Sparsemax, dy: Node) -> tuple[Made, ...]:
    def centred() -> Node:
        support = F.not_equal(y, 0.0)
        mean = Sum(dy * support, over=y.over) / Sum(support, over=y.over)
        return support * (dy - spread(mean, y))

    return (centred,)


def _normals(y: FeatureNormalization, x: Node) -> tuple[Node, Node]:
    """A head normalised, before weight and bias, and the reciprocal of what it was divided by."""
    centred = x - F.mean(x, dim=-1) if isinstance(y, LayerNormalization) else x
    reciprocal = F.pow(F.mean(centred * centred, dim=-1) + y.eps, -0.5)
    return centred * reciprocal, reciprocal


def _heads(y: FeatureNormalization, dy: Node) -> list[tuple[Node, Node]]:
    """The input of each head, and its gradient."""
    (x,) = y.inputs
    if y.heads == 1:
        return [(x, dy)]
    return list(zip(F.chunk(x, y.heads), F.chunk(dy, y.heads), strict=True))


@rule(LayerNormalization, RmsNormalization)
def _normalization(y: FeatureNormalization, dy: Node) -> tuple[Made, ...]:
    def orthogonal(x: Node, dy: Node) -> Node:
        normals, reciprocal = _normals(y, x)
        g = dy if y.weight is None else dy * y.weight
        along = g - normals * F.mean(g * normals, dim=-1)
        if isinstance(y, LayerNormalization):
            along = along - F.mean(g, dim=-1)
        return along * reciprocal

    def of_heads() -> Node:
        parts = [orthogonal(*head) for head in _heads(y, dy)]
        return parts[0] if y.heads == 1 else F.concat(parts)

    return (of_heads,)


@parameter_rule(LayerNormalization, RmsNormalization)
def _of_normalization(y: FeatureNormalization, dy: Node) -> Mapping[str, Callable[[], Node]]:
    def of_weight() -> Node:
        first, *others = [dy_h * _normals(y, x)[0] for x, dy_h in _heads(y, dy)]
        for other in others:
            first = first + other
        return sum_of_rows(first)

    return {"weight": of_weight, "bias": lambda: sum_of_rows(dy)}
