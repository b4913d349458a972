"""`MemoryUse`: what a run holds in its arena, stage by stage, and what for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dynbatch.memory import Interval

EARLIER = "earlier runs"
GAPS = "gaps"


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of arenas that a graph holds at the stage of a run at which they are most.

    Attributes:
        peak_bytes:   of all its arenas together, as they are asked of the pool.
        live_bytes:   largest sum of what is alive at one stage: no plan could do with less.
        by_cause:     the peak by what it is for; adds up to `peak_bytes`. "activations": values ·
            "kept for backward": what forward leaves beside them · "gradients": of values ·
            "workspace": while a kernel runs · "copies": inputs packed together · "earlier runs" of
            the same graph · "gaps": between blocks.
        by_type:      the same peak by node type, without gaps and earlier runs.
        stages:       of each stage of the run, in order, its label and the bytes alive by cause.
        tables_bytes: index tables of the run's batches (offsets, ids, orders) on top of the arena.
        blocks_bytes: sum of all blocks, as if none took the room of another.
        saving:       what the run does to stay within a `memory_limit`.
    """

    peak_bytes: int
    live_bytes: int
    by_cause: Mapping[str, int]
    by_type: Mapping[str, int]
    stages: Sequence[tuple[str, Mapping[str, int]]]
    tables_bytes: int = 0
    blocks_bytes: int = 0
    saving: str = ""

    def __str__(self) -> str:
        head = f"peak {self.peak_bytes:,} bytes (live {self.live_bytes:,})"
        causes = "; ".join([f"{cause} {size:,}" for cause, size in self.by_cause.items() if size])
        types = "; ".join([f"{kind} {size:,}" for kind, size in self.by_type.items() if size])
        head += f"\n  saving: {self.saving}" if self.saving else ""
        return f"{head}\n  by cause: {causes}\n  by type:  {types}"


class Ledger(NamedTuple):
    """What a `MemoryUse` is made of, when one is asked for.

    Args:
        intervals: all blocks of the run.
        kinds:     of each of its stages what it does, and with which node types.
        itemsize:  bytes of an element.
        held:      bytes of arenas of earlier runs.
        arena:     bytes of the run's own.
        tables:    bytes of index tables.
        blocks:    elements of all blocks, as if none took the room of another.
        saving:    see `MemoryUse`.
    """

    intervals: Sequence[Interval]
    kinds: Sequence[tuple[str, Sequence[type]]]
    itemsize: int
    held: int
    arena: int
    tables: int
    blocks: int
    saving: str = ""

    @property
    def peak_bytes(self) -> int:
        """Of all arenas."""
        return self.held + self.arena

    def use(self) -> MemoryUse:
        """Add it up."""
        labels = [f"{what} {', '.join([k.__name__ for k in kinds])}" for what, kinds in self.kinds]
        ending: list[list[Interval]] = [[] for _ in labels]
        begins: list[list[Interval]] = [[] for _ in labels]
        for block in self.intervals:
            begins[block.first].append(block)
            if block.last < len(labels):
                ending[block.last].append(block)
        alive: Counter[str] = Counter()
        stages = []
        for label, begin, end in zip(labels, begins, ending, strict=True):
            for block in begin:
                alive[block.cause] += block.size * self.itemsize
            stages.append((label, {cause: size for cause, size in alive.items() if size}))
            for block in end:
                alive[block.cause] -= block.size * self.itemsize
        sums = [sum(causes.values()) for _, causes in stages]
        live = max(sums, default=0)
        by_cause = dict(stages[sums.index(live)][1]) if stages else {}
        by_type: Counter[str] = Counter()
        at = sums.index(live) if stages else 0
        for block in self.intervals:
            if block.first <= at <= block.last:
                by_type[block.kind] += block.size * self.itemsize
        by_cause |= {EARLIER: self.held, GAPS: self.arena - live}
        return MemoryUse(
            self.peak_bytes,
            self.held + live,
            by_cause,
            dict(by_type.most_common()),
            stages,
            tables_bytes=self.tables,
            saving=self.saving,
            blocks_bytes=self.held + self.itemsize * self.blocks,
        )
