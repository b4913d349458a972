"""`explain(html=...)`: one page that shows the runs on a timeline. `page.html` is its template.

All text is escaped, and the page's policy allows only its own scripts and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from math import sqrt
from string import Template

from dynbatch.reporting.reasons import (
    STEPS_LISTED,
    apart,
    names_text,
    notes,
    numbers_text,
    signature_text,
)
from dynbatch.reporting.run_record import RunRecord, StepRecord
from dynbatch.reporting.ticks import ticks
from dynbatch.reporting.trace_events import HOST, Bar, bars, lanes, signatures, thread_bars

COLUMNS = (
    "batch", "plan", "signature", "nodes", "rows", "width", "bytes copied", "launches", "host ms",
    "forward ms", "backward ms", "batches of calls", "apart from",
)  # fmt: skip
TEXT_COLUMNS = ("signature", "batches of calls", "apart from")
STYLES = {"forward": "", "backward": " backward", "add gradients": " add"}
TICKS = 6


def page(record: RunRecord) -> str:
    """The whole page as HTML."""
    folder = files("dynbatch.reporting")
    script = (folder / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    signature_of = signatures(record)
    known = record.known
    texts = {signature: signature_text(signature, known) for signature in set(signature_of)}
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        script=script,
        script_hash=f"sha256-{digest}",
        summary=_summary(record),
        times=escape(_times(record)),
        timeline=_timeline(record, signature_of, texts),
        reasons=_reasons(record),
        plans=_plans(record),
        columns="".join([_cell(name, _style(name), "th") for name in COLUMNS]),
        batches=_batches(record, [texts[signature] for signature in signature_of]),
    )


def _summary(record: RunRecord) -> str:
    statistics = record.statistics
    entries = {
        "nodes": f"{statistics.nodes:,}",
        "batches (lower bound)": f"{statistics.batches:,} ({record.lower_bound:,})",
        "mean batch": f"{record.mean_batch:.1f} nodes",
        "launches": f"{statistics.launches:,}",
        "copied": f"{statistics.copied_bytes:,} bytes",
        "peak": f"{statistics.peak_bytes:,} bytes",
        "kernels": f"{statistics.kernel_seconds * 1e3:.2f} ms",
        "host": f"{statistics.host_seconds * 1e3:.2f} ms ({record.host_share:.0%} of the runs)",
        "building the graph": f"{record.build_seconds * 1e3:.2f} ms",
    }
    return "".join(
        [f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in entries.items()]
    )


def _times(record: RunRecord) -> str:
    if record.is_cuda:
        return (
            "The graph ran on a GPU: times are those of the host, which makes the launches and "
            "does not wait for the kernels."
        )
    return (
        "A batch's host time is what it took to prepare it; its forward and backward times are "
        "those of its kernels, with the copies that bring rows together."
    )


def _timeline(record: RunRecord, signature_of: Sequence[int], texts: dict[int, str]) -> str:
    """A line for the host, and one for each thread that helped, if that was recorded; then one for
    each signature in order of its first batch.
    """
    all_bars = bars(record)
    end = max([bar.end for bar in all_bars], default=0.0) or 1.0
    marks = [(tick, tick / (end * 1e3)) for tick in ticks(0, end * 1e3, TICKS)]
    spans = [f'<span style="left:{at:.4%}">{tick:g} ms</span>' for tick, at in marks if at < 0.96]
    rows = [f'<div class="line axis"><div class="label"></div><div class="track">{"".join(spans)}'
            "</div></div>"]  # fmt: skip
    lines: dict[int, list[Bar]] = {signature: [] for signature in [HOST, *signature_of]}
    for bar in all_bars:
        lines[HOST if bar.step == HOST else signature_of[bar.step]].append(bar)
    for signature, members in lines.items():
        label = escape("host" if signature == HOST else texts[signature])
        rows.append(_line(record, label, members, end))
        if signature == HOST:
            helpers = enumerate(thread_bars(record), 2)
            rows += [_line(record, f"thread {k}, which helps", work, end) for k, work in helpers]
    return "\n".join(rows)


def _line(record: RunRecord, label: str, members: Sequence[Bar], end: float) -> str:
    """A line of the timeline; `label` is escaped."""
    most = max([row.rows for row in record.rows], default=1) or 1
    lane_of = lanes(members)
    track = []
    for bar, lane in zip(members, lane_of, strict=True):
        share = 1.0 if bar.step == HOST else sqrt(record.rows[bar.step].rows / most)
        track.append(_bar(bar, lane, end, label, share))
    return (
        f'<div class="line"><div class="label" title="{label}">{label}</div><div class="track" '
        f'style="--lanes:{max(lane_of, default=0) + 1}">{"".join(track)}</div></div>'
    )


def _bar(bar: Bar, lane: int, end: float, label: str, height: float) -> str:
    """A button; `label` is escaped, `height` a share of the lane's."""
    took = f"{bar.what}, {(bar.end - bar.begin) * 1e3:.3f} ms from {bar.begin * 1e3:.3f} ms"
    what = f"host: {took}" if bar.step == HOST else f"batch {bar.step}: {took}"
    style = " host" if bar.step == HOST else STYLES[bar.what]
    return (
        f'<button type="button" class="bar{style}" data-step="{bar.step}" data-what="{what}" '
        f'aria-label="{label}, {what}" aria-pressed="false" style="left:{bar.begin / end:.4%};'
        f'width:{(bar.end - bar.begin) / end:.4%};--lane:{lane};--tall:{height:.3f}"></button>'
    )


