"""`generation()`: the requests and the cache of an engine, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.arguments import refused
from dynbatch.generation.engine import Engine
from dynbatch.generation.recording import EngineStep, Recording
from dynbatch.pictures.axes import Panel, count, size
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing
from dynbatch.pictures.palette import BLUE, GRID, ORANGE, SKY, VERMILION
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.text import plural

WIDTH, GAP, HEIGHT = 760.0, 22.0, 150.0
MOST_LANES = 160
LANES_HEIGHT, LANE = 420.0, 14.0
LABELS_FROM = 12.0
"""Lanes of this height have the request's number beside them."""

STATES = {"waiting": GRID, "prompts": VERMILION, "tokens": BLUE, "pausing": SKY}
"""A request's state in a step, as `EngineStep` has it, and its colour."""

NAMES = {
    "waiting": "waits for room",
    "prompts": "its prompt is read",
    "tokens": "writes a token",
    "pausing": "has joined, waits for its turn",
}
"""What the legend calls the states."""


def generation(engine: Engine) -> Picture:
    """Draw what an engine did: each request as a lane from its arrival to its end, and the cache.

    A step is one graph over the new rows of all sentences. A lane is grey while its request waits
    for pages, vermilion while its prompt is read, and blue while tokens are written. Below are the
    bytes of rows in use against those of the pages that are reserved.

    Args:
        engine: made with record=True.

    Raises:
        ArgumentError: it was made without, or has taken no step yet.
    """
    recording = engine.recording
    if recording is None:
        raise refused(
            "generation", "the engine did not record", "an engine that was made to record",
            "Engine(model, record=True)",
        )  # fmt: skip
    steps = recording.steps
    if not steps:
        raise refused(
            "generation", "the engine has taken no step", "a picture has one step or more",
            "engine.add(prompt), and read engine.run() first",
        )  # fmt: skip
    numbers = _requests(steps)
    live = max([len(step.prompts) + len(step.tokens) + len(step.pausing) for step in steps])
    title = f"{plural(len(numbers), 'request')} in {plural(len(steps), 'step')}"
    drawing = Drawing(
        f"Generation: {title}", WIDTH,
        note=f"At most {live:,} live at once. Each step is one graph over the new rows of all of "
        "them.",
    )  # fmt: skip
    used = [state for state in STATES if any([getattr(step, state) for step in steps])]
    entries = [(STATES[state], NAMES[state]) for state in used]
    y = drawing.legend(MARGIN, drawing.top, entries) + 6
    shown = numbers[:MOST_LANES]
    lane = min(LANE, LANES_HEIGHT / len(shown))
    drawing.text(MARGIN, y + SMALL_SIZE, _heading(shown, numbers), bold=True)
    top = y + SMALL_SIZE + 10
    panel = _draw_cache(drawing, top + len(shown) * lane + GAP, recording)
    _draw_lanes(drawing, panel, top, lane, shown, steps)
    _draw_rows(drawing, panel.bottom + GAP, panel, steps)
    most = max(steps, key=lambda step: step.memory.reserved).memory
    prompts = sum([bool(step.prompts) for step in steps])
    return drawing.finish(
        f"{title}, at most {live:,} live at once.\n"
        f"{plural(sum([step.rows for step in steps]), 'row')} were read; "
        f"{plural(prompts, 'step')} read prompts.\n"
        f"At the peak {size(most.reserved)} of pages were reserved, {size(most.live)} in use."
    )


def _requests(steps: Sequence[EngineStep]) -> list[int]:
    return sorted({number for step in steps for state in STATES for number in getattr(step, state)})


def _heading(shown: Sequence[int], numbers: Sequence[int]) -> str:
    if len(shown) < len(numbers):
        return f"The first {len(shown):,} of {len(numbers):,} requests"
    return "Requests"


def _draw_lanes(
    drawing: Drawing, panel: Panel, top: float, lane: float, shown: Sequence[int],
    steps: Sequence[EngineStep],
) -> None:  # fmt: skip
    row_of = {number: row for row, number in enumerate(shown)}
    tall = lane - 2 if lane > 6 else lane * 0.85
    for state, colour in STATES.items():
        runs: list[tuple[int, int, int]] = []  # row, first step, end
        open_runs: dict[int, int] = {}
        for k in range(len(steps) + 1):
            now = set(getattr(steps[k], state)) if k < len(steps) else set()
            for number in [number for number in open_runs if number not in now]:
                runs.append((row_of[number], open_runs.pop(number), k))
            for number in now & row_of.keys():
                open_runs.setdefault(number, k)
        boxes = [
            (panel.x(begin), top + row * lane, panel.x(end) - panel.x(begin), tall)
            for row, begin, end in sorted(runs)
        ]
        drawing.rectangles(boxes, colour)
    if lane >= LABELS_FROM:
        for row, number in enumerate(shown):
            y = top + row * lane + SMALL_SIZE - 1
            drawing.small(panel.x.begin - 6, y, str(number), "end")


def _draw_cache(drawing: Drawing, top: float, recording: Recording) -> Panel:
    """Bytes reserved and in use, as stairs."""
    steps = recording.steps
    entries = [(ORANGE, "pages reserved"), (BLUE, "rows in use")]
    drawing.text(MARGIN, top + SMALL_SIZE, "Cache", bold=True)
    top = drawing.legend(MARGIN + 60, top, entries) + 2
    reserved = [float(step.memory.reserved) for step in steps]
    highest = max([*reserved, float(recording.limit or 0)])
    panel = Panel(
        drawing, MARGIN, top, WIDTH - 2 * MARGIN, HEIGHT, (0, len(steps)), (0, highest or 1),
        y_format=size, x_title="steps",
    )  # fmt: skip
    for values, colour in ((reserved, ORANGE), ([step.memory.live for step in steps], BLUE)):
        panel.curve(*_stairs(values), colour, hint=f"up to {size(max(values))}")
    if recording.limit is not None:
        panel.level(recording.limit, VERMILION, f"memory_limit {size(recording.limit)}")
    return panel


def _draw_rows(drawing: Drawing, top: float, above: Panel, steps: Sequence[EngineStep]) -> None:
    rows = [step.rows for step in steps]

    def panel_at(left: float, drawing: Drawing) -> Panel:
        return Panel(
            drawing, left, top + 4, WIDTH - MARGIN - left, HEIGHT, (0, len(steps)),
            (0, max(rows)), y_format=count, x_title="steps",
        )  # fmt: skip

    drawing.text(MARGIN, top, "Rows read in each step", bold=True)
    shift = above.x.begin - panel_at(MARGIN, Drawing("")).x.begin
    panel = panel_at(MARGIN + shift, drawing)
    panel.curve(*_stairs(rows), BLUE, thick=1.6)


def _stairs(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The points of a curve that is level within each step."""
    xs = [float(x) for k in range(len(values)) for x in (k, k + 1)]
    return xs, [float(value) for value in values for _ in range(2)]
