"""Scalings of rotary frequencies, with which a model reads longer texts than it was trained on.

Each has `frequencies(plain, base)`, which changes the frequencies f_i = base^(-2i / width). Cosine
and sine are multiplied by its `amplitude`, and positions lie below its `longest`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array

MOST_POSITIONS = 1 << 20
"""Positions lie below it: a table of 64 frequencies then takes 512 MiB in float32."""


class LinearScaling(NamedTuple):
    """All frequencies divided by the factor."""

    factor: float
    amplitude: float = 1.0
    longest: int = MOST_POSITIONS

    def frequencies(self, plain: Array, base: float) -> Array:
        return plain / self.factor


class DynamicScaling(NamedTuple):
    """Frequencies as they are, for the texts that a model was trained on.

    In longer ones the base would grow with the text, and turn every key anew.
    """

    factor: float
    longest: int
    amplitude: float = 1.0

    def frequencies(self, plain: Array, base: float) -> Array:
        return plain


class Llama3Scaling(NamedTuple):
    """Low frequencies divided by the factor, high ones kept, with a ramp in between.

    With n = length · f / 2π turns within the original length, those of n < low are divided, those
    of n > high stay; between the two it is (1 - s) f / factor + s f, s = (n - low) / (high - low).
    """

    factor: float
    low: float
    high: float
    length: float
    amplitude: float = 1.0
    longest: int = MOST_POSITIONS

    def frequencies(self, plain: Array, base: float) -> Array:
        turns = self.length * plain / (2 * np.pi)
        return _mixed(
            plain, self.factor, np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        )


class YarnScaling(NamedTuple):
    """A ramp like Llama 3's, which goes by the number i of a frequency.

    It begins where a frequency makes `fast` turns within the original length, and ends where it
    makes `slow`; `rounds` takes these to whole numbers.
    """

    factor: float
    fast: float
    slow: float
    length: float
    rounds: bool
    amplitude: float
    longest: int = MOST_POSITIONS

    def frequencies(self, plain: Array, base: float) -> Array:
        width = 2 * len(plain)
        first, last = [
            width * math.log(self.length / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        ]
        if self.rounds:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        last += 0.001 * (first == last)
        divided = np.clip((np.arange(len(plain)) - first) / (last - first), 0, 1)
        return _mixed(plain, self.factor, 1 - divided)


Scaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


def _mixed(plain: Array, factor: float, kept: Array) -> Array:
    mixed: Array = (1 - kept) * plain / factor + kept * plain
    return mixed
