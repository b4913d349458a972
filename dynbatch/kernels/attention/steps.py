"""`StepScores`: attention of a scan's steps to one memory, by the device that runs them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.kernels.c.attention import additive, single_query
from dynbatch.kernels.c.attention.steps import AttentionSteps as AttentionSteps


class StepScores(NamedTuple):
    """The scores of one query a sentence in each step, which sees all keys.

    vector: (D,) of additive scores; None for dot products.
    scale:  of dot products.
    """

    vector: Array | None
    scale: float = 1.0

    def in_c(self, dtype: DType) -> AttentionSteps | None:
        """The runner of the steps in C; None where no C is used."""
        library = single_query.library if self.vector is None else additive.library
        functions = library.functions(dtype)
        if functions is None:
            return None
        if self.vector is None:
            return AttentionSteps(functions, "dot", np.full(1, self.scale, dtype))
        return AttentionSteps(functions, "additive", self.vector)
