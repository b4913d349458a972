"""What to change so that a run is faster: rules with the figures of this very run.

A gain is what a change brings at most, in seconds of the run; what a rule cannot measure has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import NamedTuple

from dynbatch.batcher.execution.record import RunRecord
from dynbatch.kernels.runtime.parallel import num_threads
from dynbatch.reporting.backends import without_c
from dynbatch.reporting.reasons import DEPENDS, EARLIER_RUN, POLICY, Apart, apart

LEAST_SHARE = 0.03
"""Of the run's time: a smaller gain is not told."""

MOST_HOST, MOST_BUILDING = 0.25, 0.3
"""Shares of the run's time above which planning, and making nodes, are worth a change."""

FEW_ROWS = 1000
"""In a batch, on average: with more, a larger mini-batch makes planning hardly cheaper."""

LONG_CHAIN = 8
"""Batches with one weight that wait for each other: more than layers that share it have."""

MANY_APART = 4
"""Signatures of a node type that differ in widths or a static attribute."""


_FIXED = "\xa0"
"""A space at which no line ends."""


class Advice(NamedTuple):
    """A change, and what it would bring.

    Args:
        seconds: of the run that it saves at most; 0 where the run does not tell.
        problem: with the run's own figures.
        fix:     what to write.
    """

    seconds: float
    problem: str
    fix: str


class Observed(NamedTuple):
    """What a run's record does not say.

    Args:
        block_notes: calls of blocks that are more than a node each, and why; see `explain`.
        saving:      what a `memory_limit` made it do, `MemoryUse.saving`.
        is_doubled:  `check` or `guard` looks at each batch.
        is_float64:  values have 8 bytes.
    """

    block_notes: Mapping[tuple[str, str], int]
    saving: str
    is_doubled: bool
    is_float64: bool


def advice(record: RunRecord, observed: Observed) -> list[Advice]:
    """What to change, in order of what it would bring.

    Each rule is a function of this file. A record of a step that was run before in the process
    gives better figures: the first one also compiles and plans.
    """
    total = total_seconds(record)
    rules = (
        _numpy, _not_compiled, _doubled, _float64, _saving, _threads, _building, _blocks, _host,
        _read_between, _policy, _chains, _signatures,
    )  # fmt: skip
    found = [one for rule in rules for one in rule(record, observed)]
    worth = [one for one in found if not one.seconds or one.seconds >= LEAST_SHARE * total]
    return sorted(worth, key=lambda one: -one.seconds)


def advice_text(record: RunRecord, observed: Observed, columns: int = 80) -> str:
    """`advice` as a numbered list."""
    total = total_seconds(record)
    found = advice(record, observed)
    if not found:
        return fill(f"what to change: nothing stands out. {_work_itself(record)}", columns)
    lines = ["what to change, by what it would bring at most"]
    for number, one in enumerate(found, start=1):
        gain = f"{one.seconds / total:.0%} of the time: " if one.seconds else ""
        for begin, text in ((f"{number:>3}. {gain}", one.problem), ("     fix: ", one.fix)):
            lines.append(fill(begin + text, columns, subsequent_indent=" " * 5))
    return "\n".join(lines).replace(_FIXED, " ")


def total_seconds(record: RunRecord) -> float:
    """Seconds of the runs, and of what built their nodes."""
    return record.build_seconds + record.statistics.host_seconds + record.statistics.kernel_seconds


def _work_itself(record: RunRecord) -> str:
    """Where the time goes if nothing is to be blamed."""
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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}{_FIXED}ms"


def _a_batch(record: RunRecord) -> float:
    """The host's seconds for a batch, on average."""
    return record.statistics.host_seconds / max(1, record.statistics.batches)


