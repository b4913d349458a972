"""Running sums within segments (see `kernels.segment`)."""

from __future__ import annotations

import itertools

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import SEGMENTS, kernel


@kernel(cuda=SEGMENTS, reduced=())
def cumsum_segments(x: Array, offsets: Array, backwards: bool, out: Array) -> None:
    """out[n] = the sum of the segment's rows up to row n, or from row n on if `backwards`.

    Elements are added in order, in the dtype of x: the bits do not depend on other segments.

    Args:
        backwards: whether the sums begin at the last row: the gradient of those that do not.
        out:       (N, D), overwritten; may be `x`.
    """
    turn = slice(None, None, -1 if backwards else 1)
    lengths = np.diff(offsets)
    if lengths.size and (lengths == lengths[0]).all():
        shape = (lengths.size, int(lengths[0]), x.shape[1])
        turned = (x.reshape(shape)[:, turn], out.reshape(shape)[:, turn])
        np.cumsum(turned[0], axis=1, out=turned[1])
        return
    for start, end in itertools.pairwise(offsets.tolist()):
        np.cumsum(x[start:end][turn], axis=0, out=out[start:end][turn])
