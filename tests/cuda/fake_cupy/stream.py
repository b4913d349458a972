"""Streams, events and devices of the stand-in.

Work on a device is a chain of operations for each stream. They run at once, or, where
`settings.asynchronous` is set, as late as CUDA allows: when the host waits for them. A buffer that
is written again too early, or a stream that does not wait for another, then gives wrong numbers.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_handles = itertools.count(1 << 20)


@dataclass
class Settings:
    """The behaviour of the simulated device.

    order:        of threads: 0 forward, 1 backward, else a seed.
    checked:      kernels run under the race and memory checker.
    contracted:   multiplications and additions are fused, as a GPU's compiler does.
    asynchronous: work waits until the host asks for its result.
    memory_bytes: what the device has.
    devices:      how many there are.
    """

    order: int = 0
    checked: bool = False
    contracted: bool = False
    asynchronous: bool = False
    memory_bytes: int = 1 << 30
    devices: int = 1


settings = Settings()


@dataclass(eq=False)
class Operation:
    """One piece of device work, after all of `after`."""

    work: Callable[[], None] | None
    after: list[Operation] = field(default_factory=list)

    def finish(self) -> None:
        """Run what this needs, then this. Iterative: chains are long."""
        pending = [self]
        while pending:
            waiting = [other for other in pending[-1].after if other.work is not None]
            if waiting:
                pending += waiting
                continue
            operation = pending.pop()
            operation.after.clear()
            operation._run()

    def _run(self) -> None:
        """Do the work, then what waited for its end."""
        work, self.work = self.work, None
        if work is None:
            return
        _running.append(self)
        try:
            work()
        finally:
            _running.pop()
        _act()


one_at_a_time = threading.Condition()
"""Held by the thread that uses devices, where several do; the simulator wants one at a time."""

_running: list[Operation] = []
_at_the_end: list[Callable[[], None]] = []
_acting: list[bool] = []


def between_operations(action: Callable[[], None]) -> None:
    """Do this now; while an operation runs, as the collector may come at any moment, behind it."""
    _at_the_end.append(action)
    _act()


def _act() -> None:
    """Do what waits, one after the other: an action may itself run operations and wait for them.

    Where another thread uses devices, as when this one ends and its memory is free, that does it.
    """
    if _running or _acting or not one_at_a_time.acquire(blocking=False):
        return
    _acting.append(True)
    try:
        while _at_the_end:
            _at_the_end.pop(0)()
    finally:
        _acting.pop()
        one_at_a_time.release()


class Stream:
    """`cupy.cuda.Stream`. The null stream waits for all blocking streams, and they for it."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        if ptds:
            raise NotImplementedError("per-thread default streams")
        self.ptr = 0 if null else next(_handles)
        self.device_id = current_device()
        self.is_non_blocking = non_blocking
        self._last = Stream.null._last if null else Operation(None)
        self._previous: list[Stream] = []
        self._captured: list[Callable[[], None]] | None = None
        _all_streams[self.ptr] = self

    def begin_capture(self, mode: int | None = None) -> None:
        if not self.is_non_blocking:
            raise RuntimeError("cudaErrorStreamCaptureImplicit: the null stream would wait for it")
        if self._captured is not None:
            raise RuntimeError("cudaErrorIllegalState: the stream is capturing")
        self._captured = []

    def end_capture(self) -> Graph:
        captured, self._captured = self._captured, None
        if captured is None:
            raise RuntimeError("cudaErrorIllegalState: the stream is not capturing")
        return Graph(captured)

    def is_capturing(self) -> bool:
        return self._captured is not None

    def enqueue(self, work: Callable[[], None], *, is_kernel: bool = False) -> None:
        """Enqueue a device operation of the stand-in (not in CuPy)."""
        if is_kernel and self.device_id != current_device():
            raise RuntimeError(f"cudaErrorInvalidResourceHandle: a stream of GPU {self.device_id}")
        if self._captured is not None:
            if not is_kernel:  # copies too, in CUDA; here nobody captures one
                raise RuntimeError("cudaErrorStreamCaptureUnsupported: no kernel")
            self._captured.append(work)
            return
        after = [self._last]
        if self.ptr == 0:
            own = [s for s in _all_streams.values() if s.device_id == self.device_id]
            after += [s._last for s in own if not s.is_non_blocking]
        elif not self.is_non_blocking:
            after.append(_null_stream(self.device_id)._last)
        self._last = Operation(work, after)
        if not settings.asynchronous:
            self._last.finish()

    def synchronize(self) -> None:
        _require_no_capture()
        self._finish()

    def _finish(self) -> None:
        """Do all work that was enqueued, whatever is captured."""
        if self._captured is None:
            self.enqueue(_nothing)  # which on the null stream comes after all blocking streams
        self._last.finish()

    @property
    def done(self) -> bool:
        return self._last.work is None

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self._last = Operation(_nothing, [self._last, event._operation])

    def use(self) -> Stream:
        if self.device_id != current_device():
            raise RuntimeError(f"the stream is of GPU {self.device_id}, which is not current")
        _current.__dict__.setdefault("streams", {})[self.device_id] = self
        return self

    def __enter__(self) -> Stream:
        self._previous.append(get_current_stream())
        return self.use()

    def __exit__(self, *_: Any) -> None:
        self._previous.pop().use()


