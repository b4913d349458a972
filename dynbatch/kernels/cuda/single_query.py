"""One query a sentence: the kernels of any number of queries give its keys to a block's warps."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.kernels.attention import Packed, Wanted
from dynbatch.kernels.cuda.attention import attend, attend_backward

Array = np.ndarray[Any, np.dtype[Any]]


def dot_attention(
    packed: Packed, scales: Array, sentences: Array, out: Any, log_sums: Any, scratch: Any = None
) -> None:
    """out = Σ_j p_j v_j,  p_j = softmax_j(scale · q · k_j): one row a sentence.

    Neither `sentences` nor scratch is read.
    """
    attend(packed, 1, scales, (), out, log_sums)


def dot_attention_backward(
    packed: Packed, scales: Array, sentences: Array,
    log_sums: Any, dout: Any, wanted: Wanted, scratch: Any = None,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`, in one launch. Neither `sentences` nor scratch is read."""
    attend_backward(packed, 1, scales, (), log_sums, dout, wanted)
