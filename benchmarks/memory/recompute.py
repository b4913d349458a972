"""Memory against time of scans that run forward again: `python -m benchmarks.memory.recompute`.

The LSTM seq2seq of the benchmarks, 64 sentence pairs, with one setting of `recompute` after the
other, taking turns: the most bytes of its arena (values, gradients, workspace; no parameters), and
the time to build the graph and run it forward and back. The update, the same for all, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.measure import interleave, require_agreement
from benchmarks.networks import Seq2SeqSizes, initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from dynbatch.padding.picture import new_figure

# Times as long as usual, which is 22 words in the mean.
FACTORS = (1, 3)
# None keeps everything; WHOLE steps, more than there are, make each scan again in one piece.
WHOLE = 1000
SETTINGS: tuple[int | str | None, ...] = (None, WHOLE, 32, 16, 8, "sqrt", 4, 2, 1)
SENTENCES = 64
# What must be reached: times less memory, the average of Echo (Zheng et al. 2020,
# arXiv:1805.08899), and times the time.
LESS, LONGER = 1.9, 1.25


@dataclass(frozen=True)
class Point:
    """One setting on sentences `factor` times as long as usual; medians, and their ratios to None.

    recompute: as of `db.scan`.
    """

    factor: int
    recompute: int | str | None
    peak_bytes: int
    ms: float
    times_less: float = 1.0
    times_longer: float = 1.0


def measure(
    factor: int,
    rounds: int,
    seed: int,
    sizes: Seq2SeqSizes | None = None,
    sentences: int = SENTENCES,
    settings: Sequence[int | str | None] = SETTINGS,
) -> list[Point]:
    """A point for each setting; the first is what the others are compared with.

    Raises:
        Disagreement: two settings do not compute the same.
    """
    workload = WORKLOADS["seq2seq"]
    sizes = sizes or Seq2SeqSizes()
    rng = np.random.default_rng(seed)
    values = initial_values(sizes, rng)
    corpus = replace(workload, sizes=sizes).corpus(sigma=0.59)
    batch = corpus.fill(rng, factor * corpus.lengths(rng, sentences))
    sides = []
    for setting in settings:
        sides.append(DynbatchSeq2Seq(sizes, values, recompute=setting))
        sides[-1].name = str(setting)
    require_agreement(sides[0], sides[1:], batch)
    interleave(sides, [batch], [batch], rounds, rng, settle_seconds=0.0)
    points: list[Point] = []
    for setting, side in zip(settings, sides, strict=True):
        costs = side.costs[-rounds:]
        ms = 1e3 * statistics.median([cost.step_seconds - cost.update_seconds for cost in costs])
        points.append(Point(factor, setting, max([cost.peak_bytes for cost in costs]), ms))
    return [_against(point, points[0]) for point in points]


def _against(point: Point, first: Point) -> Point:
    less, longer = first.peak_bytes / point.peak_bytes, point.ms / first.ms
    return replace(point, times_less=less, times_longer=longer)


def table(points: Sequence[Point], warning: str) -> str:
    """Aligned; the last lines the fastest setting that saves enough."""
    lines = [warning] if warning else []
    lines += [f"{'words':>6}{'recompute':>11}{'peak MB':>9}{'× less':>8}{'ms':>9}{'× as long':>11}"]
    for point in points:
        lines.append(
            f"{22 * point.factor:>6}{point.recompute!s:>11}{point.peak_bytes / 1e6:>9.1f}"
            f"{point.times_less:>8.2f}{point.ms:>9.1f}{point.times_longer:>11.2f}"
        )
    for factor in sorted({point.factor for point in points}):
        lines.append(_verdict(factor, [point for point in points if point.factor == factor]))
    return "\n".join(lines)


def _verdict(factor: int, points: Sequence[Point]) -> str:
    enough = [point for point in points if point.times_less >= LESS]
    text = f"{22 * factor} words, at least {LESS} × less memory: "
    if not enough:
        return f"{text}no setting"
    best = min(enough, key=lambda point: point.times_longer)
    holds = "within" if best.times_longer <= LONGER else "NOT within"
    return (
        f"{text}recompute={best.recompute!r}, {best.times_less:.2f} × less at "
        f"{best.times_longer:.2f} × the time, {holds} {LONGER}"
    )


def draw(points: Sequence[Point], path: Path) -> None:
    """Time against memory, both relative to keeping everything, a line for each length.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(7.2, 5.0)
    fill(figure, points)
    figure.savefig(path, dpi=110)


