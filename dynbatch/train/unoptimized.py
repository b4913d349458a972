"""Warns of parameters that are differentiated in vain: the optimizer does not have them."""

from __future__ import annotations

import warnings

from dynbatch.caller import users_frame
from dynbatch.named_parameters import HasParameters
from dynbatch.optim import Optimizer

MOST_NAMES = 6
"""Names that the warning lists."""


def warn_of_unoptimized(model: HasParameters, optimizer: Optimizer) -> None:
    """Warn at the user's line if a parameter of the model has a gradient that no step uses.

    It is called once a run, between the first backward and the first step.
    """
    optimized = {parameter.uid for _, parameter in optimizer.named_parameters()}
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not parameter.frozen and parameter.uid not in optimized
    ]
    if not names:
        return
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    warnings.warn(
        f"Trainer: parameters of the model have gradients, but are not among the optimizer's and "
        f"stay as they are: {', '.join(names[:MOST_NAMES])}{more}. "
        f"optim.{type(optimizer).__name__}(model) has all of them; parameter.frozen = True says "
        "that one shall stay, and spares its gradient.",
        stacklevel=users_frame()[1] + 1,
    )
