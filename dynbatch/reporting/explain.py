"""`explain()`: what ran together, how big, how long, and what ran apart, in 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from dynbatch.batcher.execution.record import RunRecord, StepRecord
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.reporting.backends import without_c
from dynbatch.reporting.profile import flops_per_second
from dynbatch.reporting.reasons import Apart, apart, names_text, numbers_text

WIDTH = 100
"""No line is longer."""

SHOWN = 24
"""The most reasons below the table; the page has them all."""

MANY_ALIKE = 4
"""Pairs of one node type and reason that are told in one line."""

HEADS = (
    "step", "nodes", "rows", "width", "copied", "launches", "forward ms", "backward ms",
    "GFLOP/s",
)  # fmt: skip
INDENT = "      "


def report(record: RunRecord, block_notes: Mapping[tuple[str, str], int]) -> str:
    """The batches of all runs as a table below the lower bound, and reasons below the table.

    Args:
        block_notes: calls by the block's name and what is to be said of them.
    """
    statistics = record.statistics
    times = "host's times, no GPU is waited for" if record.is_cuda else "building not counted"
    lines = [
        *_wrapped(
            f"{statistics.nodes} nodes in {statistics.batches} batches (lower bound "
            f"{record.lower_bound}), {statistics.launches} launches, "
            f"{statistics.copied_bytes:,} bytes copied, peak {statistics.peak_bytes:,} bytes"
        ),
        *_wrapped(
            f"kernels {statistics.kernel_seconds * 1e3:.2f} ms, "
            f"host {statistics.host_seconds * 1e3:.2f} ms (share {record.host_share:.0%}; {times}),"
            f" mean batch {record.mean_batch:.1f} nodes"
        ),
        *_compiling(record),
        *_table(record.rows),
        *_apart(record),
    ]
    if not record.is_cuda and (line := without_c()):
        lines += _wrapped(line)
    for (name, what), count in block_notes.items():
        lines += _wrapped(f"{name}: {count} call{'s' * (count > 1)} {what}")
    return "\n".join(lines)


def _compiling(record: RunRecord) -> Iterator[str]:
    """What only the first runs of a process do."""
    if record.compile_seconds:
        milliseconds = record.compile_seconds * 1e3
        yield f"compiling {milliseconds:.2f} ms besides, once; the next step also plans faster"


def _table(rows: Sequence[StepRecord]) -> Iterator[str]:
    """A line for each batch. What else is known of some stands below, by their numbers."""
    cells = [_cells(number, row) for number, row in enumerate(rows)]
    widths = [max(map(len, column)) for column in zip(HEADS, *cells, strict=True)]
    room = WIDTH - sum(widths) - len(widths) - 1
    wide = min(room, max([22, *[len(row.kind) for row in rows]]))
    remarks: dict[str, list[int]] = {}
    for kind, line in zip(["kind", *[row.kind for row in rows]], [HEADS, *cells], strict=True):
        first, *others = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        yield f"{first}  {_cut(kind, wide):<{wide}} {' '.join(others)}"
    for number, row in enumerate(rows):
        full = row.kind if len(row.kind) > wide else ""
        inside = f"inside: {row.batches_text}" if row.inside else ""
        for remark in filter(None, (full, inside, row.remarks, names_text(row.node_names))):
            remarks.setdefault(remark, []).append(number)
    for remark, numbers in remarks.items():
        yield from _wrapped(f"{numbers_text(numbers):>4}  {remark}")


def _cells(number: int, row: StepRecord) -> tuple[str, ...]:
    return (
        str(number), str(row.nodes), str(row.rows), str(row.width or "mixed"),
        str(row.copied_bytes), str(row.launches), f"{row.seconds * 1e3:.3f}",
        f"{row.seconds_backward * 1e3:.3f}", f"{flops_per_second(row) / 1e9:.1f}",
    )  # fmt: skip


def _apart(record: RunRecord) -> Iterator[str]:
    """The batches of one node type that ran apart, and why."""
    pairs = _joined(apart(record))
    if pairs:
        yield "ran apart, and why:"
    for pair in pairs[:SHOWN]:
        others = f" / {numbers_text(pair.second)}" if pair.second else ""
        name = "calls" if pair.node_type == RegionNode.__name__ else pair.node_type
        yield from _wrapped(f"{INDENT}{name} {numbers_text(pair.first)}{others}: {pair.reason}")
    if len(pairs) > SHOWN:
        yield f"{INDENT}{len(pairs) - SHOWN} more: explain(html=...) has them all"


def _joined(pairs: Sequence[Apart]) -> list[Apart]:
    """The pairs, those of one type and reason as one list of batches where they are many."""
    alike: dict[tuple[object, ...], list[Apart]] = {}
    for pair in pairs:
        key = (pair.node_type, pair.reason) if pair.second else pair
        alike.setdefault(key, []).append(pair)
    joined: list[Apart] = []
    for members in alike.values():
        if len(members) < MANY_ALIKE:
            joined += members
        else:
            numbers = {number for pair in members for number in (*pair.first, *pair.second)}
            first = members[0]
            joined.append(Apart(first.node_type, tuple(sorted(numbers)), (), first.reason))
    return joined


def _wrapped(text: str) -> list[str]:
    """The text in lines that fit; the first keeps its indentation, the others are indented."""
    if len(text) <= WIDTH:
        return [text]
    return textwrap.wrap(text, WIDTH, subsequent_indent=INDENT + "  ", break_on_hyphens=False)


def _cut(kind: str, width: int) -> str:
    """A kind, without its middle where it is too long; its whole name then stands below."""
    if len(kind) <= width:
        return kind
    tail = (width - 1) // 2
    return f"{kind[: width - 1 - tail]}…{kind[len(kind) - tail :]}"
