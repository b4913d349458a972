"""Every test of a kernel runs in every way that `tests/cuda/devices.py` knows.

Under the checker in float32 and in a shuffled order in float64 each time; the rest is `exhaustive`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.cuda import devices

QUICK = {"checked": np.float32, "shuffled": np.float64}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        way = given.get("cupy", "gpu")
        if way != "gpu" and given.get("dtype", QUICK.get(way)) is not QUICK.get(way, ""):
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(params=devices.ways())
def cupy(request: pytest.FixtureRequest) -> Iterator[Any]:
    with devices.device(request.param) as module:
        yield module


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> Any:
    return np.dtype(request.param)
