"""Draws initial values, from the caller's generator or from `dynbatch.random`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from dynbatch import random
from dynbatch.arguments import is_integer, refused
from dynbatch.backend import Array
from dynbatch.parameter import Parameter

Rng = np.random.Generator | int | None
Draw = Callable[[], Array]
Draws = dict[int, Draw]
"""What draws the values of parameters, by their `uid`."""


class _Unfilled:
    """The arrays that `unfilled` collects."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.draws: Draws = {}

    def parameter(self, shape: tuple[int, ...], draw: Draw) -> Parameter:
        if len(self.draws) >= self.most:
            raise ValueError(f"more than {self.most} parameters")
        made = Parameter(np.empty((1,) * len(shape), np.float32))
        made.replace(np.broadcast_to(np.float32(0), shape))
        self.draws[made.uid] = draw
        return made


_unfilled: ContextVar[_Unfilled | None] = ContextVar("unfilled", default=None)


@contextmanager
def unfilled(most: int) -> Iterator[Draws]:
    """Make parameters in the block without memory, whatever their shapes, to be filled later.

    Their values can be read as zeros, and not written to: `Parameter.replace` gives them an array.

    Args:
        most: so many may be made.

    Raises:
        ValueError: more are made, or one that no memory could hold.

    Example:
        >>> with unfilled(2) as draws:
        ...     table = normal(generator(0), (10**6, 10**6))
        >>> table.shape, len(draws)
        ((1000000, 1000000), 1)
    """
    collected = _Unfilled(most)
    token = _unfilled.set(collected)
    try:
        yield collected.draws
    finally:
        _unfilled.reset(token)


def made(shape: tuple[int, ...], draw: Draw) -> Parameter:
    """A float32 parameter of the values that `draw` makes, now or, in `unfilled`, later."""
    collected = _unfilled.get()
    if collected is not None:
        return collected.parameter(shape, draw)
    return Parameter(draw())


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
    if is_integer(rng) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise refused(
        "rng", f"initial values cannot be drawn from {rng!r}",
        "None, a seed >= 0, or a np.random.Generator",
        "np.random.default_rng(seed); db.seed(seed) decides for all models",
    )  # fmt: skip


def uniform(rng: np.random.Generator, shape: tuple[int, ...], fan: int) -> Parameter:
    """A float32 parameter uniform in ±1/√fan, PyTorch's choice for linear and recurrent layers."""
    bound = 1 / math.sqrt(fan) if fan > 0 else 0.0
    return made(shape, lambda: rng.uniform(-bound, bound, shape).astype(np.float32))


def uniform_pair(
    rng: Rng, shape: tuple[int, ...], outputs: int, bias: bool
) -> tuple[Parameter, Parameter | None]:
    """A weight and, if there is one, a bias (outputs,), `uniform` by what stands behind axis 0."""
    rng, fan = generator(rng), math.prod(shape[1:])
    return uniform(rng, shape, fan), uniform(rng, (outputs,), fan) if bias else None


def normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> Parameter:
    """A float32 parameter from a normal distribution of mean 0 and deviation `scale`."""
    return made(shape, lambda: (scale * rng.standard_normal(shape)).astype(np.float32))


def glorot(rng: np.random.Generator, shape: tuple[int, int]) -> Parameter:
    """A float32 matrix (O, I) uniform in ±√(6 / (I + O)).

    Source: Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural
        networks", equation 16.
    """
    bound = math.sqrt(6 / sum(shape)) if sum(shape) > 0 else 0.0
    return made(shape, lambda: rng.uniform(-bound, bound, shape).astype(np.float32))


def ones(size: int) -> Parameter:
    """A float32 vector of ones."""
    return made((size,), lambda: np.ones(size, np.float32))


def zeros(size: int) -> Parameter:
    """A float32 vector of zeros."""
    return made((size,), lambda: np.zeros(size, np.float32))
