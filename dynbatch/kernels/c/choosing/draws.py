"""`kernels.choosing.draws` in C."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.calls import print_call
from dynbatch.kernels.runtime.dispatch import ROWS

_cut_rows = print_call("choosing/draws.c", "cut_rows", ROWS)


def cut_rows(x: Array, cuts: Array) -> Any:
    scratch = np.empty_like(x if (cuts[:, 2:] != (1, 0)).any() else x[:0])
    return _cut_rows(x, cuts, scratch)
