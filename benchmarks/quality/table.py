"""The table of docs/results.md, from the trainings that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.quality.task import Task
from benchmarks.quality.training import SIDES
from dynbatch.atomic import write_text

PAGE = Path("docs/results.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def write_table(results: Sequence[Mapping[str, Any]], tasks: Mapping[str, type[Task]]) -> None:
    """Replace what stands between the two marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(PAGE, before + BEGIN + table(results, tasks) + END + after)


def table(results: Sequence[Mapping[str, Any]], tasks: Mapping[str, type[Task]]) -> str:
    """Quality of each task by side, with its spread over seeds, and what training cost."""
    lines = [
        "| task | measure | dynbatch | dynbatch, bfloat16 | PyTorch | minutes | memory, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, task in tasks.items():
        runs = [[r for r in results if (r["task"], r["side"]) == (name, side)] for side in SIDES]
        if not any(runs):
            continue
        measures = next(iter([r for side in runs for r in side]))["quality"]
        costs = [
            " / ".join([_mean([r[key] * scale for r in side], form) for side in runs])
            for key, scale, form in (("seconds", 1 / 60, ".1f"), ("peak_mb", 1, ".0f"))
        ]
        for number, measure in enumerate(measures):
            values = [_spread([r["quality"][measure] for r in side]) for side in runs]
            first = [f"**{name}**: {task.data}", measure, *values, *costs]
            lines.append(
                f"| {' | '.join(first if not number else ['', measure, *values, '', ''])} |"
            )
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float], form: str) -> str:
    return format(mean(values), form) if values else "–"


def _spread(values: Sequence[float]) -> str:
    """The mean, and the least and the largest of several."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.2f} (1 seed)"
    return f"**{mean(values):.2f}** ({min(values):.2f} – {max(values):.2f})"
