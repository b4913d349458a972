"""Rules of advice about the work itself, and what advice is.

A gain is what a change brings at most, in seconds of the run; what a rule cannot measure has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dynbatch.batcher.execution.record import RunRecord
from dynbatch.kernels.runtime.parallel import num_processors, num_threads
from dynbatch.nodes.operation import signature_type
from dynbatch.reporting.backends import without_c

MOST_BUILDING = 0.3
"""A share of the run's time above which making nodes is worth a change."""

A_NODE = 2e-4
"""Seconds: making a node takes less, a tenth of it as a rule."""

FIXED = "\xa0"
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


def total_seconds(record: RunRecord) -> float:
    """Seconds of the runs, and of what built their nodes."""
    return record.build_seconds + record.statistics.host_seconds + record.statistics.kernel_seconds


def in_ms(seconds: float) -> str:
    """Seconds as text in which no line ends."""
    return f"{seconds * 1e3:,.1f}{FIXED}ms"


def a_batch(record: RunRecord) -> float:
    """The host's seconds for a batch, on average."""
    return record.statistics.host_seconds / max(1, record.statistics.batches)


def _numpy(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    why = without_c()
    if why and not record.is_cuda:
        kernels = record.statistics.kernel_seconds
        yield Advice(
            kernels / 2,
            f"{why}. Kernels take {in_ms(kernels)}; in C about half of that",
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
                f"{row.kind} takes {in_ms(seconds)}: {max(remarks)}",
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
            f"values are float64: kernels read and write twice the bytes, in {in_ms(kernels)}",
            "float32 for training: Graph(), and model.astype('float32')",
        )


def _saving(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if not observed.saving:
        return
    again = 0.0
    for row in record.rows:
        again += sum([end - begin for what, begin, end in row.spans if what == "forward"][1:])
    parts = sum([1 for plan in record.plans if plan.part])
    time = f"; computing again takes {in_ms(again)}" if again else ""
    yield Advice(
        again + parts * a_batch(record),
        f"memory_limit: {observed.saving}{time}",
        "a higher memory_limit, or fewer sentences in a mini-batch",
    )


def _threads(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    threads, processors = num_threads(), num_processors()
    if record.is_cuda or threads >= processors:
        return
    kernels = record.statistics.kernel_seconds
    yield Advice(
        kernels * (1 - threads / processors),
        f"kernels take {in_ms(kernels)} on {threads} of {processors} processors",
        f"db.set_num_threads({processors}), or leave --threads out",
    )


def _building(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    seconds, nodes = record.build_seconds, record.statistics.nodes
    if seconds > MOST_BUILDING * total_seconds(record):
        counts: Counter[str] = Counter()
        for row in record.rows:
            counts[row.kind] += row.nodes
        kind, most = counts.most_common(1)[0]
        takes = f"from making the graph to running it, Python takes {in_ms(seconds)}"
        if seconds > A_NODE * nodes and observed.block_notes:
            yield Advice(
                seconds,
                f"{takes}, tracing blocks in it",
                "mend what is said of blocks below",
            )
            return
        if seconds > A_NODE * nodes:
            yield Advice(
                seconds,
                f"{takes}, which its {nodes:,} nodes do not explain",
                "prepare ids and make layers before the graph is made; if they are, another "
                "program ran meanwhile: ask once more",
            )
            return
        yield Advice(
            seconds,
            f"{takes}, with {nodes:,} nodes, {most:,} of them {kind}",
            "one call for a whole sentence, not one for each token; ids prepared beforehand; "
            "@db.block makes a layer one node, db.scan a loop",
        )


def _log_of_softmax(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    found: set[int] = set()
    for plan in record.plans:
        signatures = plan.structure.signatures
        for node, inputs in zip(signatures, plan.structure.inputs, strict=True):
            if signature_type(node).__name__ == "Log":
                read = [signatures[i] for i in inputs]
                if any([signature_type(one).__name__ == "Softmax" for one in read]):
                    found.update((node, *read))
    if found:
        rows = [row for row in record.rows if row.signature in found]
        seconds = sum([row.seconds + row.seconds_backward for row in rows])
        yield Advice(
            seconds,
            f"Softmax, and the logarithm of it, take {in_ms(seconds)}; that of a 0 is -inf",
            "F.log_softmax; for a loss F.cross_entropy of the scores, which stores neither",
        )


def _blocks(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    for (name, what), count in observed.block_notes.items():
        yield Advice(
            0.0,
            f"{name}: {count} call{'s' * (count > 1)} {what}",
            "the guide on explain tells for each reason what helps",
        )


RULES = (
    _numpy, _not_compiled, _doubled, _float64, _saving, _threads, _building, _blocks,
    _log_of_softmax,
)  # fmt: skip
