"""Advice on what to change so that a run is faster, with the figures of this very run."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from dynbatch.arguments import integer, refused
from dynbatch.reporting.batch_rules import APART_RULES, BATCH_RULES
from dynbatch.reporting.last_graphs_rules import LAST_GRAPHS_RULES
from dynbatch.reporting.reasons import apart
from dynbatch.reporting.rules import FIXED, Advice, Observed, in_ms, total_seconds
from dynbatch.reporting.run_record import RunRecord
from dynbatch.reporting.work_rules import WORK_RULES

LEAST_SHARE = 0.03
"""Of the run's time: a smaller gain is not told."""

NARROWEST = 40
"""Characters of a line in which the list can be read."""


def advice(record: RunRecord, observed: Observed) -> list[Advice]:
    """The advice: first what stands out, then the others in order of what they would bring.

    A record of a step that was run before in the process gives better figures: the first one also
    compiles and plans.
    """
    total = total_seconds(record)
    told = list(_told(record, observed))
    worth = [one for one in told if not one.seconds or one.seconds >= LEAST_SHARE * total]
    return sorted(worth, key=lambda one: (not one.stands_out, -one.seconds))


def standing_out(record: RunRecord, observed: Observed) -> list[Advice]:
    """Advice on what counts alone show to be a mistake, whatever took how long."""
    return [one for one in _told(record, observed) if one.stands_out]


def why_apart(record: RunRecord, observed: Observed) -> Advice | None:
    """The likely cause of small batches."""
    pairs = apart(record)
    causes = (one for rule in APART_RULES for one in rule(record, observed, pairs))
    return next(causes, None)


def _told(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    pairs = apart(record)
    for of_several in LAST_GRAPHS_RULES:
        yield from of_several(record, observed)
    for batch_rule in BATCH_RULES:
        yield from batch_rule(record, observed, pairs)
    for rule in WORK_RULES:
        yield from rule(record, observed)


def advice_text(record: RunRecord, observed: Observed, columns: int = 80) -> str:
    """`advice` as a numbered list.

    Raises:
        ArgumentError: `columns` is not a number, or below `NARROWEST`.
    """
    if integer("advice", "columns", columns) < NARROWEST:
        rule = f"the width of the lines, {NARROWEST} or more"
        raise refused("advice", f"columns is {columns}", rule, "leave columns out: 80")
    if not record.plans:
        return fill("what to change: nothing has run yet; ask after backward or a value", columns)
    total = total_seconds(record)
    pieces, first = advice(record, observed), _compiling(record, columns)
    if not pieces:
        return fill(f"what to change: nothing stands out. {_work_itself(record)}", columns) + first
    lines = [fill("what to change, by what it would bring at most", columns)]
    for number, one in enumerate(pieces, start=1):
        gain = f"{one.seconds / total:.0%} of the time: " if one.seconds else ""
        for begin, text in ((f"{number:>3}. {gain}", one.problem), ("     fix: ", one.fix)):
            lines.append(fill(begin + text, columns, subsequent_indent=" " * 5))
    return "\n".join(lines).replace(FIXED, " ") + first


def _compiling(record: RunRecord, columns: int) -> str:
    """A last line on what only the first runs of a process do."""
    least = LEAST_SHARE * total_seconds(record)
    if not record.compile_seconds or record.compile_seconds < least:
        return ""
    took = in_ms(record.compile_seconds)
    text = f"compiling took {took} besides, once: ask a later step, which also plans faster"
    return f"\n{fill(text, columns)}".replace(FIXED, " ")


def _work_itself(record: RunRecord) -> str:
    """The parts of the work that take the time if nothing is to be blamed."""
    batches = f"{record.statistics.batches} batches, at least {record.lower_bound}"
    seconds: dict[str, float] = {}
    for row in record.rows:
        spent = seconds.get(row.kind, 0.0) + row.seconds + row.seconds_backward
        seconds[row.kind] = spent
    whole = sum(seconds.values())
    if not whole:
        return f"It ran in {batches}"
    most = max(seconds, key=lambda kind: seconds[kind])
    share = record.statistics.kernel_seconds / total_seconds(record)
    return (
        f"In {batches}, kernels take {share:.0%} of the time, {most} {seconds[most] / whole:.0%} "
        "of theirs: less work is a smaller model, and a GPU does it faster"
    )
