"""The tightness of planned arenas: `python -m benchmarks.memory.planners`.

Training steps of the workloads are run, and the blocks of each, with their sizes and lifetimes, are
placed by several methods. A ratio is the arena's size over the largest sum of bytes alive at once,
below which no plan can be.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from unittest.mock import patch

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import REAL_TEXT_SIGMA
from benchmarks.networks import initial_values
from benchmarks.report import show
from benchmarks.workloads import WORKLOADS, Workload
from dynbatch.batcher.planning.memory_plan import MemoryPlan
from dynbatch.memory import Interval, live_peak, plan_offsets
from dynbatch.memory.planner import by_area, by_size, last_stage, place_in_order

COMPARED = ("tagger", "seq2seq", "tree", "transformer", "tagger_steps", "seq2seq_steps")
# What must be reached: bytes over the bound, and the share of a step.
TIGHT, SHARE = 1.05, 0.03


# The methods: each sets all offsets and returns the size of the arena ----------------------------


def in_order_of_time(blocks: Sequence[Interval]) -> int:
    """Blocks placed when they are first written, in the tightest gap: what an allocator can do."""
    return place_in_order(sorted(blocks, key=lambda block: block.first))


def by_breadth(blocks: Sequence[Interval]) -> int:
    """The stage with most bytes alive first, and of its blocks the largest.

    Source: Pisarchyk & Lee 2020, arXiv:2001.03288, section 5.3 (Greedy by Breadth for Offset
        Calculation).
    """
    stages = sorted({block.first for block in blocks})
    alive = {stage: [b for b in blocks if b.first <= stage <= b.last] for stage in stages}
    breadth = {stage: sum([block.size for block in found]) for stage, found in alive.items()}
    order: dict[int, Interval] = {}
    for stage in sorted(stages, key=lambda stage: -breadth[stage]):
        for block in sorted(alive[stage], key=lambda block: -block.size):
            order.setdefault(id(block), block)
    return place_in_order(list(order.values()))


def by_strip_packing(blocks: Sequence[Interval]) -> int:
    """Best fit on the skyline: its lowest stretch takes the block that lives longest within it.

    Source: Sekiyama et al. 2018, arXiv:1804.10001, section 3.2, after Burke et al. 2004.
    """
    end = last_stage(blocks)
    ends = {id(block): min(block.last, end) for block in blocks}
    left = sorted(blocks, key=lambda block: (block.first - ends[id(block)], -block.size))
    heights = [0] * (end + 1)  # of each stage, what is placed so far
    while left:
        low = min(heights)
        begin = stop = heights.index(low)
        while stop < end and heights[stop + 1] == low:
            stop += 1
        fitting = (k for k, b in enumerate(left) if begin <= b.first and ends[id(b)] <= stop)
        chosen = next(fitting, None)
        if chosen is None:  # the stretch is raised to its lower neighbour
            sides = heights[begin - 1 : begin] * (begin > 0) + heights[stop + 1 : stop + 2]
            heights[begin : stop + 1] = [min(sides)] * (stop + 1 - begin)
            continue
        block = left.pop(chosen)
        block.offset = -(-low // block.alignment) * block.alignment
        stages = ends[id(block)] + 1 - block.first
        heights[block.first : block.first + stages] = [block.offset + block.size] * stages
    return max(heights)


METHODS: Mapping[str, Callable[[Sequence[Interval]], int]] = {
    "the planner": plan_offsets,
    "by size": lambda blocks: place_in_order(by_size(blocks)),
    "by breadth": by_breadth,
    "by area": lambda blocks: place_in_order(by_area(blocks)),
    "strip packing": by_strip_packing,
    "by time": in_order_of_time,
}


# What they are tried on ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One training step.

    Args:
        blocks:          of its arena.
        place_seconds:   placing them.
        plan_seconds:    from the schedule on until the first kernel: lifetimes, places, the arena.
        step_seconds:    the graph, forward, backward and update.
    """

    blocks: list[Interval]
    place_seconds: float
    plan_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Row:
    """One workload. Ratios are the worst of its mini-batches; shares, medians of its steps."""

    workload: str
    blocks: int
    live_bytes: int
    ratios: dict[str, float]
    method_ms: dict[str, float]
    place_share: float
    plan_share: float