class Graph:
    """`cupy.cuda.Graph`: kernels that a stream has captured, with the arguments of then."""

    def __init__(self, captured: list[Callable[[], None]]) -> None:
        self._captured = captured

    def launch(self, stream: Stream | None = None) -> None:
        for work in self._captured:
            (stream or get_current_stream()).enqueue(work, is_kernel=True)


def _nothing() -> None:
    pass


def _require_no_capture() -> None:
    if any_capturing():
        raise RuntimeError("cudaErrorStreamCaptureUnsupported: the host would wait")


def any_capturing() -> bool:
    """Not in CuPy: whether some stream is capturing."""
    return any([stream.is_capturing() for stream in _all_streams.values()])


class Event:
    """`cupy.cuda.Event`."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self._operation = Operation(None)
        self.disable_timing = disable_timing
        self._device_id = current_device()

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or get_current_stream()
        if stream.device_id != self._device_id:  # CUDA takes a null stream for the current GPU's
            raise RuntimeError("cudaErrorInvalidResourceHandle: event and stream of two GPUs")
        stream.enqueue(_nothing)
        self._operation = stream._last

    def synchronize(self) -> None:
        self._operation.finish()

    @property
    def done(self) -> bool:
        return self._operation.work is None


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds; the simulator measures no time."""
    if start_event.disable_timing or end_event.disable_timing:
        raise ValueError("events made with disable_timing=True have no time")
    if not (start_event.done and end_event.done):
        raise RuntimeError("cudaErrorNotReady")
    return 0.0


def get_current_stream(device_id: int = -1) -> Stream:
    device = current_device() if device_id < 0 else device_id
    found = _current.__dict__.get("streams", {}).get(device)
    return _null_stream(device) if found is None else found


def stream_of(handle: int) -> Stream:
    """The stream with this `ptr`; 0 is that of the current device."""
    return _all_streams[handle] if handle else _null_stream(current_device())


def synchronize_all() -> None:
    for stream in list(_all_streams.values()):
        stream._finish()


class Device:
    """`cupy.cuda.Device`: there are `settings.devices`, and one is a thread's current one."""

    def __init__(self, device: int | None = None) -> None:
        self.id = current_device() if device is None else device
        if not 0 <= self.id < settings.devices:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._previous: list[int] = []
        self.compute_capability = "90"
        self.attributes = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448}

    def use(self) -> Device:
        _current.device = self.id
        return self

    def synchronize(self) -> None:
        _require_no_capture()
        synchronize_all()

    def __enter__(self) -> Device:
        self._previous.append(current_device())
        return self.use()

    def __exit__(self, *_: Any) -> None:
        _current.device = self._previous.pop()


_current = threading.local()
_all_streams: dict[int, Stream] = {}


def current_device() -> int:
    """`cupy.cuda.runtime.getDevice`: each thread begins with 0."""
    return getattr(_current, "device", 0)


def _null_stream(device: int) -> Stream:
    """The null stream of a device: all have the handle 0."""
    if -device not in _all_streams:
        stream = Stream.__new__(Stream)
        stream.ptr, stream.device_id, stream.is_non_blocking = 0, device, False
        stream._last, stream._previous = Operation(None), []
        stream._captured = None
        _all_streams[-device] = stream
    return _all_streams[-device]


Stream.null = _null_stream(0)
