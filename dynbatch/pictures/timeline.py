"""`timeline()`: the batches of a graph's runs as they really ran, and what each thread did."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dynbatch.arguments import refused, shown
from dynbatch.errors import GraphError
from dynbatch.graph import Graph
from dynbatch.pictures import palette
from dynbatch.pictures.axes import Panel, count, seconds, size
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.text import width_of
from dynbatch.reporting.page import page
from dynbatch.reporting.run_record import RunRecord
from dynbatch.reporting.trace_events import HOST, Bar, bars, thread_bars

COLOURS = {
    "forward": palette.BLUE,
    "backward": palette.VERMILION,
    "add gradients": palette.YELLOW,
    "plan": palette.GREY,
    "place in memory": palette.GREY,
}

PLANNING = "planning"

HEIGHT = 230.0
LANE = 14.0
MOST_THREADS = 8
HINTED = 3000
LISTED = 10


def timeline(graph: Graph) -> Picture:
    """Draw the batches that ran over time: a bar each forward and backward, as high as its rows.

    A pale band is the time in which the host plans, before the batches of a run. Neighbours of one
    kind that are too low for their names share one, as "64 × Elu". Below is what each thread did:
    the one that runs the graph, with the host's planning in grey and its other work between kernels
    left blank; and of `Graph(profile=True)` the others, where a blank is an idle thread. Pointing
    at a bar tells its nodes, rows, launches and bytes. `save("x.html")` writes the page of
    `graph.explain(html=...)`.

    The first step of a process also compiles kernels: draw a later one. On a GPU the times are
    those of the host, which does not wait for kernels.

    Args:
        graph: it has run, and may be closed.

    Raises:
        GraphError:    nothing has run.
        ArgumentError: it is not a graph.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     y = F.sum(F.tanh(F.input(graph, [[1.0, 2.0]] * 50))).value
        >>> db.pictures.timeline(graph).title
        '3 batches over time'
    """
    if not isinstance(graph, Graph):
        rule, fix = "a graph that has run", "give the db.Graph"
        raise refused("timeline", f"graph is {shown(graph)}", rule, fix)
    record = graph._record()
    if not record.runs:
        raise GraphError.at_caller(
            "timeline: the graph has not run.\n  rule: nothing runs until a value is asked for\n"
            "  fix:  call graph.backward(loss) or graph.forward() first"
        )
    all_bars = bars(record)
    end = max([bar.end for bar in all_bars])
    threads = thread_bars(record)
    shares = _shares(record, all_bars, threads)
    batches = len(record.rows)
    drawing = Drawing(
        f"{count(batches)} batch{'es' * (batches != 1)} over time", note=_note(record)
    )
    inside = drawing.width - 2 * MARGIN
    of_batches = [bar for bar in all_bars if bar.step != HOST]
    known = {bar.what for bar in of_batches}
    entries = [(colour, what) for what, colour in COLOURS.items() if what in known]
    entries.append((palette.GREY, "host: planning, placing in memory"))
    top = drawing.legend(MARGIN, drawing.top, entries) + 6
    drawing.small(MARGIN, top + SMALL_SIZE, "rows")
    standing = _standing(record, of_batches)
    most = max([base + record.rows[bar.step].rows for base, bar in standing], default=1)
    panel = Panel(
        drawing, MARGIN, top + SMALL_SIZE + 4, inside, HEIGHT, (0, end), (0, most),
        x_format=seconds,
    )  # fmt: skip
    _planning(panel, record)
    _heights(panel, record, standing)
    _low_ones(panel, record, standing)
    y = panel.bottom + 6
    for name, members in _named(all_bars, threads):
        y = _lane(panel, record, y, f"{name}: {shares[name]}", members)
    if len(threads) > MOST_THREADS:
        text = f"… {len(threads) - MOST_THREADS} more threads"
        drawing.small(panel.x.begin, y + SMALL_SIZE, text)
    picture = drawing.finish(_words(record, shares, end))
    return Picture(picture.title, picture.description, picture.svg, lambda: page(record))


def _note(record: RunRecord) -> str:
    if record.is_cuda:
        return "Times are the host's, which makes the launches and does not wait for the GPU."
    note = "A blank in thread 1 is the host at other work, between kernels"
    if record.threads is None:
        return f"{note}. db.Graph(profile=True) also records what the other threads do."
    return f"{note}; in another thread it is idle time."


def _named(
    all_bars: Sequence[Bar], threads: Sequence[Sequence[Bar]]
) -> list[tuple[str, list[Bar]]]:
    """The lanes: the thread that ran the graph, then those that helped."""
    helpers = [(f"thread {k}", list(members)) for k, members in enumerate(threads, 2)]
    return [("thread 1, which runs the graph", list(all_bars)), *helpers[:MOST_THREADS]]


def _shares(
    record: RunRecord, all_bars: Sequence[Bar], threads: Sequence[Sequence[Bar]]
) -> dict[str, str]:
    whole = sum([run.end - run.begin for run in record.runs]) or 1.0
    texts = {}
    for name, members in _named(all_bars, threads):
        batches = _covered([bar for bar in members if bar.step != HOST]) / whole
        if any([bar.step == HOST for bar in members]):
            texts[name] = f"{_percent(batches)} batches, {_percent(1 - batches)} host"
        else:
            texts[name] = f"{_percent(batches)} busy, {_percent(1 - batches)} idle"
    return texts


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.0f} %"


def _covered(members: Sequence[Bar]) -> float:
    """The seconds in which at least one bar lasts."""
    covered, until = 0.0, 0.0
    for bar in sorted(members, key=lambda bar: bar.begin):
        covered += max(0.0, bar.end - max(bar.begin, until))
        until = max(until, bar.end)
    return covered


def _standing(record: RunRecord, members: Sequence[Bar]) -> list[tuple[int, Bar]]:
    """Each bar with the rows of those that were under way when it began: it stands on them."""
    under_way: list[tuple[float, int]] = []  # when each ends, and its rows
    standing = []
    for bar in members:
        under_way = [(end, rows) for end, rows in under_way if end > bar.begin]
        standing.append((sum([rows for _, rows in under_way]), bar))
        under_way.append((bar.end, record.rows[bar.step].rows))
    return standing


def _planning(panel: Panel, record: RunRecord) -> None:
    """The host's time before each run's batches as pale bands, named where they have room."""
    start, (top, tall) = record.runs[0].begin, (panel.y.end, panel.y.begin - panel.y.end)
    edges = [(panel.x(run.begin - start), panel.x(run.placed - start)) for run in record.runs]
    bands = [(left, top, right - left, tall) for left, right in edges]
    panel.drawing.rectangles(bands, palette.PANEL)
    for left, right in edges:
        if width_of(PLANNING, SMALL_SIZE) + 8 <= right - left:
            panel.drawing.small((left + right) / 2, top + tall / 2 + 4, PLANNING, "middle")


def _heights(panel: Panel, record: RunRecord, standing: Sequence[tuple[int, Bar]]) -> None:
    """Bars as high as their rows; those that run at once stand on each other."""
    for base, bar in standing:
        row, colour = record.rows[bar.step], COLOURS[bar.what]
        x, right = panel.x(bar.begin), panel.x(bar.end)
        low, high = panel.y(base), panel.y(base + row.rows)
        wide, tall = max(0.7, right - x), max(1.5, low - high)
        panel.drawing.rectangle(
            x, low - tall, wide, tall, colour, outline=palette.PAPER if wide > 4 else "",
            hint=_hint(record, bar) if len(standing) <= HINTED else "",
        )  # fmt: skip
        if width_of(row.kind, SMALL_SIZE) + 8 <= wide and tall >= 18:
            middle, y = (x + right) / 2, low - tall / 2 + 4
            panel.drawing.text(middle, y, row.kind, on=colour, size=SMALL_SIZE, anchor="middle")


def _low_ones(panel: Panel, record: RunRecord, standing: Sequence[tuple[int, Bar]]) -> None:
    """Name, above them, bars that are too low for a name: "64 × Elu", where they are neighbours."""
    neighbours = groupby(standing, lambda pair: (record.rows[pair[1].step].kind, pair[1].what))
    for (kind, _), group in neighbours:
        members = list(group)
        top = panel.y(max([base + record.rows[bar.step].rows for base, bar in members]))
        x, right = panel.x(members[0][1].begin), panel.x(members[-1][1].end)
        name = f"{len(members)} × {kind}" if len(members) > 1 else kind
        is_low = panel.y(0) - top < 18 and not any([base for base, _ in members])
        if is_low and width_of(name, SMALL_SIZE) + 8 <= right - x:
            panel.drawing.small((x + right) / 2, top - 5, name, "middle")


def _lane(panel: Panel, record: RunRecord, y: float, name: str, members: Sequence[Bar]) -> float:
    """A thread's time in one line; returns the y below."""
    drawing, left = panel.drawing, panel.x.begin
    drawing.small(left, y + SMALL_SIZE, name)
    y += SMALL_SIZE + 5
    drawing.rectangle(left, y, panel.x.end - left, LANE, palette.PANEL)
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    for bar in members:
        x, right = panel.x(bar.begin), panel.x(bar.end)
        same = boxes.setdefault(COLOURS[bar.what], [])
        if same and x <= same[-1][0] + same[-1][2] + 0.2:  # what cannot be told apart is one box
            first = same[-1][0]
            same[-1] = (first, y, max(same[-1][2], right - first), LANE)
        else:
            same.append((x, y, max(0.5, right - x), LANE))
    for colour, rectangles in boxes.items():
        drawing.rectangles(rectangles, colour)
    return y + LANE + 6


def _hint(record: RunRecord, bar: Bar) -> str:
    row = record.rows[bar.step]
    return (
        f"batch {bar.step}: {row.kind}, {bar.what}, {seconds(bar.end - bar.begin)}\n"
        f"{row.nodes:,} nodes, {row.rows:,} rows of width {row.width or 'mixed'}, "
        f"{row.launches:,} launches, {size(row.copied_bytes)} copied"
    )


def _words(record: RunRecord, shares: dict[str, str], end: float) -> str:
    spent: dict[str, float] = {}
    for row in record.rows:
        spent[row.kind] = spent.get(row.kind, 0.0) + row.seconds + row.seconds_backward
    lines = [
        f"{len(record.rows):,} batches in {len(record.runs)} "
        f"run{'s' * (len(record.runs) != 1)}, {seconds(end)}."
    ]
    lines += [f"{name}: {share}." for name, share in shares.items()]
    most = sorted(spent.items(), key=lambda pair: -pair[1])[:LISTED]
    longest = ", ".join([f"{kind} {seconds(time)}" for kind, time in most])
    return "\n".join([*lines, f"Most time: {longest}."])
