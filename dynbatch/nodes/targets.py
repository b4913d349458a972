"""The classes that a sentence's tokens should have, checked and weighted."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.errors import VocabularyError
from dynbatch.nodes.base import Node, as_ids, caller
from dynbatch.parameter import Array


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
        ValueError:      unknown reduction.
    """
    check_reduction(what, reduction, ("mean", "sum"))
    ids = as_ids(what, [targets] if isinstance(targets, int | np.integer) else targets)
    x.require(
        x.rows == ids.size and x.ndim > 0,
        f"{ids.size} targets for {what} of shape {x.shape}",
        "one target for each row",
        "give the sentence's own targets, unpadded",
    )
    dtype, classes = x.graph.dtype, x.width if classes is None else classes
    # Negative ids become huge as unsigned numbers, so one comparison finds both kinds.
    ignores_a_class = ignore_index is not None and 0 <= ignore_index < classes
    if ids.size and not ignores_a_class and int(ids.view(np.uint64).max()) < classes:
        scale = 1 / ids.size if reduction == "mean" else 1
        return ids, np.full(ids.size, scale, dtype)
    counted = np.ones(ids.size, bool) if ignore_index is None else ids != ignore_index
    wrong = np.flatnonzero(counted & ((ids < 0) | (ids >= classes)))
    if wrong.size:
        place = int(wrong[0])
        rule, fix = f"0 <= target < {classes}", "map unknown targets to one class"
        if ignore_index is not None:
            rule, fix = f"{rule}, or ignore_index", f"{fix}, or to ignore_index"
        raise VocabularyError(
            f"{what}: target {ids[place]} at position {place} of {ids.size} is outside the "
            f"{classes} classes.\n"
            f"  rule: {rule}\n  fix:  {fix}\n  made at {caller()}"
        )
    count = int(counted.sum())
    scale = 1 / count if reduction == "mean" and count else 1
    return np.where(counted, ids, 0), np.where(counted, scale, 0).astype(dtype)


def check_reduction(what: str, reduction: str, known: tuple[str, ...]) -> None:
    """Raise `ValueError` unless the reduction is one of `known`."""
    if reduction not in known:
        raise ValueError(
            f"{what}: reduction {reduction!r}.\n  rule: one of {', '.join(known)}\n"
            f"  fix:  a sentence's loss is a scalar; there is no 'none'\n  made at {caller()}"
        )
