"""Losses by distance and by margin, as PyTorch defines them: compositions of other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.arguments import number, refused, switch
from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.losses.targets import check_reduction, class_targets
from dynbatch.nodes.node import Node
from dynbatch.nodes.reductions.reduce import mean, sum
from dynbatch.nodes.selection import maximum, minimum, where
from dynbatch.nodes.shape.expand import expand
from dynbatch.nodes.shape.reshape import unsqueeze
from dynbatch.nodes.sources import input
from dynbatch.nodes.unary.activations import relu
from dynbatch.nodes.unary.arithmetic import abs, detach, log


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


def hinge_embedding_loss(
    x: Node, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Node:  # fmt: skip
    """Loss of distances of pairs, as `torch.nn.functional.hinge_embedding_loss`.

    An element gives x where the target is 1, of a pair that belongs together, and
    max(0, margin - x) where it is -1.

    Args:
        x:         distances, of any shape.
        target:    1 or -1 for each, an array of that shape.
        margin:    at least so far apart are others, above 0.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError:    the shapes differ.
        ArgumentError: unknown reduction, `margin` is not above 0, or a target is neither 1 nor -1.

    Source: Hadsell, Chopra & LeCun 2006, CVPR, doi:10.1109/CVPR.2006.100.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.hinge_embedding_loss(F.input(graph, [0.5, 0.25]), [1, -1]).item()
        0.625
    """
    what = "hinge_embedding_loss"
    margin = number(what, "margin", margin, "(0, inf)")
    check_reduction(what, reduction, ("mean", "sum"))
    x, together = node_of(what, x), np.asarray(target)
    if not np.isin(together, (1, -1)).all():
        raise refused(
            what, f"a target is {together[~np.isin(together, (1, -1))].flat[0]}",
            "1 for a pair that belongs together, -1 for another", "np.where(is_pair, 1, -1)",
        )  # fmt: skip
    _require_one_shape(what, x, together)
    return _reduced(where(together == 1, x, relu(margin - x)), reduction)


def gaussian_nll_loss(
    x: Node, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Node:  # fmt: skip
    """Negative log-likelihood of a normal distribution, as `torch.nn.functional.gaussian_nll_loss`.

    Each element gives ½ (log v + (x - t)² / v) with v = max(var, eps), whose gradient passes to var
    as if it were var, as in PyTorch.

    Args:
        x:         means, of any shape.
        target:    a node or an array of that shape.
        var:       variances, a node, an array or a number: one for each element, for each row, of
            shape (…, 1) or (…), or for all. PyTorch refuses those below 0, which here are `eps`.
        full:      whether ½ log 2π is added.
        eps:       the least variance, above 0.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError:    the shapes differ.
        DtypeError:    target or var is not numeric.
        ArgumentError: unknown reduction, `full` is not a truth value, or `eps` is not above 0.

    Source: Nix & Weigend 1994, ICNN, doi:10.1109/ICNN.1994.374138.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.gaussian_nll_loss(F.input(graph, [1.0, 3.0]), [1.0, 1.0], 1.0).item()
        1.0
    """
    what = "gaussian_nll_loss"
    eps = number(what, "eps", eps, "(0, inf)")
    constant = 0.5 * np.log(2 * np.pi) if switch(what, "full", full) else 0.0
    check_reduction(what, reduction, ("mean", "sum"))
    x = node_of(what, x)
    t, v = [each if isinstance(each, Node) else input(x.graph, each) for each in (target, var)]
    _require_one_shape(what, x, t)
    if v.ndim and v.shape == x.shape[:-1]:
        v = unsqueeze(v, -1)
    v = expand(v, x.shape)
    v = v + detach(maximum(v, eps) - v)
    d = x - t
    losses = 0.5 * (log(v) + d * d / v)
    return _reduced(losses + float(constant) if full else losses, reduction)


def _distance(what: str, x: Node, target: Any, reduction: str) -> Node:
    x = node_of(what, x)
    check_reduction(what, reduction, ("mean", "sum"))
    target = target if isinstance(target, Node) else input(x.graph, target)
    _require_one_shape(what, x, target)
    return abs(x - target)


def _require_one_shape(what: str, x: Node, target: Node | Array) -> None:
    if x.shape != target.shape:
        raise ShapeError.at_caller(
            f"{what}: shapes {x.shape} and {target.shape} differ.\n"
            "  rule: input and target have one shape\n"
            "  fix:  give the sentence's own target, unpadded; F.squeeze a column (T, 1)"
        )


def _reduced(losses: Node, reduction: str) -> Node:
    return mean(losses) if reduction == "mean" else sum(losses)
