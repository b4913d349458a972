"""Rules of advice about what ran together, and what ran apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dynbatch.batcher.execution.record import GraphStatistics
from dynbatch.reporting.reasons import DEPENDS, EARLIER_RUN, POLICY, Apart
from dynbatch.reporting.rules import Advice, Observed, a_batch, in_ms, mistake, total_seconds
from dynbatch.reporting.run_record import RunRecord, StepRecord

MOST_HOST = 0.25
"""A share of the run's time above which what more sentences would share is worth a change."""

FEW_ROWS = 1000
"""In a batch, on average: with more, a larger mini-batch makes planning hardly cheaper."""

LONG_CHAIN = 8
"""Batches with one weight that wait for each other: more than layers that share it have."""

MANY_APART = 4
"""Signatures of a node type that differ in widths, a static attribute or a parameter."""

MADE_EQUAL = ("widths", "static attribute")
"""Beginnings of reasons: a user can make these equal."""

OTHER_BLOCK = "static attribute program"
"""Two layers of a model that are blocks: not for a user to make equal."""

MANY_TIMES = 2
"""Times the fewest batches possible: from there on a graph's way of running stands out."""

MANY_NODES, MEAN_BATCH = 500, 1.5
"""Nodes of a graph, and those of a batch on average, of which fewer are almost one by one."""

FEW_NODES, FULL = 8, 32
"""Nodes that show a small mini-batch, if no batch has more; and rows below which a kernel's time
hardly depends on their number."""

Pairs = Sequence[Apart]
"""All batches that ran apart, as `apart` finds them: once for all rules."""

Groups = list[tuple[int, ...]]
"""Numbers of batches, those of one signature each."""


