"""The classes that a sentence's tokens should have, checked and weighted."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.errors import (
    ArgumentError,
    DynbatchError,
    NumericError,
    ShapeError,
    VocabularyError,
)
from dynbatch.kernels import arrays
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.nodes.arguments import are_below, as_ids, node_of, same_ids
from dynbatch.nodes.node import Node

NOTHING_IGNORED = -100
"""The default of `ignore_index`, as in PyTorch."""


class TargetRule(NamedTuple):
    """The way the targets of one loss are checked and weighted.

    Args:
        what:         the loss, as errors call it.
        classes:      V; None where they are the rows of a value, which the node checks.
        ignore_index: tokens with this target get weight 0, and id 0; None where all count.
        reduction:    "mean" over the tokens that count (0 if none does), or "sum".
    """

    what: str
    classes: int | None
    ignore_index: int | None
    reduction: str

    def weighted(self, targets: Array, dtype: DType) -> tuple[Array, Array]:
        """Ids (T,) and weights (T,) of each token's loss, so that a sentence's loss is their sum.

        Raises:
            ShapeError:      the targets are not a list of integers.
            VocabularyError: a target is outside 0 … V - 1 and is not `ignore_index`.
        """
        return self.weights_of(same_ids(self.what, targets), dtype)

    def weights_of(self, ids: Array, dtype: DType) -> tuple[Array, Array]:
        """Ids and weights as `weighted` gives them, of ids (T,)."""
        count, ignored, classes = ids.size, self.ignore_index, self.classes
        if classes is not None:
            ignores_a_class = ignored is not None and 0 <= ignored < classes
            if count and not ignores_a_class and are_below(ids, classes):
                weights = np.empty(count, dtype)
                weights.fill(1 / count if self.reduction == "mean" else 1)
                return ids, weights
        counted = np.ones(count, bool) if ignored is None else ids != ignored
        if classes is not None:
            self.check(ids, counted, classes)
        count = int(counted.sum())
        scale = 1 / count if self.reduction == "mean" and count else 1
        return np.where(counted, ids, 0), np.where(counted, scale, 0).astype(dtype)

    def check(self, ids: Array, counted: Array, classes: int) -> None:
        """Raise `VocabularyError` unless all ids that count are classes."""
        wrong = np.flatnonzero(counted & ((ids < 0) | (ids >= classes)))
        if not wrong.size:
            return
        position = int(wrong[0])
        rule, fix = f"0 <= target < {classes}", "map unknown targets to one class"
        if self.ignore_index is not None:
            rule, fix = f"{rule}, or ignore_index", f"{fix}, or to ignore_index"
        raise VocabularyError.at_caller(
            f"{self.what}: target {ids[position]} at position {position} of {ids.size} is outside "
            f"the {classes} classes.\n"
            f"  rule: {rule}\n  fix:  {fix}"
        )

    def weighted_rows(self, array: Array, dtype: DType) -> tuple[Array, Array]:
        """Probabilities (T, V) and weights (T,) of each token's loss, from (T, V) or (V,).

        Raises:
            ShapeError:    their shape is another.
            NumericError:  a probability is not finite.
            ArgumentError: a probability is below 0.
        """
        if array.shape[-1:] != (self.classes,):
            raise ShapeError.at_caller(
                f"{self.what}: probabilities of shape {array.shape} for {self.classes} classes.\n"
                "  rule: one probability for each class of each token\n"
                "  fix:  give the sentence's own probabilities, or ids"
            )
        array = np.array(arrays.download(array), dtype, order="C")
        if not (array >= 0).all() or not np.isfinite(array).all():
            wrong = ~((array >= 0) & np.isfinite(array))
            position = tuple(int(i) for i in np.argwhere(wrong)[0])
            error: type[DynbatchError] = ArgumentError if np.isfinite(array).all() else NumericError
            raise error.at_caller(
                f"{self.what}: the probability at {position} is {array[position]}.\n"
                "  rule: probabilities are finite, and 0 or more\n"
                "  fix:  give F.softmax(...).value or counts, no logits"
            )
        rows = array.reshape(-1, array.shape[-1])
        scale = 1 / len(rows) if self.reduction == "mean" and len(rows) else 1
        return rows, np.full(len(rows), scale, dtype)


target_rule = lru_cache(maxsize=256)(TargetRule)
"""The rule of these arguments; a loop over sentences asks for the same again and again."""

Targets = tuple[Array, Array, TargetRule]
"""Ids or probabilities, weights, and the rule that made them."""


def class_targets(
    what: str,
    x: Node,
    targets: Any,
    ignore_index: int | None,
    reduction: str,
    are_rows: bool = False,
) -> Targets:
    """Ids (T,) and weights (T,) of each token's loss, by the `TargetRule` of these arguments.

    Args:
        x:            (T, V), or (V,) for one prediction.
        targets:      T ids below V; or one id.
        are_rows:     whether V is not the width of x, but the rows of a value: they are not
            checked here.

    Raises:
        ShapeError:      numbers of rows and targets differ.
        VocabularyError: a target is outside 0 … V - 1 and is not `ignore_index`.
        ArgumentError:   unknown reduction.
    """
    if not isinstance(x, Node):
        x = node_of(what, x)
    check_reduction(what, reduction, ("mean", "sum"))
    rule = target_rule(what, None if are_rows else x.width, ignore_index, reduction)
    is_one = not isinstance(targets, np.ndarray) and isinstance(targets, (int, np.integer))
    ids = as_ids(what, [targets] if is_one else targets)
    if x.rows != ids.size or not x.ndim:
        x.refuse(
            f"{ids.size} targets for {what} of shape {x.shape}",
            "one target for each row",
            "give the sentence's own targets, unpadded",
        )
    return *rule.weights_of(ids, x.graph.dtype), rule


def distributions(logits: Node, targets: Any, ignore_index: int, reduction: str) -> Targets | None:
    """Probabilities (T, V) and weights (T,) of each token's loss; None where targets are classes.

    Targets are probabilities where they are floats and have as many dimensions as the logits.

    Raises:
        ShapeError:    their shape is another.
        NumericError:  a probability is not finite.
        ArgumentError: a probability is below 0; unknown reduction; or there is an `ignore_index`.
    """
    if isinstance(targets, np.ndarray):
        if targets.dtype.kind != "f":
            return None
    elif isinstance(targets, (Node, int, np.integer)):
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
    rule = target_rule("cross_entropy", logits.width, None, reduction)
    return *rule.weighted_rows(array, logits.graph.dtype), rule


def check_reduction(what: str, reduction: str, known: tuple[str, ...]) -> None:
    """Raise `ArgumentError` unless the reduction is one of `known`."""
    if reduction not in known:
        raise ArgumentError.at_caller(
            f"{what}: reduction {reduction!r}.\n  rule: one of {', '.join(known)}\n"
            "  fix:  a sentence's loss is a scalar, and graph.values(losses) has one for each, so "
            "there is no 'none';\n"
            "        of each token it is F.logsumexp(x, -1) - F.sum(F.where(np.eye(V)[ids], x, 0), "
            "-1) for scores x;\n        cross_entropy weighs each token by targets (T, V) of "
            "probabilities, a row times the token's weight"
        )
