"""Draws initial values, from the caller's generator or from `dynbatch.random`."""

from __future__ import annotations

import math

import numpy as np

from dynbatch import random
from dynbatch.arguments import refused
from dynbatch.parameter import Parameter

Rng = np.random.Generator | int | None


def generator(rng: Rng = None) -> np.random.Generator:
    """`rng` itself, a generator with that seed, or one seeded by `dynbatch.seed`.

    Example:
        >>> import dynbatch as db
        >>> db.seed(7)
        >>> first = generator().random()
        >>> db.seed(7)
        >>> generator().random() == first, generator(3).random() == generator(3).random()
        (True, True)
    """
    if rng is None:
        return np.random.default_rng(random.next_seed())
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise refused(
        "rng", f"initial values cannot be drawn from {rng!r}",
        "None, a seed >= 0, or a np.random.Generator",
        "np.random.default_rng(seed); db.seed(seed) decides for all models",
    )  # fmt: skip


def uniform(rng: np.random.Generator, shape: tuple[int, ...], fan: int) -> Parameter:
    """A float32 parameter uniform in ±1/√fan, PyTorch's choice for linear and recurrent layers."""
    bound = 1 / math.sqrt(fan) if fan > 0 else 0.0
    return Parameter(rng.uniform(-bound, bound, shape).astype(np.float32))


def normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> Parameter:
    """A float32 parameter from a normal distribution of mean 0 and deviation `scale`."""
    return Parameter((scale * rng.standard_normal(shape)).astype(np.float32))


def glorot(rng: np.random.Generator, shape: tuple[int, int]) -> Parameter:
    """A float32 matrix (O, I) uniform in ±√(6 / (I + O)).

    Source: Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural
        networks", equation 16.
    """
    bound = math.sqrt(6 / sum(shape))
    return Parameter(rng.uniform(-bound, bound, shape).astype(np.float32))


def zeros(size: int) -> Parameter:
    """A float32 vector of zeros."""
    return Parameter(np.zeros(size, np.float32))
