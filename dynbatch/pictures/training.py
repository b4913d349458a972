"""`training()`: the course of a training run, or of several to compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

from dynbatch.arguments import refused
from dynbatch.pictures.axes import Format, Panel, count, size
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing, Point
from dynbatch.pictures.palette import BLUE, GRID, SKY, VERMILION, series
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.run_curves import Curve, RunCurves, read_curves
from dynbatch.pictures.text import plural
from dynbatch.reporting.ticks import tick_step

MOST_RUNS = 8
"""As many as there are colours."""

MOST_ROWS, MOST_COLUMNS = 40, 240
"""Parameters and times of a strip of updates."""

WIDTH, GAP = 860.0, 22.0
NARROW = (WIDTH - 2 * MARGIN - GAP) / 2
LOSS_HEIGHT, HEIGHT = 250.0, 170.0
ROW = 13.0

USUAL = -3.0
"""log10 of an update/weight ratio that is neither high nor low."""


def training(*runs: str | os.PathLike[str]) -> Picture:
    """Draw a run's loss, metric, learning rate, speed and memory; several runs to compare them.

    Runs share an axis where they measure the same thing in the same unit; every other metric has a
    panel of its own. The loss is smoothed, beside what it is at each update; speed is smoothed.
    Memory is what a mini-batch takes at its peak, and what it would take padded, where the trainer
    works that out.
    A run with `Trainer(watch=N)` has a strip of squares for each parameter: how large its updates
    are in relation to its weights.

    Args:
        runs: folders with metrics.jsonl, or metrics files; at most eight.

    Raises:
        ArgumentError: no run, or more than eight.
        DataError:     there is no metrics file, it is damaged, or it tells of no update yet.
    """
    if not 0 < len(runs) <= MOST_RUNS:
        raise refused(
            "training", f"{len(runs)} runs are given", f"1 to {MOST_RUNS} runs",
            'db.pictures.training("runs/a", "runs/b")',
        )  # fmt: skip
    histories = _named([read_curves(run) for run in runs])
    is_one = len(runs) == 1
    title = f'Training run "{histories[0].name}"' if is_one else f"{len(runs)} training runs"
    drawing = Drawing(title, WIDTH, note=_note(histories))
    y = _legend(drawing, histories)
    y = _draw_loss(drawing, y, histories)
    y = _draw_small_panels(drawing, y, histories)
    for history in histories:
        if history.watched:
            y = _draw_updates(drawing, y, history, len(histories) > 1)
    return drawing.finish("\n".join(_words(history) for history in histories))


def _named(histories: list[RunCurves]) -> list[RunCurves]:
    names = [history.name for history in histories]
    for k, history in enumerate(histories):
        if names.count(history.name) > 1:
            histories[k] = RunCurves(**{**vars(history), "name": f"{history.name} ({k + 1})"})
    return histories


def _note(histories: Sequence[RunCurves]) -> str:
    parts = [_extent(history) for history in histories]
    if len(histories) == 1:
        return parts[0]
    return "; ".join(f"{h.name}: {part}" for h, part in zip(histories, parts, strict=True))


def _legend(drawing: Drawing, histories: Sequence[RunCurves]) -> float:
    if len(histories) > 1:
        entries = [(series(k), history.name) for k, history in enumerate(histories)]
    else:
        entries = [(SKY, "each update"), (BLUE, "smoothed; memory as measured")]
        if histories[0].padded.steps:
            entries.append((VERMILION, "memory it would take padded"))
    return drawing.legend(MARGIN, drawing.top, entries) + 6


def _draw_loss(drawing: Drawing, top: float, histories: Sequence[RunCurves]) -> float:
    smooth = [history.loss.smoothed() for history in histories]
    is_alone = len(histories) == 1
    for title, numbers in _by_title(histories, _loss_title).items():
        shown = [histories[k].loss if is_alone else smooth[k] for k in numbers]
        width = WIDTH - 2 * MARGIN
        panel = _panel(drawing, MARGIN, top, width, LOSS_HEIGHT, shown, title, count, False)
        if is_alone:
            panel.curve(shown[0].steps, shown[0].values, SKY, thick=1)
        for k in numbers:
            hint = f"{histories[k].name}: loss, smoothed"
            panel.curve(smooth[k].steps, smooth[k].values, series(k), hint=hint)
        top = panel.bottom + GAP
    return top


class Quantity(NamedTuple):
    """A quantity of a run that a small panel shows; runs with one title share a panel."""

    title_of: Callable[[RunCurves], str]
    curves_of: Callable[[RunCurves], list[Curve]]
    form: Format
    from_zero: bool


def _loss_title(history: RunCurves) -> str:
    return f"Loss, {'nats per token' if history.unit == 'tokens' else 'mean of the mini-batch'}"


def _metric_title(history: RunCurves) -> str:
    name = history.measure
    return f"{name[:1].upper()}{name[1:] or 'Metric'} of each validation"


def _rate(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-") if 0 < value < 1e-3 else f"{value:.3g}"


METRIC = Quantity(_metric_title, lambda h: [h.metric], count, False)
QUANTITIES = (
    METRIC,
    Quantity(lambda h: "Learning rate", lambda h: [h.rate], _rate, True),
    Quantity(lambda h: f"{h.unit.capitalize()} per second", lambda h: [h.speed.smoothed()], count,
             True),
    Quantity(lambda h: "Memory of a mini-batch at its peak", lambda h: [h.memory, h.padded], size,
             True),
)  # fmt: skip


def _by_title(
    histories: Sequence[RunCurves], title_of: Callable[[RunCurves], str]
) -> dict[str, list[int]]:
    """The numbers of the runs by title: what has other units, or measures another thing, has
    another axis."""
    numbers_of: dict[str, list[int]] = {}
    for number, history in enumerate(histories):
        numbers_of.setdefault(title_of(history), []).append(number)
    return numbers_of


def _draw_small_panels(drawing: Drawing, top: float, histories: Sequence[RunCurves]) -> float:
    """Metric, learning rate, speed and memory, two beside each other."""
    drawn = 0
    for quantity in QUANTITIES:
        for title, numbers in _by_title(histories, quantity.title_of).items():
            curves = {k: quantity.curves_of(histories[k]) for k in numbers}
            if not any([curve.finite() for of_run in curves.values() for curve in of_run]):
                continue
            left = MARGIN + (drawn % 2) * (NARROW + GAP)
            y = top + (drawn // 2) * (HEIGHT + GAP)
            _draw_small_panel(drawing, (left, y), quantity, title, histories, curves)
            drawn += 1
    return top + -(-drawn // 2) * (HEIGHT + GAP)


def _draw_small_panel(
    drawing: Drawing, place: Point, quantity: Quantity, title: str,
    histories: Sequence[RunCurves], curves: Mapping[int, Sequence[Curve]],
) -> None:  # fmt: skip
    shown = [curve for of_run in curves.values() for curve in of_run if curve.finite()]
    panel = _panel(drawing, *place, NARROW, HEIGHT, shown, title, quantity.form, quantity.from_zero)
    for k, of_run in curves.items():
        history = histories[k]
        for number, curve in enumerate(of_run):
            colour = VERMILION if len(histories) == 1 and number else series(k)
            dash = "5 3" if number else ""
            hint = f"{history.name}: {'padded' if number else title.lower()}"
            panel.curve(curve.steps, curve.values, colour, thick=1.6, dash=dash, hint=hint)
        if quantity is METRIC:
            _mark_best(panel, history, series(k))


def _mark_best(panel: Panel, history: RunCurves, colour: str) -> None:
    for step, value in zip(history.metric.steps, history.metric.values, strict=True):
        if isfinite(value):
            half = 4.0 if step == history.best else 2.0
            best = "best, " if step == history.best else ""
            panel.drawing.rectangle(
                panel.x(step) - half, panel.y(value) - half, 2 * half, 2 * half, colour,
                hint=f"{history.name}: {best}{value:.6g} after update {step:,}",
            )  # fmt: skip


def _panel(
    drawing: Drawing, left: float, top: float, width: float, height: float,
    curves: Sequence[Curve], title: str, form: Format, from_zero: bool,
) -> Panel:  # fmt: skip
    """A plot area for curves over updates."""
    numbers = [number for curve in curves for number in curve.finite()] or [0.0]
    last = max([curve.steps[-1] for curve in curves if curve.steps], default=1)
    low, high = 0.0 if from_zero else min(numbers), max(numbers)
    if high > low:  # down to a round number, as panels go up to one
        step = tick_step(high - low, 4)
        low = floor(low / step) * step
    return Panel(
        drawing, left, top, width, height, (0, last), (low, high),
        y_format=form, title=title, x_title="updates",
    )  # fmt: skip


def _draw_updates(drawing: Drawing, top: float, history: RunCurves, is_named: bool) -> float:
    """Squares by parameter and time: blue for small updates, vermilion for large ones."""
    of_run = f" of {history.name}" if is_named else ""
    drawing.text(
        MARGIN, top + SMALL_SIZE, f"Update / weight of each parameter{of_run}", bold=True,
        within=WIDTH - 2 * MARGIN,
    )  # fmt: skip
    entries = [
        (BLUE, "0.00001 or less"), (GRID, "0.001, as is usual"), (VERMILION, "0.1 or more"),
    ]  # fmt: skip
    y = drawing.legend(MARGIN, top + SMALL_SIZE + 8, entries) + 2
    rows = list(history.watched.items())
    left_out = len(rows) - MOST_ROWS
    if left_out > 0:
        rows = [rows[k * len(rows) // MOST_ROWS] for k in range(MOST_ROWS)]
    steps = rows[0][1].steps
    columns = _columns(len(steps))
    begin = MARGIN + 230
    across = (WIDTH - MARGIN - begin) / len(columns)
    boxes: dict[tuple[str, float], list[tuple[float, float, float, float]]] = {}
    for number, (name, curve) in enumerate(rows):
        down = y + number * ROW
        drawing.text(MARGIN, down + 10, name, size=SMALL_SIZE, within=begin - MARGIN - 8)
        for k, column in enumerate(columns):
            ratios = [curve.values[c] for c in column if isfinite(curve.values[c])]
            if ratios:
                rectangle = (begin + k * across, down, across - (1 if across > 4 else 0), ROW - 1)
                boxes.setdefault(_shade(max(ratios)), []).append(rectangle)
    for (colour, opacity), of_shade in boxes.items():
        drawing.rectangles(of_shade, colour, opacity)
    y += len(rows) * ROW + SMALL_SIZE + 2
    drawing.small(begin, y, f"update {steps[0]:,}")
    drawing.small(WIDTH - MARGIN, y, f"update {steps[-1]:,}", "end")
    if left_out > 0:
        more = f"{len(rows)} of {len(history.watched):,} parameters"
        drawing.small(MARGIN, y, more)
    return y + GAP


def _columns(length: int) -> list[range]:
    """Watched updates, several to a column where there are many."""
    count = min(length, MOST_COLUMNS)
    return [range(k * length // count, (k + 1) * length // count) for k in range(count)]


def _shade(ratio: float) -> tuple[str, float]:
    """The colour of an update/weight ratio, and its opacity in five steps."""
    away = (log10(ratio) if ratio > 0 else -9.0) - USUAL
    strength = round(min(1.0, abs(away) / 2) * 5) / 5
    if not strength:
        return GRID, 1.0
    return (VERMILION if away > 0 else BLUE), strength


def _extent(history: RunCurves) -> str:
    """The length of a run: "1,034 updates in 3 epochs", without epochs where none are told."""
    numbers = {"update": history.loss.steps[-1], "epoch": history.epochs}
    return " in ".join([plural(n, name) for name, n in numbers.items() if n])


def _words(history: RunCurves) -> str:
    losses = history.loss.finite()
    said = [
        f"{history.name}: {_extent(history)}",
        f"loss {losses[0]:.4g} at first and {history.loss.end:.4g} at the end" if losses else "",
    ]
    if history.best is not None:
        best = history.metric.values[history.metric.steps.index(history.best)]
        said.append(f"best {history.measure or 'metric'} {best:.4g} after update {history.best:,}")
    if history.speed.finite():
        said.append(f"{history.speed.end:,.0f} {history.unit} per second at the end")
    if history.memory.finite():
        said.append(f"at most {size(max(history.memory.finite()))} of memory")
    if history.padded.finite():
        said.append(f"padded up to {size(max(history.padded.finite()))}")
    return "; ".join(filter(None, said)) + "."