def _numpy(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    why = without_c()
    if why and not record.is_cuda:
        kernels = record.statistics.kernel_seconds
        yield Advice(
            kernels / 2,
            f"{why}. Kernels take {_ms(kernels)}; in C about half of that",
            "pip install 'dynbatch[compiler]', or any C compiler; db.backends() tells",
        )


def _not_compiled(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if without_c():
        return  # which is told already
    for row in record.rows:
        remarks = [] if row.on_device else [loop.in_c.remark for loop in row.loops]
        if any(remarks):
            seconds = row.seconds + row.seconds_backward
            yield Advice(
                seconds / 2,
                f"{row.kind} takes {_ms(seconds)}: {max(remarks)}",
                "write the cell with functions that have C, of dynbatch.nodes",
            )


def _doubled(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if observed.is_doubled:
        yield Advice(
            record.statistics.kernel_seconds / 2,
            "check or guard looks at each batch, and no kernels are joined for it",
            "Graph() without check and guard, once the numbers are right",
        )


def _float64(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if observed.is_float64:
        kernels = record.statistics.kernel_seconds
        yield Advice(
            kernels / 2,
            f"values are float64: kernels read and write twice the bytes, in {_ms(kernels)}",
            "float32 for training: Graph(), and model.astype('float32')",
        )


def _saving(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if not observed.saving:
        return
    again = 0.0
    for row in record.rows:
        again += sum([end - begin for what, begin, end in row.spans if what == "forward"][1:])
    parts = sum([1 for plan in record.plans if plan.part])
    time = f"; computing again takes {_ms(again)}" if again else ""
    yield Advice(
        again + parts * _a_batch(record),
        f"memory_limit: {observed.saving}{time}",
        "a higher memory_limit, or fewer sentences in a mini-batch",
    )


def _threads(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    threads, processors = num_threads(), len(os.sched_getaffinity(0))
    if record.is_cuda or threads >= processors:
        return
    kernels = record.statistics.kernel_seconds
    yield Advice(
        kernels * (1 - threads / processors),
        f"kernels take {_ms(kernels)} on {threads} of {processors} processors",
        f"db.set_num_threads({processors}), or leave --threads out",
    )


def _building(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    seconds, nodes = record.build_seconds, record.statistics.nodes
    if seconds > MOST_BUILDING * total_seconds(record):
        yield Advice(
            seconds,
            f"from making the graph to running it, Python takes {_ms(seconds)}, with "
            f"{nodes:,} nodes",
            "prepare ids beforehand; @db.block makes a layer one node, db.scan a loop",
        )


def _blocks(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    for (name, what), count in observed.block_notes.items():
        yield Advice(
            0.0,
            f"{name}: {count} call{'s' * (count > 1)} {what}",
            "the guide on explain tells for each reason what helps",
        )


def _host(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    statistics = record.statistics
    if record.is_cuda or statistics.host_seconds < MOST_HOST * total_seconds(record):
        return
    rows = sum([row.rows for row in record.rows]) / max(1, len(record.rows))
    if rows > FEW_ROWS:
        return
    yield Advice(
        statistics.host_seconds / 2,
        f"planning and starting {statistics.batches} batches (at least {record.lower_bound}) "
        f"takes {_ms(statistics.host_seconds)}, kernels {_ms(statistics.kernel_seconds)}: with "
        f"{rows:.0f} rows in a batch there is little to compute",
        "more sentences in a mini-batch; their number hardly changes that of batches",
    )


def _read_between(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    extra = _extra(record, EARLIER_RUN)
    if extra:
        yield Advice(
            sum(extra.values()) * _a_batch(record),
            f"values were read while the graph was built, in {len(record.plans)} runs: "
            f"{sum(extra.values())} batches ran apart for it, most of {next(iter(extra))}",
            "build all sentences, then read; where values decide, db.drive reads for all at once",
        )


def _policy(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    extra = _extra(record, POLICY)
    if extra:
        policy = record.plans[-1].policy
        yield Advice(
            (record.statistics.batches - record.lower_bound) * _a_batch(record),
            f"the policy {policy} made {record.statistics.batches} batches, where "
            f"{record.lower_bound} could do; most apart are those of {next(iter(extra))}",
            "Graph() without policy, which comes closest to the lower bound",
        )


def _chains(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    """Batches with one weight that wait for each other are a loop over tokens."""
    weighted = [bool(row.parameters) and not row.inside for row in record.rows]
    chains = [
        pair for pair in apart(record)
        if pair.reason == DEPENDS and len(pair.first) >= LONG_CHAIN and weighted[pair.first[0]]
    ]  # fmt: skip
    if not chains:
        return
    longest = max(chains, key=lambda pair: len(pair.first))
    yield Advice(
        record.statistics.host_seconds * (1 - 1 / len(longest.first)),
        f"{longest.node_type} ran {len(longest.first)} times with one weight, each after the one "
        "before: a loop over tokens makes each step a batch of its own",
        "db.scan(cell, ...) runs a loop along a sentence as one node; on trees call the cell",
    )


def _signatures(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    """Node types whose batches differ in what a user can make equal."""
    by_type: dict[str, list[Apart]] = {}
    for pair in apart(record):
        if pair.second and pair.reason.startswith(("widths", "static attribute")):
            by_type.setdefault(pair.node_type, []).append(pair)
    for node_type, pairs in by_type.items():
        batches = {pair.first for pair in pairs} | {pair.second for pair in pairs}
        if len(batches) >= MANY_APART:
            yield Advice(
                (len(batches) - 1) * _a_batch(record),
                f"{node_type} ran in {len(batches)} groups that could be one: {pairs[0].reason}",
                "make it equal for all sentences; a length may differ, a width may not",
            )


def _extra(record: RunRecord, reason: str) -> dict[str, int]:
    """By node type the batches that a reason brings on top, most first."""
    counts: dict[str, int] = {}
    for pair in apart(record):
        if pair.reason.startswith(reason) and not pair.second:
            counts[pair.node_type] = counts.get(pair.node_type, 0) + len(pair.first) - 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
