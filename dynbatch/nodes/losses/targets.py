"""The classes that a sentence's tokens should have, checked and weighted."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.errors import ArgumentError, DynbatchError, NumericError, VocabularyError
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.nodes.arguments import are_below, as_ids, require_nodes
from dynbatch.nodes.node import Node
from dynbatch.parameter import Array

NOTHING_IGNORED = -100
"""The default of `ignore_index`, as in PyTorch."""


def class_targets(
    what: str,
    x: Node,
    targets: Any,
    ignore_index: int | None,
    reduction: str,
    classes: int | None = None,
) -> tuple[Array, Array]:
    """Ids (T,) and weights (T,) of each token's loss, so that a sentence's loss is their sum.

    Args:
        x:            (T, V), or (V,) for one prediction.
        targets:      T ids below V; or one id.
        ignore_index: tokens with this target get weight 0, and id 0; None where all count.
        reduction:    "mean" over the tokens that count (0 if none does), or "sum".
        classes:      V where it is not the width of x.

    Raises:
        ShapeError:      numbers of rows and targets differ.
        VocabularyError: a target is outside 0 … V - 1 and is not `ignore_index`.
        ArgumentError:   unknown reduction.
    """
    require_nodes(what, x)
    check_reduction(what, reduction, ("mean", "sum"))
    ids = as_ids(what, [targets] if isinstance(targets, (int, np.integer)) else targets)
    if x.rows != ids.size or not x.ndim:
        x.refuse(
            f"{ids.size} targets for {what} of shape {x.shape}",
            "one target for each row",
            "give the sentence's own targets, unpadded",
        )
    dtype, classes = x.graph.dtype, x.width if classes is None else classes
    ignores_a_class = ignore_index is not None and 0 <= ignore_index < classes
    if ids.size and not ignores_a_class and are_below(ids, classes):
        weights = np.empty(ids.size, dtype)
        weights.fill(1 / ids.size if reduction == "mean" else 1)
        return ids, weights
    counted = np.ones(ids.size, bool) if ignore_index is None else ids != ignore_index
    wrong = np.flatnonzero(counted & ((ids < 0) | (ids >= classes)))
    if wrong.size:
        position = int(wrong[0])
        rule, fix = f"0 <= target < {classes}", "map unknown targets to one class"
        if ignore_index is not None:
            rule, fix = f"{rule}, or ignore_index", f"{fix}, or to ignore_index"
        raise VocabularyError.at_caller(
            f"{what}: target {ids[position]} at position {position} of {ids.size} is outside the "
            f"{classes} classes.\n"
            f"  rule: {rule}\n  fix:  {fix}"
        )
    count = int(counted.sum())
    scale = 1 / count if reduction == "mean" and count else 1
    return np.where(counted, ids, 0), np.where(counted, scale, 0).astype(dtype)


def distributions(
    logits: Node, targets: Any, ignore_index: int, reduction: str
) -> tuple[Array, Array] | None:
    """Probabilities (T, V) and weights (T,) of each token's loss; None where targets are classes.

    Targets are probabilities where they are floats and have as many dimensions as the logits.

    Raises:
        ShapeError:    their shape is another.
        NumericError:  a probability is not finite.
        ArgumentError: a probability is below 0; unknown reduction; or there is an `ignore_index`.
    """
    if isinstance(targets, (Node, int, np.integer)):
        return None
    try:
        is_array = isinstance(targets, np.ndarray)
        array = targets if is_array else exchange.view("cross_entropy", targets)
    except ValueError:
        return None
    if array.dtype.kind != "f" or array.ndim != logits.ndim or not (array.size or array.ndim > 1):
        return None
    check_reduction("cross_entropy", reduction, ("mean", "sum"))
    if array.shape != logits.shape:
        logits.refuse(
            f"probabilities of shape {array.shape} for cross_entropy of shape {logits.shape}",
            "one probability for each class of each token",
            "give the sentence's own probabilities, unpadded, or ids",
        )
    if ignore_index != NOTHING_IGNORED:
        raise ArgumentError.at_caller(
            f"cross_entropy: ignore_index is {ignore_index} beside probabilities.\n"
            "  rule: only ids can be ignored\n"
            "  fix:  give rows of zeros, or leave these tokens out"
        )
    array = np.array(arrays.download(array), logits.graph.dtype, order="C")
    if not (array >= 0).all() or not np.isfinite(array).all():
        wrong = ~((array >= 0) & np.isfinite(array))
        position = tuple(int(i) for i in np.argwhere(wrong)[0])
        error: type[DynbatchError] = ArgumentError if np.isfinite(array).all() else NumericError
        raise error.at_caller(
            f"cross_entropy: the probability at {position} is {array[position]}.\n"
            "  rule: probabilities are finite, and 0 or more\n"
            "  fix:  give F.softmax(...).value or counts, no logits"
        )
    rows = array.reshape(logits.rows, logits.width)
    scale = 1 / logits.rows if reduction == "mean" and logits.rows else 1
    return rows, np.full(logits.rows, scale, array.dtype)


def check_reduction(what: str, reduction: str, known: tuple[str, ...]) -> None:
    """Raise `ArgumentError` unless the reduction is one of `known`."""
    if reduction not in known:
        raise ArgumentError.at_caller(
            f"{what}: reduction {reduction!r}.\n  rule: one of {', '.join(known)}\n"
            "  fix:  'none' does not exist here, since a sentence's loss is a scalar"
        )
