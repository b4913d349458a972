"""`Moment`: what a mini-batch's loss changes before its update: generators and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.arrays import copy, snapshot
from dynbatch.parameter import ModelBuffer
from dynbatch.train.random_states import RandomStates


@dataclass(frozen=True, slots=True)
class Moment:
    """Random states, and copies of a model's buffers, where these are.

    A run that is interrupted, or whose gradient is not finite, goes back to the moment before.
    """

    random: RandomStates
    buffers: Sequence[tuple[ModelBuffer, Array]]

    @classmethod
    def now(cls, buffers: Sequence[ModelBuffer], generator: np.random.Generator | None) -> Moment:
        copies = [(buffer, snapshot(buffer.value)) for buffer in buffers]
        return cls(RandomStates.now(generator), copies)

    def restore(self, generator: np.random.Generator | None) -> None:
        self.random.restore(generator)
        self.restore_buffers()

    def restore_buffers(self) -> None:
        for buffer, values in self.buffers:
            buffer.device.use()
            copy(values, buffer.value)
