"""`kernels.losses.cross_entropy` in C."""

from __future__ import annotations

from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import is_packed
from dynbatch.kernels.c.runtime.calls import print_call
from dynbatch.kernels.losses.cross_entropy import Targets
from dynbatch.kernels.runtime.dispatch import ROWS

_softmax_loss = print_call("losses/cross_entropy.c", "softmax_loss", ROWS, optional="bias q scale")


def softmax_loss(
    logits: Array, bias: Array | None, targets: Targets, losses: Array, scale: Array | None = None
) -> Any:
    rows = targets.distributions
    pieces = [(slice(0, len(logits)), None)] if rows is None else rows.pieces()
    if not all([q is None or is_packed(losses, q) for _, q in pieces]):
        return NotImplemented
    result = None
    for span, q in pieces:
        result = _softmax_loss(
            logits[span], bias, targets.ids[span], q, targets.weights[span], targets.smoothing,
            losses[span], None if scale is None else scale[span],
        )  # fmt: skip
    return result
