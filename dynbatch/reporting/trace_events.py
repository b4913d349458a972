"""`to_trace()`: the timeline of runs as Chrome trace events, which Perfetto opens."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.reporting.reasons import apart as batches_apart
from dynbatch.reporting.reasons import notes, signature_text
from dynbatch.reporting.run_record import RunRecord

HOST = -1

Event = dict[str, object]


class Bar(NamedTuple):
    """An interval of time, in seconds, and its work: a batch step, or HOST."""

    what: str
    step: int
    begin: float
    end: float


def bars(record: RunRecord) -> list[Bar]:
    """Host work and batches of all runs by start, in seconds since the first run began."""
    if not record.runs:
        return []
    start = record.runs[0].begin
    unsorted = []
    for run in record.runs:
        unsorted.append(Bar("plan", HOST, run.begin - start, run.planned - start))
        unsorted.append(Bar("place in memory", HOST, run.planned - start, run.placed - start))
    for number, row in enumerate(record.rows):
        for what, begin, end in row.spans:
            unsorted.append(Bar(what, number, begin - start, end - start))
    return sorted(unsorted, key=lambda bar: (bar.begin, bar.end))


def thread_bars(record: RunRecord) -> list[list[Bar]]:
    """The work that each further thread took from the one that ran the graph, by its start.

    A batch that was under way then is taken for it. Batches that run side by side are parts of one
    job, in the order in which they began.
    """
    if not record.runs or not record.threads:
        return []
    start = record.runs[0].begin
    batches = [bar for bar in bars(record) if bar.step != HOST]
    bars_of: dict[int, list[Bar]] = {}
    under_way: list[Bar] = []
    number = 0
    for span in sorted(record.threads, key=lambda span: span.begin):
        begin, end = span.begin - start, span.end - start
        while number < len(batches) and batches[number].begin <= begin:
            under_way.append(batches[number])
            number += 1
        under_way = [bar for bar in under_way if bar.end >= begin]
        if under_way:
            bar = under_way[span.part % len(under_way)]
            bars_of.setdefault(span.thread, []).append(Bar(bar.what, bar.step, begin, end))
    return list(bars_of.values())


def lanes(in_order: Sequence[Bar]) -> list[int]:
    """The first free lane for each bar, so that bars of a lane do not overlap.

    Args:
        in_order: bars by begin. Batches that ran at once in several threads get different lanes.
    """
    ends: list[tuple[float, int]] = []
    free: list[int] = []
    numbers = []
    for bar in in_order:
        while ends and ends[0][0] <= bar.begin:
            heapq.heappush(free, heapq.heappop(ends)[1])
        lane = heapq.heappop(free) if free else len(ends)
        heapq.heappush(ends, (bar.end, lane))
        numbers.append(lane)
    return numbers


def signatures(record: RunRecord) -> list[int]:
    """The signature of each batch step of all runs."""
    return [row.signature for row in record.rows]


def trace(record: RunRecord) -> str:
    """A JSON object of trace events: thread 0 is the host, the others are lanes of batches.

    Source: Trace Event Format; "X" is a complete event, times are in microseconds.
    """
    known = record.known
    all_bars = bars(record)
    batches = [bar for bar in all_bars if bar.step != HOST]
    beside = notes(batches_apart(record))
    signature_of = signatures(record)
    lane_of = lanes(batches)
    threads = ["host", *[f"batches {lane}" for lane in range(max(lane_of, default=-1) + 1)]]
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "dynbatch"}}
    ]
    for thread, name in enumerate(threads):
        event: Event = {
            "ph": "M",
            "name": "thread_name",
            "pid": 1,
            "tid": thread,
            "args": {"name": name},
        }
        events.append(event)
    for bar in [bar for bar in all_bars if bar.step == HOST]:
        events.append(_event(bar, bar.what, 0, {}))
    for bar, lane in zip(batches, lane_of, strict=True):
        row = record.rows[bar.step]
        arguments: Event = {
            "step": bar.step,
            "signature": signature_text(signature_of[bar.step], known),
            "nodes": row.nodes,
            "rows": row.rows,
            "width": row.width or "mixed",
            "bytes copied": row.copied_bytes,
            "prepare ms": row.prepare_seconds * 1e3,
            "apart from": beside.get(bar.step, []),
        }
        if row.inside:
            arguments["batches of calls"] = [f"{name} {count}" for name, count in row.inside]
            arguments["lower bound"] = row.lower_bound
        events.append(_event(bar, row.kind, 1 + lane, arguments))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _event(bar: Bar, name: str, thread: int, arguments: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": "host" if bar.step == HOST else bar.what,
        "ts": bar.begin * 1e6,
        "dur": (bar.end - bar.begin) * 1e6,
        "pid": 1,
        "tid": thread,
        "args": arguments,
    }