def _reasons(record: RunRecord) -> str:
    return _rows(
        [
            (
                pair.node_type,
                numbers_text(pair.first),
                numbers_text(pair.second) or "each other",
                pair.reason,
            )
            for pair in apart(record)
        ],
        ("", "", "", ""),
    )


def _plans(record: RunRecord) -> str:
    return _rows(
        [
            (number, plan.policy, len(plan.structure), len(plan.steps), plan.lower_bound)
            for number, plan in enumerate(record.plans)
        ],
        ("number", "", "number", "number", "number"),
    )


def _batches(record: RunRecord, texts: Sequence[str]) -> str:
    beside = notes(apart(record))
    cells = []
    for number, (row, text) in enumerate(zip(record.rows, texts, strict=True)):
        cells.append(
            (
                number,
                row.planned[0],
                _what(row, text),
                f"{row.nodes:,}",
                f"{row.rows:,}",
                row.width or "mixed",
                f"{row.copied_bytes:,}",
                row.launches,
                f"{row.prepare_seconds * 1e3:.3f}",
                f"{row.seconds * 1e3:.3f}",
                f"{row.seconds_backward * 1e3:.3f}",
                _inside(row),
                "; ".join(beside.get(number, [])),
            )
        )
    return _rows(cells, [_style(name) for name in COLUMNS], "batch")


def _what(row: StepRecord, text: str) -> str:
    """The signature of a batch in words, and the names that were given to its nodes."""
    with_gradient = " with its gradient" if row.kind.endswith("+grad") else ""
    return ", ".join(filter(None, (text + with_gradient, names_text(row.node_names))))


def _inside(row: StepRecord) -> str:
    """The number of batches in a region of calls, by cell."""
    if not row.inside:
        return ""
    more = f", … {len(row.inside) - STEPS_LISTED} more" if len(row.inside) > STEPS_LISTED else ""
    sizes = ", ".join([f"{name} {count}" for name, count in row.inside[:STEPS_LISTED]])
    return f"{row.batches_text}: {sizes}{more}"


def _rows(table: Iterable[Sequence[object]], styles: Sequence[str], name: str = "") -> str:
    rows = []
    for number, values in enumerate(table):
        mark = f' id="{name}-{number}"' if name else ""
        cells = [_cell(value, style) for value, style in zip(values, styles, strict=True)]
        rows.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return "\n".join(rows)


def _cell(value: object, style: str, tag: str = "td") -> str:
    mark = f' class="{style}"' if style else ""
    return f"<{tag}{mark}>{escape(str(value))}</{tag}>"


def _style(column: str) -> str:
    return "" if column in TEXT_COLUMNS else "number"
