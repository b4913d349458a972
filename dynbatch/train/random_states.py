"""`RandomStates`: the states of a run's generators between two updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynbatch import random


@dataclass(frozen=True, slots=True)
class RandomStates:
    """States of `dynbatch.random` and of a NumPy generator, if there is one."""

    graph_random: dict[str, int]
    random_state: Mapping[str, Any] | None

    @classmethod
    def now(cls, generator: np.random.Generator | None) -> RandomStates:
        state = None if generator is None else generator.bit_generator.state
        return cls(random.get_state(), state)

    def restore(self, generator: np.random.Generator | None) -> None:
        random.set_state(self.graph_random)
        if generator is not None and self.random_state is not None:
            generator.bit_generator.state = self.random_state
