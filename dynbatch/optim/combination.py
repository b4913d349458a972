"""`combine`: sums of arrays with factors, in place, for copies of parameters."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Array
from dynbatch.kernels.optimizers import ParameterSlice, Rule, ShardScratch, run_updates
from dynbatch.optim.sgd import sgd


def combine(
    outs: Sequence[Array],
    others: Sequence[Array],
    keep: float,
    add: float,
    norm: Array | None = None,
) -> None:
    """Every out ← keep · out + add · other, in place.

    It is a step of gradient descent: θ - lr·(g + decay·θ) with lr = -add, g = other and
    decay = (keep - 1) / add.

    Args:
        outs, others: pairs of C-contiguous arrays of one shape, dtype and device.
        add:          not 0.
        norm:         on a GPU (1,) float64 that must be finite, or nothing is done.
    Cost: one pass over memory in C; on a GPU a launch for each dtype, and nothing is waited for.
    """
    decay = (keep - 1.0) / add
    numbers = dict(lr=-add, momentum=0.0, share=1.0, weight_decay=decay, nesterov=0.0)
    rule = Rule(sgd, tuple([numbers[name] for name in sgd.numbers]))
    pairs = zip(outs, others, strict=True)
    run_updates([ParameterSlice(*pair, (), rule, norm=norm) for pair in pairs], ShardScratch())
