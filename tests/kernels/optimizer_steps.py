"""Rules of every optimizer, with every variant of its step."""

import numpy as np

from dynbatch import Parameter
from tests.optim.settings import OF_PROBABILITIES, SETTINGS, label, made

MADE = {label(*pair): made(*pair) for pair in [*SETTINGS, *OF_PROBABILITIES]}
OTHER_AT_FIRST = ["SGD-lr-momentum-dampening-weight_decay", "RAdam-lr"]
"""Those whose first step is another variant: a whole gradient in the buffer, and no root."""

NUMBERS = {name: (name, 12) for name in MADE}
NUMBERS |= {f"{name}-first": (name, 1) for name in OTHER_AT_FIRST}


def rule(step, scale=1):
    """The rule of one of `STEPS`, at `scale` times the rate."""
    name, num_steps = NUMBERS[step]
    optimizer = MADE[name]([Parameter(np.ones(1))])
    optimizer.lr *= scale
    return optimizer.rule(num_steps)


STEPS = tuple(NUMBERS)
