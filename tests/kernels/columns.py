"""Some columns of rows of many widths: so the parts of a cell's values lie."""

from typing import Any

import numpy as np


def columns(dtype: Any, seed: int) -> list[Any]:
    """The last column, and the last two, of rows of up to 16."""
    generator = np.random.default_rng(seed)
    rows = [generator.uniform(0.5, 1.5, (7, width)).astype(dtype) for width in range(1, 17)]
    return [array[:, -wanted:] for array in rows for wanted in (1, 2) if wanted <= array.shape[1]]
