"""Positions of tokens: rotary embeddings, sinusoids, and the tables of angles that both read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.kernels.frequencies import MOST_POSITIONS, Scaling
from dynbatch.kernels.move import row_index
from dynbatch.kernels.runtime.dispatch import HOST, kernel
from dynbatch.kernels.segment import blocks
from dynbatch.kernels.unary.arithmetic import negative
from dynbatch.recent import Recent

FEWEST_ROWS = 64


class Angles(NamedTuple):
    """Angles position · f_i with the frequencies f_i = base^(-2i / width), i = 0, 1, … < width / 2.

    Args:
        width:   features that the angles are for; of an odd number one has no partner.
        scaling: of the frequencies; None for these as they are.
    """

    width: int
    base: float
    scaling: Scaling | None = None

    @property
    def longest(self) -> int:
        """Positions lie below it."""
        return MOST_POSITIONS if self.scaling is None else self.scaling.longest

    def frequencies(self) -> Array:
        """(width / 2,) float64, the odd one included."""
        numbers: Array = self.base ** (-np.arange(0, self.width, 2) / self.width)
        return numbers if self.scaling is None else self.scaling.frequencies(numbers, self.base)

    def table(self, positions: int, dtype: DType) -> Array:
        """Cosine and sine of all angles at `positions` or more, times the scaling's amplitude.

        (P, 2, width / 2).
        It is computed in float64, once for each power of two, and kept.
        """
        rows = max(FEWEST_ROWS, 1 << (positions - 1).bit_length())
        key = self, rows, dtype.char
        known = TABLES.find(key)
        if known is None:
            angles = np.outer(np.arange(rows), self.frequencies())
            known = np.stack((np.cos(angles), np.sin(angles)), axis=1)
            if self.scaling is not None:
                known *= self.scaling.amplitude
            known = known.astype(dtype)
            known = TABLES.enter(key, known)
        return known


TABLES: Recent[tuple[Angles, int, str], Array] = Recent(8)


def longest(offsets: Array, starts: Array) -> int:
    """One more than the last position."""
    return int((starts + np.diff(offsets)).max(initial=0))


@kernel(c=HOST, cuda=HOST)
def rotary(
    x: Array, offsets: Array, starts: Array, angles: Angles, heads: int, is_interleaved: bool,
    is_inverse: bool, out: Array,
) -> None:  # fmt: skip
    """Turn pairs of features (a, b) of each head to (a cos - b sin, b cos + a sin) of their angle.

    Args:
        x:              (N, heads · d).
        offsets:        (K + 1,) where each run of neighbouring positions begins, from 0 to N.
        starts:         (K,) the position of the first row of each run.
        angles:         of the first `angles.width` features of each head; the others stay.
        is_interleaved: pairs are (0, 1), (2, 3), …; else (0, w/2), (1, w/2 + 1), … of w features.
        is_inverse:     turn back, which is the gradient.
        out:            (N, heads · d), overwritten; may be `x`.

    Memory: twice the rotated features of a block of rows, and the positions.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.
    """
    half = angles.width // 2
    table = angles.table(longest(offsets, starts), x.dtype)
    positions = row_index(starts, np.diff(offsets))
    if is_interleaved:
        sides = [slice(side, angles.width, 2) for side in (0, 1)]
    else:
        sides = [slice(0, half), slice(half, angles.width)]
    for part in blocks(*x.shape):
        turns = table[positions[part]]
        cos, sin = turns[:, :1], turns[:, 1:]
        if is_inverse:
            negative.forward(sin, sin)
        source, made = [
            array[part].reshape(len(turns), heads, x.shape[1] // heads) for array in (x, out)
        ]
        if made.shape[2] > angles.width and not np.may_share_memory(source, made):
            made[..., angles.width :] = source[..., angles.width :]
        (a, b), (new_a, new_b) = [[array[..., side] for side in sides] for array in (source, made)]
        a_sin, b_sin = a * sin, b * sin
        np.multiply(a, cos, out=new_a)
        np.subtract(new_a, b_sin, out=new_a)
        np.multiply(b, cos, out=new_b)
        np.add(new_b, a_sin, out=new_b)


@kernel(4, cuda=HOST)
def sinusoidal(
    offsets: Array, starts: Array, angles: Angles, is_interleaved: bool, out: Array
) -> None:
    """out = sine and cosine of the angles of each row's position.

    Args:
        offsets, starts: as `rotary` takes them.
        is_interleaved:  sine and cosine of each frequency in turn; else all sines come first.
        out:             (N, angles.width), overwritten.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    table = angles.table(longest(offsets, starts), out.dtype)
    positions = row_index(starts, np.diff(offsets))
    sines, cosines = (angles.width + 1) // 2, angles.width // 2
    for part in blocks(*out.shape):
        turns, rows = table[positions[part]], out[part]
        if is_interleaved:
            rows[:, 0::2], rows[:, 1::2] = turns[:, 1], turns[:, 0, :cosines]
        else:
            rows[:, :sines], rows[:, sines:] = turns[:, 1], turns[:, 0, :cosines]
