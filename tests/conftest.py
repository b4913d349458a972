"""Settings of the whole test suite."""

from collections.abc import Iterator
from typing import Any

import pytest

import dynbatch as db
from dynbatch.kernels import segment
from tests.cuda import devices
from tests.poison import poisoned_memory

try:
    from hypothesis import settings
except ImportError:  # then only the files that need it cannot run
    pass
else:
    # No test depends on how fast the machine is. In CI, hypothesis repeats the same examples.
    settings.register_profile("dynbatch", settings(), deadline=None)
    settings.load_profile("dynbatch")


@pytest.fixture
def dead_memory_is_nan() -> Iterator[None]:
    """Whatever of an arena is not alive holds NaN during the test."""
    with poisoned_memory():
        yield


@pytest.fixture(params=[7, segment.BLOCK], ids=["small blocks", "whole"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy kernels that work in blocks make several of a few numbers, and then one of all."""
    monkeypatch.setattr(segment, "BLOCK", request.param)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """After the test, dynbatch has as many threads as before."""
    before = db.num_threads()
    yield
    db.set_num_threads(before)


@pytest.fixture
def one_thread(same_threads: None) -> None:
    """During the test, dynbatch has one thread."""
    db.set_num_threads(1)


@pytest.fixture
def cuda() -> Iterator[Any]:
    """What dynbatch takes for CuPy: a GPU where there is one, else the simulator in one way."""
    with devices.device("gpu" if devices.has_gpu() else "shuffled") as module:
        yield module


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return str(request.param)
