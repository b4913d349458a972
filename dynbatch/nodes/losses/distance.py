"""Losses by distance and by margin, as PyTorch defines them: compositions of other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.arguments import number
from dynbatch.errors import ShapeError
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.losses.targets import check_reduction, class_targets
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.reduce import mean, sum
from dynbatch.nodes.selection import minimum, where
from dynbatch.nodes.sources import input
from dynbatch.nodes.unary.activations import relu
from dynbatch.nodes.unary.arithmetic import abs


def l1_loss(x: Node, target: Any, reduction: str = "mean") -> Node:
    """Absolute error Σ |x - t| of one sentence, as `torch.nn.functional.l1_loss`.

    Args:
        x:         any shape.
        target:    a node or an array of that shape.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.l1_loss(F.input(graph, [1.0, 2.0]), [0.0, 4.0]).item()
        1.5
    """
    return _reduced(_distance("l1_loss", x, target, reduction), reduction)


def huber_loss(x: Node, target: Any, reduction: str = "mean", delta: float = 1.0) -> Node:
    """Huber's loss of one sentence, as `torch.nn.functional.huber_loss`.

    Each element gives ½ d² where d = |x - t| is `delta` or less, else delta · (d - ½ delta).

    Args:
        x:         any shape.
        target:    a node or an array of that shape.
        reduction: "mean" over all elements (0 if there are none), or "sum".
        delta:     where the parabola becomes a line, above 0.

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction, or `delta` is not above 0.

    Source: Huber 1964, doi:10.1214/aoms/1177703732.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.huber_loss(F.input(graph, [1.0, 2.0]), [0.5, 4.0], "sum").item()
        1.625
    """
    delta = number("huber_loss", "delta", delta, "(0, inf)")
    distance = _distance("huber_loss", x, target, reduction)
    near = minimum(distance, delta)
    return _reduced(near * (distance - 0.5 * near), reduction)  # ½ d², delta · (d - ½ delta)


def multi_margin_loss(x: Node, target: Any, margin: float = 1.0, reduction: str = "mean") -> Node:
    """Hinge loss of one sentence's classes, as `torch.nn.functional.multi_margin_loss`.

    A token of class y gives Σ_{j ≠ y} max(0, margin - x_y + x_j) / V.

    Args:
        x:         scores (T, V), or (V,) for one prediction.
        target:    T ids below V; or one id.
        margin:    by which the score of the class should exceed each other, above 0.
        reduction: "mean" over the tokens (0 if there are none), or "sum".

    Raises:
        ShapeError:      numbers of rows and targets differ.
        VocabularyError: a target is outside 0 … V - 1.
        ValueError:      unknown reduction, or `margin` is not above 0.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.multi_margin_loss(F.input(graph, [[0.0, 2.0, 1.5, 3.0]]), [1]).item()
        0.625
    """
    what = "multi_margin_loss"
    margin = number(what, "margin", margin, "(0, inf)")
    ids, _, _ = class_targets(what, x, target, None, reduction)
    of_class = np.equal.outer(ids, np.arange(x.width)).reshape(x.shape)
    score = sum(where(of_class, x, 0.0), dim=-1)
    others = sum(relu(x - score + margin), dim=-1) - margin  # that of y itself is the margin
    return _reduced(others / x.width, reduction)


def _distance(what: str, x: Node, target: Any, reduction: str) -> Node:
    x = node_of(what, x)
    check_reduction(what, reduction, ("mean", "sum"))
    target = target if isinstance(target, Node) else input(x.graph, target)
    if x.shape != target.shape:
        raise ShapeError.at_caller(
            f"{what}: shapes {x.shape} and {target.shape} differ.\n"
            "  rule: input and target have one shape\n"
            "  fix:  give the sentence's own target, unpadded; F.squeeze a column (T, 1)"
        )
    return abs(x - target)


def _reduced(losses: Node, reduction: str) -> Node:
    return mean(losses) if reduction == "mean" else sum(losses)