def fill(figure: Any, points: Sequence[Point]) -> None:
    """The curves, and the steps of a segment beside their points."""
    axes: Any = figure.subplots()
    colours = ("#0072B2", "#D55E00", "#009E73")
    labels: dict[tuple[float, float], Label] = {}
    curves = []
    for colour, factor in zip(colours, sorted({p.factor for p in points}), strict=False):
        curve = {(100 / p.times_less, p.times_longer): p for p in points if p.factor == factor}
        name = f"{22 * factor} words in the mean"
        curves += axes.plot(*zip(*curve, strict=True), "o-", color=colour, label=name)
        for at, point in curve.items():
            text = {None: "keep all", WHOLE: "whole scan", "sqrt": "√T"}.get(
                point.recompute, str(point.recompute)
            )
            labels[at] = Label(text, "black" if at in labels else colour)
    less = f"at most 1/{LESS} of the memory"
    goals = [
        axes.axvline(100 / LESS, color="grey", linewidth=1, linestyle="--", label=less),
        axes.axhline(LONGER, color="grey", linewidth=1, linestyle=":",
                     label=f"at most {LONGER} × the time"),
    ]  # fmt: skip
    axes.set_xlim(left=0, right=120)
    axes.set_xlabel("peak of the arena, % of keeping everything")
    axes.set_ylabel("time of forward and backward, × keeping everything")
    axes.set_title(
        f"LSTM seq2seq, {SENTENCES} pairs, recomputed in segments of so many steps", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=[*curves, *goals], frameon=False, loc="upper right")
    _label(axes, labels, curves, goals)


class Label(NamedTuple):
    """The text beside a point."""

    text: str
    colour: str


def _label(
    axes: Any, labels: Mapping[tuple[float, float], Label], curves: Sequence[Any],
    goals: Sequence[Any],
) -> None:  # fmt: skip
    """Write each label as near to its point as nothing else is: points, curves, other labels."""
    from matplotlib.transforms import Bbox

    figure = axes.figure
    figure.draw_without_rendering()  # lays the axes out, so that points have their pixels
    taken = [shape.get_window_extent() for shape in (axes.get_legend(), *goals)]
    for curve in curves:
        ends = axes.transData.transform(curve.get_xydata())
        taken += [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in ends]
        for begin, end in pairwise(ends):
            steps = np.linspace(begin, end, 2 + int(np.abs(end - begin).max() / 2))
            taken += [Bbox.from_extents(x - 1, y - 1, x + 1, y + 1) for x, y in steps]
    for at, label in labels.items():
        for away, angle in product(range(8, 80, 4), range(30, 390, 30)):
            offset = away * np.cos(np.radians(angle)), away * np.sin(np.radians(angle))
            text = axes.annotate(
                label.text, at, offset, textcoords="offset points", fontsize=8, color=label.colour,
                ha="left" if offset[0] > 0 else "right", va="center",
            )  # fmt: skip
            text.set_in_layout(False)
            box = text.get_window_extent()
            if not any([box.overlaps(other) for other in taken]):
                break
            text.remove()
        taken.append(box)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory.recompute", description=__doc__
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=13, help="times each is timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    parser.add_argument("--picture", type=Path, help="file for the curve, such as recompute.png")
    options = parser.parse_args(arguments)
    db.set_num_threads(options.threads)
    others = OtherWork()
    points = [p for factor in FACTORS for p in measure(factor, options.rounds, options.seed)]
    show(table(points, others.warning()), [asdict(point) for point in points], options.json)
    if options.picture:
        draw(points, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
