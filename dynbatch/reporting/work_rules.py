"""Rules of advice about the work itself."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from dynbatch.kernels.backends import without_c
from dynbatch.kernels.runtime.parallel import num_threads, own_processors
from dynbatch.nodes.operation import signature_type
from dynbatch.reporting.rules import (
    MUCH_WORK,
    Advice,
    Observed,
    a_batch,
    in_ms,
    mistake,
    total_seconds,
)
from dynbatch.reporting.run_record import RunRecord

MOST_BUILDING = 0.3
"""A share of the run's time above which making nodes is worth a change."""

MANY_AGAIN, MANY_PARTS = 0.25, 4
"""A share of batches that run again, and parts of a mini-batch: more than a little memory is saved
by them."""

LEAST_CONVERTED = 1_000_000
"""Bytes of inputs in a graph; converting fewer takes no time."""

LEAST_KEPT = 16
"""Nodes: fewer may be all that somebody looks at."""

LEAST_PADDED = 0.1
"""A share of given rows."""

MOST_READING = 0.25
"""A share of a training's time."""

MOST_BETWEEN = 3
"""Nodes between a product and its softmax: a scale, a mask, a reshape."""

A_NODE = 2e-4
"""Seconds: making a node takes less, a tenth of it as a rule."""


def _numpy(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    why = without_c()
    if why and not record.is_cuda and sys.platform != "emscripten":  # where nothing mends it
        kernels = record.statistics.kernel_seconds
        yield Advice(
            kernels / 2,
            f"{why}. Kernels take {in_ms(kernels)}; in C about half of that",
            "pip install 'dynbatch[compiler]', or any C compiler; db.backends() tells",
            stands_out=True,
        )


def _doubled(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if observed.is_doubled:
        yield Advice(
            record.statistics.kernel_seconds / 2,
            "check or guard looks at each batch, and no kernels are joined for it",
            "Graph() without check and guard, once the numbers are right",
            stands_out=True,
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
    again, times_again = 0.0, 0
    for row in record.rows:
        spans = [end - begin for what, begin, end in row.spans if what == "forward"]
        again += sum(spans[1:])
        times_again += len(spans[1:])
    parts = sum([1 for plan in record.plans if plan.part])
    time = f"; computing again takes {in_ms(again)}" if again else ""
    yield Advice(
        again + parts * a_batch(record),
        f"memory_limit: {observed.saving}{time}",
        "a higher memory_limit, or fewer sentences in a mini-batch",
        stands_out=times_again >= MANY_AGAIN * len(record.rows) or parts >= MANY_PARTS,
    )


def _threads(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    threads, processors = num_threads(), own_processors()
    if record.is_cuda or threads >= processors:
        return
    kernels = record.statistics.kernel_seconds
    yield Advice(
        kernels * (1 - threads / processors),
        f"kernels take {in_ms(kernels)} on {threads} of {processors} processors",
        f"db.set_num_threads({processors}), or leave --threads out",
        stands_out=any([row.flops.total >= MUCH_WORK for row in record.rows]),
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
    numbers: set[int] = set()
    for plan in record.plans:
        signatures = plan.structure.signatures
        for node, inputs in zip(signatures, plan.structure.inputs, strict=True):
            if signature_type(node).__name__ == "Log":
                read = [signatures[i] for i in inputs]
                if any([signature_type(one).__name__ == "Softmax" for one in read]):
                    numbers.update((node, *read))
    if numbers:
        rows = record.rows_with(numbers)
        seconds = sum([row.seconds + row.seconds_backward for row in rows])
        yield Advice(
            seconds,
            f"Softmax, and the logarithm of it, take {in_ms(seconds)}; that of a 0 is -inf",
            "F.log_softmax; for a loss F.cross_entropy of the scores, which stores neither",
        )


def _attention(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    """A product that reads a softmax of a product, perhaps scaled or masked on the way."""
    signatures: set[int] = set()
    for plan in record.plans:
        types = [signature_type(one).__name__ for one in plan.structure.signatures]
        inputs = plan.structure.inputs
        for node, read in enumerate(inputs):
            weights = [i for i in read if types[node] == "MatMul" and types[i] == "Softmax"]
            below = [j for i in weights for j in inputs[i]]
            # Scaling and masking may stand between the product of scores and the softmax.
            for _ in range(MOST_BETWEEN):
                below += [k for j in below if types[j] != "MatMul" for k in inputs[j]]
            if any([types[j] == "MatMul" for j in below]):
                signatures.add(plan.structure.signatures[node])
    rows = record.rows_with(signatures)
    if rows:
        yield mistake(
            f"attention by hand: {sum([row.nodes for row in rows])} products read a softmax of "
            "products, each a node of its own, and all weights are stored",
            "F.attention(queries, keys, values), which stores one number a query; or @db.block "
            "around it",
        )


def _padding(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    steps = [row for row in record.rows if row.padded_rows]
    padded, rows = sum([row.padded_rows for row in steps]), sum([row.rows for row in steps])
    if padded > LEAST_PADDED * rows:
        yield mistake(
            f"{padded} of {rows} rows of {steps[0].kind} look like padding: all sentences are of "
            "one length, and most end in equal rows",
            "give sentences as they are, each with its own length; nothing here needs padding",
        )


def _converted(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if observed.converted_bytes >= LEAST_CONVERTED:
        yield mistake(
            f"inputs of {observed.converted_bytes:,} bytes were not of the graph's dtype (NumPy "
            "makes float64) and were converted in this graph",
            'array.astype("float32") once, when the data is read',
        )


def _kept(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    nodes = record.statistics.nodes
    if observed.kept >= LEAST_KEPT and 2 * observed.kept >= nodes:
        yield mistake(
            f"keep() holds {observed.kept} of {nodes} nodes that others read: their memory is not "
            "used again, and they are copied when the graph ends",
            "keep() only of what is read after backward; the loss is kept anyway",
        )


def _reading(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    if observed.reading > MOST_READING:
        yield mistake(
            f"training waits for mini-batches {observed.reading:.0%} of its time: reading the data "
            "is slow",
            "read and prepare it beforehand, or in other processes: "
            "train.PreparedBatches(..., workers=2)",
        )


def _blocks(record: RunRecord, observed: Observed) -> Iterator[Advice]:
    for (name, what), count in observed.block_notes.items():
        yield Advice(
            0.0,
            f"{name}: {count} call{'s' * (count > 1)} {what}",
            "the guide on explain tells for each reason what helps",
        )


WORK_RULES = (
    _reading, _doubled, _numpy, _padding, _attention, _saving, _kept, _converted, _threads,
    _float64, _building, _blocks, _log_of_softmax,
)  # fmt: skip
