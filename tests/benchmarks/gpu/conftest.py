"""Every part at tiny sizes."""

import gc
import sys

import pytest

from tests.benchmarks.gpu.small import small_cases


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(gc, "unfreeze", lambda: None)  # what the test suite froze stays so
    with small_cases():
        yield


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="the peers are PyTorch's")
    threads = torch.get_num_threads()
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture
def stand_in_python(tmp_path):
    """Python where the stand-in is the card."""
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m tests.benchmarks.gpu.on_stand_in {path} "$@"\n'
    )
    path.chmod(0o755)
    return path
