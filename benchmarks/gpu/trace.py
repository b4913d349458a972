"""Work of the device, as CUPTI recorded it through PyTorch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace that occupy the device
_TOP = 12
_NAME_LENGTH = 90


@dataclass(frozen=True)
class DeviceWork:
    """Sums over one recording.

    Args:
        busy_seconds: during which at least one kernel, copy or fill ran.
        span_seconds: from the begin of the first to the end of the last.
        launches:     kernels.
        longest:      name, seconds and launches of those that took most, longest first.
    """

    busy_seconds: float
    span_seconds: float
    launches: int
    longest: tuple[tuple[str, float, int], ...]


def device_work(function: Callable[[], Any]) -> DeviceWork | None:
    """Record `function`, which must wait for the device. None where nothing can be recorded."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recording:
        function()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recording.export_chrome_trace(str(path))
        return summary(json.loads(path.read_text())["traceEvents"])


def summary(events: Iterable[Mapping[str, Any]]) -> DeviceWork | None:
    """A summary of a Chrome trace, whose times are microseconds; None without any events."""
    work = [e for e in events if e.get("ph") == "X" and e.get("cat") in KINDS]
    if not work:
        return None
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in work)
    busy, end = 0.0, spans[0][0]
    for begin, until in spans:
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    taken: dict[str, list[float]] = defaultdict(list)
    for event in work:
        taken[str(event["name"])[:_NAME_LENGTH]].append(float(event["dur"]))
    longest = sorted(taken, key=lambda name: -sum(taken[name]))[:_TOP]
    return DeviceWork(
        busy_seconds=busy / 1e6,
        span_seconds=(end - spans[0][0]) / 1e6,
        launches=sum(event["cat"] == "kernel" for event in work),
        longest=tuple((name, sum(taken[name]) / 1e6, len(taken[name])) for name in longest),
    )
