"""Axes: round ticks, numbers with units, and a plot area with curves in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dynbatch.pictures.drawing import SMALL_SIZE, Drawing, Point
from dynbatch.pictures.palette import GRID, SOFT
from dynbatch.pictures.text import width_of
from dynbatch.reporting.ticks import tick_step, ticks

Format = Callable[[float], str]


def count(value: float) -> str:
    """A number with thousands apart: "12,000", "0.25"."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def size(value: float) -> str:
    """Bytes with a unit of powers of ten: "1.5 MB"."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= 0.9995 * unit:
            return f"{_three(value / unit)} {name}"
    return f"{value:.0f} B"


def seconds(value: float) -> str:
    """A time with a unit: "250 µs", "1.5 ms", "12 s", "3 min", "2.5 h"."""
    if value == 0:
        return "0"
    if value >= 7200:
        return f"{_three(value / 3600)} h"
    if value >= 120:
        return f"{_three(value / 60)} min"
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * unit:
            return f"{_three(value / unit)} {name}"
    return f"{_three(value * 1e9)} ns"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


class Axis(NamedTuple):
    """Numbers `low` to `high` on pixels `begin` to `end`; logarithmic if `is_log`."""

    low: float
    high: float
    begin: float = 0
    end: float = 1
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a number; numbers outside lie on the edge."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else self[:2]
        scaled = math.log10(max(value, self.low)) if self.is_log else value
        share = (scaled - low) / (high - low) if high > low else 0.5
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers on it; powers of ten, or 1, 2 and 5 times them, if it is logarithmic."""
        if not self.is_log:
            return ticks(self.low, self.high, about)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1,), (1, 3), (1, 2, 5)):
            marks = [
                factor * 10.0**power
                for power in range(first, last + 1)
                for factor in factors
                if self.low <= factor * 10.0**power <= self.high
            ]
            if len(marks) >= 3:
                return marks[:: -(-len(marks) // (about + 1))]
        return marks or [self.low]


class Panel:
    """A plot area in a drawing: axes with ticks, thin lines across, and what is drawn inside.

    Args:
        left, top, width, height: of the whole panel, its title and numbers included.
        x, y:     numbers that the axes show, (low, high); `y` is rounded up to a tick.
        x_format, y_format: how ticks are written.
        log:      which axes are logarithmic: "", "x", "y" or "xy".
        title:    above the panel.
        x_title:  below the numbers of the x axis.

    Attributes:
        x, y: the axes: `panel.x(value)` is a pixel.
        bottom: the y below everything.
    """

    def __init__(
        self,
        drawing: Drawing,
        left: float,
        top: float,
        width: float,
        height: float,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_format: Format = count,
        y_format: Format = count,
        log: str = "",
        title: str = "",
        x_title: str = "",
    ) -> None:
        self.drawing, self.bottom = drawing, top + height
        if title:
            drawing.text(left, top + SMALL_SIZE, title, bold=True, within=width)
            top += SMALL_SIZE + 10
        floor = self.bottom - (SMALL_SIZE + 8) * (1 + bool(x_title))
        about = max(2, int((floor - top) / 36))
        upright = _upright(Axis(*_widened(*y, "y" in log), floor, top + 4, "y" in log), about)
        heights = upright.ticks(about)
        room = max([width_of(y_format(value), SMALL_SIZE) for value in heights], default=0)
        self.y = upright
        last = width_of(x_format(x[1]), SMALL_SIZE) / 2
        self.x = Axis(*_widened(*x, "x" in log), left + room + 8, left + width - last, "x" in log)
        for value in heights:
            at = self.y(value)
            drawing.line([(self.x.begin, at), (self.x.end, at)], GRID)
            drawing.small(self.x.begin - 6, at + 4, y_format(value), "end")
        self._number_the_floor(floor, x_format)
        if x_title:
            begin, end = self.x.begin, self.x.end
            y_title = floor + 2 * SMALL_SIZE + 12
            drawing.small((begin + end) / 2, y_title, x_title, "middle", within=end - begin)

    def _number_the_floor(self, floor: float, x_format: Format) -> None:
        """Ticks of the x axis, as many as stand beside each other."""
        self.drawing.line([(self.x.begin, floor), (self.x.end, floor)], SOFT)
        free = -math.inf
        for value in self.x.ticks(max(2, int((self.x.end - self.x.begin) / 80))):
            text, at = x_format(value), self.x(value)
            half = width_of(text, SMALL_SIZE) / 2
            if at - half < free:
                continue
            self.drawing.line([(at, floor), (at, floor + 4)], SOFT)
            self.drawing.small(at, floor + SMALL_SIZE + 6, text, "middle")
            free = at + half + 8

    def curve(
        self, xs: Sequence[float], ys: Sequence[float], colour: str, *, thick: float = 2,
        dash: str = "", hint: str = "",
    ) -> None:  # fmt: skip
        """A line through finite points; NaN and infinity leave a gap.

        Of many points in one pixel the first, the lowest, the highest and the last are drawn.
        """
        for run in self._runs(xs, ys):
            points = _thinned(run)
            if len(points) == 1:
                (x, y), half = points[0], thick
                self.drawing.rectangle(x - half, y - half, 2 * half, 2 * half, colour, hint=hint)
            else:
                self.drawing.line(points, colour, thick=thick, dash=dash, hint=hint)

    def level(self, y: float, colour: str, label: str = "", dash: str = "6 4") -> None:
        """A level line across, with its label above its right end."""
        at = self.y(y)
        self.drawing.line([(self.x.begin, at), (self.x.end, at)], colour, thick=1.5, dash=dash)
        if label:
            self.drawing.text(
                self.x.end, at - 5, label, size=SMALL_SIZE, anchor="end",
                within=self.x.end - self.x.begin,
            )  # fmt: skip

    def _runs(self, xs: Sequence[float], ys: Sequence[float]) -> list[list[Point]]:
        runs: list[list[Point]] = [[]]
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(x) and math.isfinite(y):
                runs[-1].append((self.x(x), self.y(y)))
            elif runs[-1]:
                runs.append([])
        return [run for run in runs if run]


def _thinned(points: list[Point]) -> list[Point]:
    """The points that can be told apart, column of pixels by column."""
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int(point[0]), []).append(point)
    if len(points) <= 4 * len(columns):
        return points
    kept = []
    for column in columns.values():
        low, high = min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])
        kept += sorted({column[0], low, high, column[-1]})
    return kept


def _upright(axis: Axis, about: int) -> Axis:
    """The axis with its upper end at a tick, of about so many."""
    if axis.is_log or not math.isfinite(axis.high - axis.low):
        return axis
    step = tick_step(axis.high - axis.low, about)
    return axis._replace(high=step * math.ceil(axis.high / step - 1e-9))


def _widened(low: float, high: float, is_log: bool) -> tuple[float, float]:
    """An interval that is not empty."""
    if high > low:
        return low, high
    if is_log:
        return low / 2, low * 2
    return (low, low + 1) if low == 0 else (min(low, 0), max(low, 0))
