"""Every test of a kernel runs in every way that `tests/cuda/devices.py` knows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.cuda import devices


@pytest.fixture(params=devices.ways())
def cupy(request: pytest.FixtureRequest) -> Iterator[Any]:
    with devices.device(request.param) as module:
        yield module


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> Any:
    return np.dtype(request.param)
