"""The task: close brackets that stand open, the last one first, and then end.

( [ [ (    is answered by    ) ] ] ) .
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array

TOKENS = "([)]."
OPENING = 2
"""The first so many tokens open a bracket; each is closed by the token so many places behind it."""
END = TOKENS.index(".")


def prompt(rng: np.random.Generator, longest: int) -> Array:
    """From 1 to `longest` brackets that stand open, (T,) int64."""
    return rng.integers(OPENING, size=rng.integers(1, longest + 1))


def answer(opened: Array) -> list[int]:
    """The only right answer.

    Example:
        >>> "".join([TOKENS[k] for k in answer(np.array([0, 1]))])
        ']).'
    """
    return [*(opened[::-1] + OPENING).tolist(), END]


def reward(opened: Array, written: Sequence[int]) -> float:
    """The share of the right answer before the first mistake, from 0 to 1.

    Example:
        >>> [reward(np.array([0, 1]), written) for written in ([3, 2, 4], [3, 4], [2, 2, 4])]
        [1.0, 0.3333333333333333, 0.0]
    """
    right = answer(opened)
    pairs = zip(right, written, strict=False)
    mistakes = [k for k, (one, other) in enumerate(pairs) if one != other]
    return min([len(right), len(written), *mistakes]) / len(right)