@contextmanager
def recorded() -> Iterator[list[tuple[list[Interval], float]]]:
    """Inside, the blocks of every arena and the seconds it took to place them go to a list."""
    found: list[tuple[list[Interval], float]] = []
    placed = MemoryPlan.placed

    def timed(plan: MemoryPlan) -> MemoryPlan:
        begin = time.perf_counter()
        placing = placed(plan)
        found.append((plan.intervals, time.perf_counter() - begin))
        return placing

    with patch.object(MemoryPlan, "placed", timed):
        yield found


def samples(
    workload: Workload, batches: int, sentences: int, rng: np.random.Generator
) -> list[Sample]:
    """Steps on different mini-batches, after one that is not counted."""
    side = workload.ours(workload.sizes, initial_values(workload.sizes, rng), "cpu")
    taken = []
    corpus = workload.corpus(REAL_TEXT_SIGMA)
    for number, batch in enumerate(corpus.random_batches(rng, batches + 1, sentences)):
        with recorded() as found:
            side.train(batch)
        blocks, seconds = max(found, key=lambda pair: len(pair[0]))
        assert side._graph is not None
        times = side._graph._record().runs[-1]
        if number:
            taken.append(
                Sample(blocks, seconds, times.placed - times.planned, side.costs[-1].step_seconds)
            )
    return taken


def measure(name: str, workload: Workload, batches: int, sentences: int, seed: int) -> Row:
    """Every method on the same steps."""
    taken = samples(workload, batches, sentences, np.random.default_rng(seed))
    ratios: dict[str, list[float]] = {method: [] for method in METHODS}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for sample in taken:
        bound = live_peak(sample.blocks)
        for method, plan in METHODS.items():
            blocks = [replace(block, offset=-1) for block in sample.blocks]
            begin = time.perf_counter()
            ratios[method].append(plan(blocks) / bound)
            seconds[method].append(time.perf_counter() - begin)
    return Row(
        name,
        round(statistics.median([len(sample.blocks) for sample in taken])),
        round(4 * statistics.median([live_peak(sample.blocks) for sample in taken])),
        {method: max(found) for method, found in ratios.items()},
        {method: 1e3 * statistics.median(found) for method, found in seconds.items()},
        statistics.median([sample.place_seconds / sample.step_seconds for sample in taken]),
        statistics.median([sample.plan_seconds / sample.step_seconds for sample in taken]),
    )


# The report ---------------------------------------------------------------------------------------


def table(rows: Sequence[Row], warning: str = "") -> str:
    """Ratios, worst of all mini-batches; time of each method; shares of a step."""
    lines = [warning] if warning else []
    columns = "".join(f"{method:>15}" for method in METHODS)
    lines.append(f"{'arena over live bytes':24}{'blocks':>7}{'live MB':>9}{columns}")
    for row in rows:
        ratios = "".join(f"{row.ratios[method]:>15.4f}" for method in METHODS)
        lines.append(f"{row.workload:24}{row.blocks:>7}{row.live_bytes / 1e6:>9.1f}{ratios}")
    lines.append("")
    lines.append(f"{'ms to place':24}{'':>16}{columns}   placing, planning % of the step")
    for row in rows:
        times = "".join(f"{row.method_ms[method]:>15.3f}" for method in METHODS)
        shares = f"{100 * row.place_share:>10.2f}{100 * row.plan_share:>10.2f}"
        lines.append(f"{row.workload:24}{'':>16}{times}{shares}")
    worst = max(row.ratios["the planner"] for row in rows)
    share = max(row.plan_share for row in rows)
    lines.append(
        f"the planner: at most {worst:.4f} of the live bytes (goal {TIGHT}); planning at "
        f"most {100 * share:.2f} % of a step (goal {100 * SHARE:g} %)"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 where the default misses a goal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory.planners", description=__doc__
    )
    parser.add_argument("workloads", nargs="*", default=COMPARED, metavar="WORKLOAD")
    parser.add_argument("--batches", type=int, default=8, help="mini-batches of each workload")
    parser.add_argument("--sentences", type=int, default=64, help="of a mini-batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    options = parser.parse_args(arguments)
    db.set_num_threads(options.threads)
    others = OtherWork()
    rows = [
        measure(name, WORKLOADS[name], options.batches, options.sentences, options.seed)
        for name in options.workloads
    ]
    show(table(rows, others.warning()), [asdict(row) for row in rows], options.json)
    return int(any(row.ratios["the planner"] > TIGHT or row.plan_share > SHARE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
