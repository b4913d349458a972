"""`explain()`: what ran together, how big, how long, and what ran apart, in 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.kernels.backends import factors
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.reporting.advice import standing_out
from dynbatch.reporting.profile import TypeProfile, together
from dynbatch.reporting.reasons import Apart, apart, names_text, numbers_text
from dynbatch.reporting.rules import FIXED, Observed
from dynbatch.reporting.run_record import RunRecord, StepRecord

WIDTH = 100
"""No line is longer."""

SHOWN = 16
"""The most lines of the table, from which on batches of one kind share a line."""

SHOWN_BELOW = 6
"""The most remarks below the table, and the most reasons."""

MOST_MISTAKES = 3
"""Of what stands out: the others come when these are mended."""

MANY_ALIKE = 4
"""Pairs of one node type and reason that are told in one line."""

HEADS = (
    "step", "nodes", "rows", "width", "copied", "launches", "forward ms", "backward ms",
    "GFLOP/s",
)  # fmt: skip
INDENT = "      "


def report(record: RunRecord, observed: Observed, full: bool = False) -> str:
    """The report: what stands out; the batches of all runs as a table; and reasons below it.

    Args:
        full:        each batch in a line of its own, and every remark and reason.
    """
    statistics = record.statistics
    times = "host's times, no GPU is waited for" if record.is_cuda else "building not counted"
    lines = [
        *_wrapped(
            f"{statistics.nodes} nodes in {statistics.batches} batches (lower bound "
            f"{record.lower_bound}), {statistics.launches} launches, "
            f"{statistics.copied_bytes:,} bytes copied, peak {statistics.peak_bytes:,} bytes"
        ),
        *_standing_out(record, observed),
        *_wrapped(
            f"kernels {statistics.kernel_seconds * 1e3:.2f} ms, "
            f"host {statistics.host_seconds * 1e3:.2f} ms (share {record.host_share:.0%}; {times}),"
            f" mean batch {record.mean_batch:.1f} nodes"
        ),
        *_rounding(record),
        *_compiling(record),
        *_table(record.rows, full),
        *_apart(record, full),
    ]
    for (name, what), count in observed.block_notes.items():
        lines += _wrapped(f"{name}: {count} call{'s' * (count > 1)} {what}")
    return "\n".join(lines)


def _standing_out(record: RunRecord, observed: Observed) -> Iterator[str]:
    for one in standing_out(record, observed)[:MOST_MISTAKES]:
        yield from _wrapped(f"stands out: {one.problem}".replace(FIXED, " "))
        yield from _wrapped(f"{INDENT}fix:  {one.fix}")


def _rounding(record: RunRecord) -> Iterator[str]:
    """The precision of values; the types whose products have rounded factors, and others."""
    if record.precision != FULL:
        yield from _wrapped(
            f"values: rounded to {record.precision}, in half the memory from forward to backward; "
            "losses, sums and numbers in float32"
        )
    if how := factors(record.matmul, record.is_cuda):
        products = dict.fromkeys([each for row in record.rows for each in row.products])
        rounded, whole = [
            ", ".join([name for name, of_values in products if of_values is wanted]) or "nothing"
            for wanted in (False, True)
        ]
        yield from _wrapped(f"products: {how} in {rounded}; float32 in {whole}")


def _compiling(record: RunRecord) -> Iterator[str]:
    """Work that only the first runs of a process do."""
    if record.compile_seconds:
        milliseconds = record.compile_seconds * 1e3
        yield f"compiling {milliseconds:.2f} ms besides, once; the next step also plans faster"


class _Line(NamedTuple):
    """Batches that share a line of the table, by their numbers, and what they took together."""

    numbers: Sequence[int]
    rows: Sequence[StepRecord]
    sums: TypeProfile

    @property
    def step(self) -> str:
        count = len(self.numbers)
        return f"{self.numbers[0]} ×{count}" if count > 1 else str(self.numbers[0])

    def cells(self) -> tuple[str, ...]:
        sums, widths = self.sums, {row.width for row in self.rows}
        return (
            self.step, str(sums.nodes), str(sums.rows),
            str(widths.pop() or "mixed") if len(widths) == 1 else "mixed",
            str(sum([row.copied_bytes for row in self.rows])),
            str(sum([row.launches for row in self.rows])), f"{sums.seconds * 1e3:.3f}",
            f"{sums.seconds_backward * 1e3:.3f}", f"{sums.flops_per_second / 1e9:.1f}",
        )  # fmt: skip


def _lines(rows: Sequence[StepRecord], full: bool) -> list[_Line]:
    """A line for each batch; where they are many, for each signature; or else for each kind."""
    keys: list[Callable[[int, StepRecord], Hashable]] = [
        lambda number, row: number,
        lambda number, row: (row.kind, row.signature),
        lambda number, row: row.kind,
    ]
    alike: dict[Hashable, list[int]] = {}
    for key in keys:
        alike = {}
        for number, row in enumerate(rows):
            alike.setdefault(key(number, row), []).append(number)
        if full or len(alike) <= SHOWN:
            break
    groups = [(numbers, [rows[k] for k in numbers]) for numbers in alike.values()]
    whole = sum([row.seconds + row.seconds_backward for row in rows])
    return [_Line(numbers, some, together(some[0].kind, some, whole)) for numbers, some in groups]


def _table(rows: Sequence[StepRecord], full: bool) -> Iterator[str]:
    """The batches, or those of most time. What else is known of some stands below, by number."""
    lines = _lines(rows, full)
    left = [] if full else sorted(lines, key=lambda line: -line.sums.share)[SHOWN:]
    lines = [line for line in lines if line not in left]
    kinds = [line.sums.kind for line in lines]
    cells = [line.cells() for line in lines]
    widths = [max(map(len, column)) for column in zip(HEADS, *cells, strict=True)]
    room = WIDTH - sum(widths) - len(widths) - 1
    wide = min(room, max([22, *map(len, kinds)]))
    for kind, line in zip(["kind", *kinds], [HEADS, *cells], strict=True):
        first, *others = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        yield f"{first}  {_cut(kind, wide):<{wide}} {' '.join(others)}"
    if left:
        batches = sum([len(line.numbers) for line in left])
        yield f"{INDENT}{batches} batches of {len(left)} other kinds, which took less time"
    if any([len(line.numbers) > 1 for line in lines]) or left:
        yield f"{INDENT}explain(full=True) has a line for each batch, and explain(html=...) a page"
    yield from _first(list(_remarks(rows, wide)), full, "remarks on batches")


def _remarks(rows: Sequence[StepRecord], wide: int) -> Iterator[str]:
    """Remarks on some batches beside the table, whose kinds have `wide` columns."""
    remarks: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        name = row.kind if len(row.kind) > wide else ""
        inside = f"inside: {row.batches_text}" if row.inside else ""
        for remark in filter(None, (name, inside, row.remarks, names_text(row.node_names))):
            remarks.setdefault(remark, []).append(number)
    for remark, numbers in remarks.items():
        yield f"{numbers_text(numbers):>4}  {remark}"


def _first(texts: Sequence[str], full: bool, what: str) -> Iterator[str]:
    shown = len(texts) if full else SHOWN_BELOW
    for text in texts[:shown]:
        yield from _wrapped(text)
    if len(texts) > shown:
        yield f"{INDENT}{len(texts) - shown} more {what}: explain(full=True)"


def _apart(record: RunRecord, full: bool) -> Iterator[str]:
    """The batches of one node type that ran apart, and why."""
    texts = []
    for pair in _joined(apart(record)):
        others = f" / {numbers_text(pair.second)}" if pair.second else ""
        name = "calls" if pair.node_type == RegionNode.__name__ else pair.node_type
        texts.append(f"{INDENT}{name} {numbers_text(pair.first)}{others}: {pair.reason}")
    if texts:
        yield "ran apart, and why:"
    yield from _first(texts, full, "reasons")


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