def _few(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    """A mini-batch of a few sentences: its kernels take about as long as those of many."""
    most, begin = _most_nodes(record), _most_nodes(record, _sources(record))
    few = f"no batch has more than {most} node{'s' * (most > 1)}"
    if most > FEW_NODES:  # as the tokens of one sentence have, if each is a node
        few = f"it begins with no more than {begin} node{'s' * (begin > 1)} of a kind"
        most = begin
    if not 0 < most <= FEW_NODES or len(record.plans) > 1 or observed.saving:
        return
    host = record.statistics.host_seconds * (1 - most / FULL)
    spared = host + sum([_spared(row) for row in record.rows])
    if spared > MOST_HOST * total_seconds(record):
        yield Advice(
            spared,
            f"{few}, so this graph has few sentences: up to about {FULL}, more of them take "
            "hardly longer",
            f"a larger mini-batch: {FULL} sentences or more in one graph; --batch-size of "
            "dynbatch train",
        )


def _host(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    """Planning that more sentences would share: not that of batches which ran apart."""
    statistics = record.statistics
    joined = 1 - _apart_for_a_reason(record, pairs) / max(1, statistics.batches)
    host = statistics.host_seconds * joined
    if record.is_cuda or host < MOST_HOST * total_seconds(record):
        return
    if any(_few(record, observed, pairs)):
        return  # which tells it already
    alone = sum([1 for row in record.rows if row.nodes == 1])
    if len(record.plans) > 1 and alone > len(record.rows) / 2:
        return  # values that were read: each sentence runs alone, however many there are
    rows = sum([row.rows for row in record.rows]) / max(1, len(record.rows))
    if rows > FEW_ROWS:
        return
    yield Advice(
        host / 2,
        f"planning and starting {statistics.batches} batches (at least {record.lower_bound}) "
        f"takes {in_ms(statistics.host_seconds)}, kernels {in_ms(statistics.kernel_seconds)}: with "
        f"{rows:.0f} rows in a batch there is little to compute",
        "more sentences in a mini-batch; their number hardly changes that of batches",
    )


def _read_between(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    extra = _extra(pairs, EARLIER_RUN)
    if extra and 2 * record.statistics.lone_runs > len(record.plans):  # else db.drive, as a rule
        numbers = [number for of_type in extra.values() for number in of_type]
        if sum([record.rows[number].nodes for number in numbers]) > FEW_NODES * len(numbers):
            return  # each run has many sentences, as those of db.drive
        yield Advice(
            _joining(record, numbers),
            f"values were read while the graph was built, in {len(record.plans)} runs: "
            f"{len(numbers)} batches ran apart for it, most of {next(iter(extra))}",
            "build all sentences, then read; where values decide, db.drive reads for all at once",
            stands_out=record.statistics.lone_runs >= LONG_CHAIN
            and record.statistics.batches >= MANY_TIMES * record.lower_bound,
        )


def _policy(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    extra = _extra(pairs, POLICY)
    if extra:
        policy, batches = record.plans[-1].policy, record.statistics.batches
        # What ran apart since values were read is no policy's fault.
        fewest = max(record.lower_bound, batches - sum(map(len, extra.values())))
        yield Advice(
            (batches - fewest) * a_batch(record),
            f"the policy {policy} made {batches} batches, where {fewest} could do; most apart are "
            f"those of {next(iter(extra))}",
            "Graph() without policy, which comes closest to the lower bound",
            stands_out=batches >= MANY_TIMES * fewest,
        )


def _chains(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    """Batches with one weight that wait for each other are a loop over tokens."""
    weighted = [bool(row.parameters) and not row.inside for row in record.rows]
    chains = [
        pair for pair in pairs
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
        stands_out=all([_is_of_vectors(record.rows[number]) for number in longest.first]),
    )


def _signatures(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    for node_type, (reason, groups) in _groups(pairs, MADE_EQUAL).items():
        yield Advice(
            _joining(record, [number for group in groups[1:] for number in group]),
            f"{node_type} ran in {len(groups)} groups that could be one: {reason}",
            "make it equal for all sentences; a length may differ, a width may not",
            stands_out=_nodes(record, groups)
            <= len(groups) * min(FEW_NODES, _most_nodes(record) / 2),
        )


def _parameters(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    for node_type, (reason, groups) in _copied_layers(record, pairs).items():
        yield Advice(
            _joining(record, [number for group in groups[1:] for number in group]),
            f"{node_type} ran with {len(groups)} parameters or sets of them, for "
            f"{_nodes(record, groups)} nodes: {reason}",
            "one layer for all sentences, made in __init__; the optimizer does not know one that "
            "is made in the loop",
            stands_out=bool(_of_one_name(record, groups)),
        )


def _alone(record: RunRecord, observed: Observed, pairs: Pairs) -> Iterator[Advice]:
    """A graph that ran almost one by one, and could not do otherwise."""
    statistics = record.statistics
    if is_almost_one_by_one(statistics) and record.lower_bound * MEAN_BATCH > statistics.batches:
        yield mistake(
            "nearly every node reads the one before it; a graph of one sentence, or of one chain, "
            "has nothing to batch",
            "put all sentences of a mini-batch into one graph, or use db.scan",
        )


def is_almost_one_by_one(statistics: GraphStatistics) -> bool:
    few = statistics.nodes < MEAN_BATCH * statistics.batches
    return few and statistics.nodes >= MANY_NODES


def _is_of_vectors(row: StepRecord) -> bool:
    """Whether its nodes have a row each, as tokens have and sentences have not."""
    return row.rows == row.nodes


def _groups(pairs: Pairs, reasons: tuple[str, ...]) -> dict[str, tuple[str, Groups]]:
    """Batches of each signature by node type, if many differ so; and the first reason."""
    by_type: dict[str, list[Apart]] = {}
    for pair in pairs:
        if pair.second and pair.reason.startswith(reasons) and OTHER_BLOCK not in pair.reason:
            by_type.setdefault(pair.node_type, []).append(pair)
    groups = {
        node_type: (
            pairs[0].reason,
            sorted({group for p in pairs for group in (p.first, p.second)}),
        )
        for node_type, pairs in by_type.items()
    }
    return {name: one for name, one in groups.items() if len(one[1]) >= MANY_APART}


def _copied_layers(record: RunRecord, pairs: Pairs) -> dict[str, tuple[str, Groups]]:
    """Groups that differ in parameters, and are a layer for each sentence or token.

    Together they have no more nodes than a batch could have: each layer of a model reads all
    sentences. Or each has one node, and all parameters have one name. Layers of which most read the
    one before are a model's.
    """
    layers: dict[str, tuple[str, Groups]] = {}
    for node_type, (reason, groups) in _groups(pairs, ("parameter",)).items():
        made_anew = _of_one_name(record, groups)
        if made_anew:
            names = [name for name, _ in record.rows[made_anew[0][0]].parameters.values()]
            layers[node_type] = f"parameters differ, all called {names[0]!r}", made_anew
        elif _nodes(record, groups) <= min(_most_nodes(record), FEW_NODES * len(groups)):
            layers[node_type] = reason, groups
    return {name: one for name, one in layers.items() if not _is_stack(record, one[1])}


def _of_one_name(record: RunRecord, groups: Groups) -> Groups:
    """The groups of one node whose parameters have equal names and shapes, if they are many."""
    alike: dict[object, Groups] = {}
    for group in groups:
        row = record.rows[group[0]]
        if len(group) == 1 and row.nodes == 1:
            alike.setdefault((row.width, *row.parameters.values()), []).append(group)
    most = max(alike.values(), key=len, default=[])
    return most if len(most) >= LONG_CHAIN else []


def _is_stack(record: RunRecord, groups: Groups) -> bool:
    """Whether most nodes of the groups read, perhaps through others, another of them."""
    nodes: dict[int, set[int]] = {}  # by plan
    for group in groups:
        for run, step in {record.rows[number].planned for number in group}:
            nodes.setdefault(run, set()).update(record.plans[run].steps[step].nodes)
    reading = 0
    for run, members in nodes.items():
        below: list[bool] = []
        for inputs in record.plans[run].structure.inputs:
            below.append(any([below[i] or i in members for i in inputs]))
        reading += sum([below[node] for node in members])
    return 2 * reading > sum(map(len, nodes.values()))


def _nodes(record: RunRecord, groups: Groups) -> int:
    return sum([record.rows[number].nodes for group in groups for number in group])


def _extra(pairs: Pairs, reason: str) -> dict[str, list[int]]:
    """Batches that a reason brings on top by node type, most first."""
    extra: dict[str, list[int]] = {}
    for pair in pairs:
        if pair.reason.startswith(reason) and not pair.second:
            extra.setdefault(pair.node_type, []).extend(pair.first[1:])
    return dict(sorted(extra.items(), key=lambda item: -len(item[1])))


def _apart_for_a_reason(record: RunRecord, pairs: Pairs) -> int:
    """Batches that ran apart for what a user can change: more sentences make more of them."""
    extra = [*_extra(pairs, EARLIER_RUN).values(), *_extra(pairs, POLICY).values()]
    differing = [_groups(pairs, MADE_EQUAL), _copied_layers(record, pairs)]
    signatures = [len(groups) - 1 for by_type in differing for _, groups in by_type.values()]
    return sum([len(numbers) for numbers in extra]) + sum(signatures)


def _most_nodes(record: RunRecord, rows: Iterable[StepRecord] | None = None) -> int:
    """The nodes of the largest batch: about the number of sentences."""
    return max([row.nodes for row in (record.rows if rows is None else rows)], default=0)


def _sources(record: RunRecord) -> list[StepRecord]:
    """The batches whose nodes read no node: each sentence begins with one."""
    rows = []
    for row in record.rows:
        run, number = row.planned
        plan = record.plans[run]
        if not plan.structure.inputs[plan.steps[number].nodes[0]]:
            rows.append(row)
    return rows


def _joining(record: RunRecord, numbers: Iterable[int]) -> float:
    """Seconds that these batches take at most, beside what they would in a larger one."""
    return sum([a_batch(record) + _spared(record.rows[number]) for number in numbers])


def _spared(row: StepRecord) -> float:
    """Seconds of a batch's kernels that it would take, at most, if it were part of a full one.

    A recurrence has a row for each node at a time.
    """
    rows = row.nodes if row.loops or row.inside else row.rows
    return (row.seconds + row.seconds_backward) * max(0.0, 1 - rows / FULL)


APART_RULES = (_read_between, _policy, _parameters, _signatures, _chains, _alone)
"""On why batches are small."""

BATCH_RULES = (*APART_RULES, _few, _host)
