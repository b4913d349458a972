"""On what the tests of kernels run: the stand-in in several ways, and a GPU where there is one."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dynbatch import backend
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.runtime.staging import Staging, Upload
from tests.cuda import fake_cupy, simulator
from tests.cuda.fake_cupy import memory

# Under the checker first: it names a fault that would end the process in a plain run.
SIMULATED: dict[str, dict[str, Any]] = {
    "checked": {"checked": True},
    "backward": {"order": 1, "contracted": True},
    "shuffled": {"order": 7, "asynchronous": True},
}


def has_gpu() -> bool:
    return importlib.util.find_spec("cupy") is not None and _real_cupy().cuda.is_available()


def ways() -> list[str]:
    """The keys of SIMULATED, and "gpu" where CuPy finds one."""
    return [*SIMULATED, *(["gpu"] if has_gpu() else [])]


@contextmanager
def device(way: str) -> Iterator[Any]:
    """The module that dynbatch takes for CuPy inside, or a skip that says what is missing."""
    if way == "gpu":
        yield _real_cupy()
        return
    if why := simulator.missing():
        pytest.skip(why)
    with simulated(**SIMULATED[way]), backend.stand_in(fake_cupy), tables_end_with_their_flush():
        try:
            yield fake_cupy
        finally:
            queue().discard()


@contextmanager
def simulated(**settings: Any) -> Iterator[None]:
    """The stand-in with other settings, and with its default ones afterwards."""
    try:
        for name, value in settings.items():
            setattr(fake_cupy.settings, name, value)
        yield
        fake_cupy.cuda.runtime.deviceSynchronize()
    finally:
        for name, value in vars(type(fake_cupy.settings)()).items():
            setattr(fake_cupy.settings, name, value)


@contextmanager
def tables_end_with_their_flush() -> Iterator[None]:
    """Inside, a launch that is given the address of a table of an earlier flush is an error.

    A staging buffer is used again some uploads later only; until then what it holds would be right.
    """
    upload, done = Staging.upload, Staging.done
    slots: dict[Staging, tuple[int, int]] = {}

    def upload_anew(self: Staging) -> Upload:
        found = upload(self)
        if found.copied and self._cupy is fake_cupy:  # and of no dry run
            memory.revive(found.base)
            slots[self] = (found.base, found.copied)
        return found

    def done_and_over(self: Staging) -> None:
        if self in slots:
            memory.retire(*slots.pop(self))
        done(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "upload", upload_anew)
        patch.setattr(Staging, "done", done_and_over)
        yield


@contextmanager
def waits() -> Iterator[list[Any]]:
    """The events and streams of the stand-in that the host waits for inside, with work left.

    Memory of the stand-in that is freed waits too: keep what is used inside.
    """
    fake_cupy.cuda.Device().synchronize()
    found: list[Any] = []
    kinds = (fake_cupy.cuda.Event, fake_cupy.cuda.Stream)
    originals = [kind.synchronize for kind in kinds]

    def watched(original: Any) -> Any:
        def synchronize(self: Any) -> None:
            if not self.done:
                found.append(self)
            original(self)

        return synchronize

    for kind, original in zip(kinds, originals, strict=True):
        kind.synchronize = watched(original)
    try:
        yield found
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.synchronize = original


def _real_cupy() -> Any:
    return importlib.import_module("cupy")
