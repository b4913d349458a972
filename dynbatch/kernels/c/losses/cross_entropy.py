"""`kernels.losses.cross_entropy` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, has_rows, is_packed, row_stride
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.c.runtime.tasks import share_rows
from dynbatch.kernels.losses.cross_entropy import Targets

_library = Library("losses/cross_entropy.c")


def softmax_loss(
    logits: Array, bias: Array | None, targets: Targets, losses: Array, scale: Array | None = None
) -> Any:
    functions = _library.functions(logits.dtype)
    weights = targets.weights
    if functions is None or not (
        has_rows(losses, logits) and is_packed(losses, bias, weights, scale)
    ):
        return NotImplemented
    rows = targets.distributions
    pieces = [(slice(0, len(logits)), None)] if rows is None else rows.pieces()
    if not all([q is None or is_packed(losses, q) for _, q in pieces]):
        return NotImplemented
    ids = np.ascontiguousarray(targets.ids, np.int64)
    for span, q in pieces:
        z = logits[span]
        share_rows(
            functions.softmax_loss, *z.shape, z.shape[1], address(z), row_stride(z), address(bias),
            address(ids[span]), address(q), address(weights[span]), targets.smoothing,
            address(losses[span]), None if scale is None else address(scale[span]),
        )  # fmt: skip
    return None
