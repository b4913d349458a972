"""Rules of every optimizer, with every variant of its step."""

import numpy as np

from dynbatch import Parameter
from tests.optim.settings import OF_PROBABILITIES, SETTINGS, label, made

MADE = {label(*pair): made(*pair) for pair in [*SETTINGS, *OF_PROBABILITIES]}


def rule(name, scale=1):
    """The rule of a twelfth step, at `scale` times the rate."""
    optimizer = MADE[name]([Parameter(np.ones(1))])
    optimizer.lr *= scale
    return optimizer.rule(12)


STEPS = tuple(MADE)
