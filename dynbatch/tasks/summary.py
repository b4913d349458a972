"""What is said of a run at its end: its speed, and its memory beside that of padded batches."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from dynbatch.train.metrics import Record


def speed(records: Iterable[Record]) -> str:
    """The sentences that were trained on in a second, on average; "" if no record tells it."""
    known = [record for record in records if record.get("sentences_per_second")]
    if not known:
        return ""
    seconds = sum([record["sentences"] / record["sentences_per_second"] for record in known])
    return f"{sum([record['sentences'] for record in known]) / seconds:,.0f} sentences per second"


def memory_saved(records: Iterable[Record]) -> str:
    """What the mini-batches of a training took, and would have taken padded, as one line.

    Args:
        records: of the metrics file; those with `padded_bytes` count (see `train.Trainer`).

    Returns:
        "" if no record says what padding would have taken.
    """
    known = [record for record in records if "padded_bytes" in record]
    if not known:
        return ""
    own, padded = [[record[name] for record in known] for name in ("peak_bytes", "padded_bytes")]
    as_planned = sum([record["peak_bytes"] == record["planned_bytes"] for record in known])
    return (
        f"{mean(own) / 1e6:.1f} MB on average ({max(own) / 1e6:.1f} at most), padded "
        f"{mean(padded) / 1e6:.1f} ({max(padded) / 1e6:.1f}): {1 - sum(own) / sum(padded):.0%} "
        f"saved; {as_planned} of {len(known)} looked at took what was planned before they ran"
    )
