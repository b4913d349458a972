"""Rules of losses."""

from __future__ import annotations

import numpy as np

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.differentiation.repeated import rows_of
from dynbatch.differentiation.rules.expressions import gradients_of_pair
from dynbatch.differentiation.rules.shape import reshaped
from dynbatch.differentiation.table import Made, rule
from dynbatch.nodes.losses.cross_entropy import CrossEntropy
from dynbatch.nodes.losses.elementwise import ElementwiseLoss, NllLoss
from dynbatch.nodes.losses.pointer import PointerLoss
from dynbatch.nodes.node import Node


def _one_hot(ids: Array, weights: Array, classes: int) -> Array:
    """(T, classes): the weight of each row at its id, and 0 elsewhere."""
    rows: Array = np.zeros((ids.size, classes), weights.dtype)
    rows[np.arange(ids.size), ids] = weights
    return rows


@rule(CrossEntropy)
def _cross_entropy(y: CrossEntropy, dy: Node) -> tuple[Made, ...]:
    def of_logits() -> Node:
        (z,) = y.inputs
        weights = y.weights[:, None]
        targets = _one_hot(y.targets, y.weights, z.width) if y.by_class else y.targets * weights
        targets = targets * (1 - y.smoothing) + weights * (y.smoothing / z.width)
        total = F.input(y.graph, targets.sum(1, keepdims=True))
        # A token that does not count may have logits of any value.
        counts = F.input(y.graph, (weights != 0).astype(targets.dtype))
        chances = F.softmax(F.where(counts, rows_of(z), 0.0))
        return reshaped(dy * (chances * total - F.input(y.graph, targets)), z)

    return (of_logits,)


@rule(NllLoss)
def _nll_loss(y: NllLoss, dy: Node) -> tuple[Made, ...]:
    def of_log_probabilities() -> Node:
        (x,) = y.inputs
        return reshaped(dy * F.input(y.graph, -_one_hot(y.ids, y.weights, x.width)), x)

    return (of_log_probabilities,)


@rule(*ElementwiseLoss.__subclasses__())
def _of_elements(y: ElementwiseLoss, dy: Node) -> tuple[Made, ...]:
    return gradients_of_pair(y.pair, y.inputs, dy * y.scale)


@rule(PointerLoss)
def _pointer_loss(y: PointerLoss, dy: Node) -> tuple[Made, ...]:
    q, k = y.inputs

    def of_scores() -> Node:
        chances = F.softmax(q @ F.transpose(k)) * F.input(y.graph, y.weights[:, None])
        return dy * (chances - F.input(y.graph, _one_hot(y.ids, y.weights, k.rows)))

    return lambda: of_scores() @ k, lambda: F.transpose(of_scores()) @ q
