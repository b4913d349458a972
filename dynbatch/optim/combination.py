"""`combine`: sums of arrays with factors, in place, for copies of parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.optimizers import ParameterSlice, Rule, ShardScratch, run_updates
from dynbatch.optim import device
from dynbatch.optim.norm import GradientNorm
from dynbatch.optim.sgd import sgd


def combine(
    outs: Sequence[Array],
    others: Sequence[Array],
    keep: float,
    add: float,
    norms: Sequence[GradientNorm | None] = (),
) -> None:
    """Every out ← keep · out + add · other, in place.

    It is a step of gradient descent: θ - lr·(g + decay·θ) with lr = -add, g = other and
    decay = (keep - 1) / add.

    Args:
        outs, others: pairs of C-contiguous arrays of one shape, dtype and device.
        add:          not 0.
        norms:        of each pair: on a GPU nothing is done unless it is finite.
    Cost: one pass over memory in C; on a GPU a launch for each dtype, and nothing is waited for.
    """
    decay = (keep - 1.0) / add
    numbers = dict(lr=-add, momentum=0.0, share=1.0, weight_decay=decay, nesterov=0.0)
    rule = Rule(sgd, tuple([numbers[name] for name in sgd.numbers]))
    parts = [ParameterSlice(out, other, (), rule) for out, other in zip(outs, others, strict=True)]
    norm_of = norms or [None] * len(parts)
    run_updates([p for p in parts if isinstance(p.value, np.ndarray)], ShardScratch())
    on_device = [
        (part, norm)
        for part, norm in zip(parts, norm_of, strict=True)
        if not isinstance(part.value, np.ndarray)
    ]
    if on_device:
        device.run_updates(on_device)
