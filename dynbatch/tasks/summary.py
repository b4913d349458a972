"""Texts on a run: of a long example before, of its speed and memory at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from dynbatch.tasks.task import Task
from dynbatch.train.metrics import Record

LONG = 100_000
"""Characters of an example by which its mini-batch takes so long that it is told."""


def speed(records: Iterable[Record]) -> str:
    """The sentences that were trained on in a second, on average; "" if no record tells it."""
    known = [record for record in records if record.get("sentences_per_second")]
    if not known:
        return ""
    seconds = sum([record["sentences"] / record["sentences_per_second"] for record in known])
    return f"{sum([record['sentences'] for record in known]) / seconds:,.0f} sentences per second"


def memory_saved(records: Iterable[Record]) -> str:
    """Memory that a training's mini-batches took, and would have taken padded, as one line.

    Args:
        records: of the metrics file; those with `padded_bytes` count (see `train.Trainer`).

    Returns:
        "" if no record says what padding would have taken.
    """
    known = [record for record in records if "padded_bytes" in record]
    if not known:
        return ""
    used, padded = [[record[name] for record in known] for name in ("peak_bytes", "padded_bytes")]
    as_planned = sum([record["peak_bytes"] == record["planned_bytes"] for record in known])
    return (
        f"{mean(used) / 1e6:.1f} MB on average ({max(used) / 1e6:.1f} at most), padded "
        f"{mean(padded) / 1e6:.1f} ({max(padded) / 1e6:.1f}): {1 - sum(used) / sum(padded):.0%} "
        f"saved; {as_planned} of {len(known)} looked at took what was planned before they ran"
    )


def long_example(task: Task, texts: Sequence[Any]) -> str:
    """A line on an example so long that its mini-batch takes minutes; "" if there is none."""
    longest = max([task.shown(text) for text in texts], key=len)
    if task.is_bounded or len(longest) < LONG:
        return ""
    return (
        f"an example has {len(longest):,} characters: {longest[:40]}…\n"
        "  A mini-batch with it may take minutes, in which nothing is shown.\n"
        "  fix:  leave it out, or divide it"
    )
