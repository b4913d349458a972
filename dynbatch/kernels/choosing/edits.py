"""Single logits of single rows are changed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.indexing import repeat
from dynbatch.kernels.runtime.dispatch import HOST, kernel


class ListedIds(NamedTuple):
    """Some ids for each of R rows.

    ids:     (K,) int64, those of a row side by side.
    offsets: (R + 1,) where those of each row begin.
    """

    ids: Array
    offsets: Array


class RowEdits(NamedTuple):
    """Changes of R rows of logits.

    rows:      (R,) int64: which rows.
    penalized: ids whose logit x becomes x / factor where it is above 0, else x · factor, and then
               less its amount: `factors` and `amounts` (K,), of the logits' dtype.
    banned:    ids whose logit becomes -∞.
    limits:    (R,) int32: 0, all other logits stay; 1, those that are not `allowed` become -∞; 2,
               these too, and the allowed ones 0, whatever else is said of them.
    allowed:   ids of the rows with limits, increasing in each.
    """

    rows: Array
    penalized: ListedIds
    factors: Array
    amounts: Array
    banned: ListedIds
    allowed: ListedIds
    limits: Array


@kernel(cuda=HOST)
def edit_rows(x: Array, edits: RowEdits) -> None:
    """Change logits (N, V) of the rows that are named; the others stay."""
    rows, limits = edits.rows, edits.limits

    def places(listed: ListedIds) -> tuple[Array, Array]:
        return repeat(rows, np.diff(listed.offsets)), listed.ids

    at = places(edits.penalized)
    values = x[at]
    x[at] = np.where(values > 0, values / edits.factors, values * edits.factors) - edits.amounts
    x[places(edits.banned)] = -np.inf
    limited = np.flatnonzero(limits)
    if limited.size:
        at = places(edits.allowed)
        values = x[at]
        values[repeat(limits, np.diff(edits.allowed.offsets)) == 2] = 0
        x[rows[limited]] = -np.inf
        x[at] = values
