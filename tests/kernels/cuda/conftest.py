"""Every test of a kernel runs in every way that `tests/cuda/devices.py` knows.

`make test-cuda` tries each case once: half of them under the checker in float32, the others in a
shuffled order in float64. All other ways and types are `exhaustive`.
"""

import re
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from tests.cuda import devices

QUICK = {"checked": np.float32, "shuffled": np.float64}


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for call in metafunc._calls:
        way = call.params.get("cupy", "gpu")
        if way == "gpu":
            continue
        case = f"{metafunc.definition.nodeid}[{call.id}]"
        case = re.sub("checked|backward|shuffled|float32|float64", "", case)
        chosen = ("checked", "shuffled")[crc32(case.encode()) % 2]
        if way != chosen or call.params.get("dtype", QUICK[way]) is not QUICK[way]:
            call.marks.append(pytest.mark.exhaustive.mark)


@pytest.fixture(params=devices.ways())
def cupy(request: pytest.FixtureRequest) -> Iterator[Any]:
    with devices.device(request.param) as module:
        yield module


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> Any:
    return np.dtype(request.param)
