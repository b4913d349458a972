"""Constants of NumPy's code: it takes longer to convert a number than to add 64 of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dynbatch.backend import Array, DType


class Constants(dict[DType, list[Array]]):
    """Numbers as arrays (), by dtype."""

    def __init__(self, values: Iterable[float]) -> None:
        super().__init__()
        self._values = tuple(values)

    def __missing__(self, dtype: DType) -> list[Array]:
        return self.setdefault(dtype, [np.array(value, dtype) for value in self._values])
