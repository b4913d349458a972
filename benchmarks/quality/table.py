"""The table of docs/results.md, from the trainings that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.quality.task import Task
from benchmarks.quality.training import SIDES
from dynbatch.atomic import write_text

PAGE = Path("docs/results.md")
NUM_SEEDS = 3
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def write_table(results: Sequence[Mapping[str, Any]], tasks: Mapping[str, type[Task]]) -> None:
    """Replace what stands between the two marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(
        PAGE, before + BEGIN + table(results, tasks) + conclusion(results, tasks) + END + after
    )


def table(results: Sequence[Mapping[str, Any]], tasks: Mapping[str, type[Task]]) -> str:
    """Quality of each task by side, with its spread over seeds, and what training cost."""
    heads = [
        "task",
        "measure",
        "dynbatch",
        "dynbatch, bfloat16",
        "PyTorch",
        "minutes",
        "memory, MB",
    ]
    rows = [[*heads, "commit"], ["---"] * 8]
    for name, task in tasks.items():
        lines = [r for r in results if r["task"] == name]
        if not lines:
            continue
        runs = [[r for r in lines if r["side"] == side] for side in SIDES]
        costs = [
            " / ".join([_mean([r[key] * scale for r in side], form) for side in runs])
            for key, scale, form in (("seconds", 1 / 60, ".2g"), ("peak_mb", 1, ".0f"))
        ]
        commits = ", ".join(dict.fromkeys([r["commit"] for r in lines]))
        example = f"[{task.example}](../examples/{task.example}/README.md)"
        first, last = f"`{name}`: {task.data}; {example}", [*costs, commits]
        for measure in lines[0]["quality"]:
            values = [_spread([r["quality"][measure] for r in side]) for side in runs]
            rows.append([first, measure, *values, *last])
            first, last = "", ["", "", ""]
    return "".join([f"| {' | '.join(row)} |\n" for row in rows])


def conclusion(results: Sequence[Mapping[str, Any]], tasks: Iterable[str]) -> str:
    """Tell how dynbatch, in float32, compares with PyTorch where both have all seeds."""
    apart, count = [], 0
    ratios: dict[str, dict[float, str]] = {"seconds": {}, "peak_mb": {}}
    for name in tasks:
        ours, theirs = [
            [r for r in results if (r["task"], r["side"]) == (name, side)]
            for side in ("dynbatch", "pytorch")
        ]
        if min(len(ours), len(theirs)) < NUM_SEEDS:
            continue
        for measure in ours[0]["quality"]:
            a, b = [[r["quality"][measure] for r in side] for side in (ours, theirs)]
            count += 1
            if max(min(a), min(b)) > min(max(a), max(b)):
                apart.append(f"`{name}`: {measure}")
        for key, of_tasks in ratios.items():
            of_tasks[mean([r[key] for r in theirs]) / mean([r[key] for r in ours])] = name
    if not count:
        return ""
    minutes, memory = [
        " to ".join([f"{ratio:.1f} (`{of[ratio]}`)" for ratio in sorted({min(of), max(of)})])
        for of in ratios.values()
    ]
    but = f" They do not in {', '.join(apart)}." if apart else ""
    overlap = f"overlap in {count - len(apart)} of {count} measures.{but}"
    costs = f"{minutes} times the minutes of dynbatch, and {memory} times its memory"
    return f"\nThe ranges of dynbatch and of PyTorch {overlap} PyTorch takes {costs}.\n"


def _mean(values: Sequence[float], form: str) -> str:
    return format(mean(values), form) if values else "–"


def _spread(values: Sequence[float]) -> str:
    """The mean over seeds, the least and the largest; and of how many seeds, if not of all."""
    if not values:
        return "–"
    told = [f"{min(values):.2f} – {max(values):.2f}"] if len(values) > 1 else []
    if len(values) < NUM_SEEDS:
        told.append(f"{len(values)} of {NUM_SEEDS} seeds")
    return f"{mean(values):.2f} ({', '.join(told)})"
