"""`Profile`: time, floating-point operations and bytes by node type; `FlopCounts`: operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dynbatch.nodes.flops import NO_FLOPS, Flops
from dynbatch.reporting.run_record import RunRecord, StepRecord

SHOWN = 8
"""Node types in the table; the others are added up."""

WIDTH = 19
"""Characters of the longest name in the table, which is 80 wide."""

HEAD = "kernels' ms by type batches  nodes   rows forward backward share GFLOP/s      MB"


class TypeProfile(NamedTuple):
    """The time that the batches of one node type took together.

    Attributes:
        kind:    the type's name, as `explain` has it.
        batches, nodes, rows: how many ran.
        seconds, seconds_backward: in kernels, those of adding up gradients included.
        share:   of the seconds of all types, 0 to 1.
        flops, flops_backward: operations, see `Graph.flops`.
        bytes:   of the values and parameters that forward reads, and of the values it writes, each
                 once; what only moves reads as much as it writes.
        on_device: whether it ran on a GPU, whose kernels nobody waits for.
    """

    kind: str
    batches: int
    nodes: int
    rows: int
    seconds: float
    seconds_backward: float
    share: float
    flops: Flops
    flops_backward: Flops
    bytes: int
    on_device: bool

    @property
    def flops_per_second(self) -> float:
        """Operations a second of both passes; 0 if they are none, or on a GPU."""
        return flops_per_second(self)


@dataclass(frozen=True)
class Profile:
    """A profile by node type.

    Attributes:
        rows: one for each type, what took longest first.
    """

    rows: tuple[TypeProfile, ...]

    @classmethod
    def of(cls, record: RunRecord) -> Profile:
        """The batches of a record by their types."""
        steps: dict[str, list[StepRecord]] = {}
        for row in record.rows:
            steps.setdefault(row.kind, []).append(row)
        whole = sum([row.seconds + row.seconds_backward for row in record.rows])
        rows = [together(kind, of_type, whole) for kind, of_type in steps.items()]
        return cls(tuple(sorted(rows, key=lambda row: -row.share)))

    def __str__(self) -> str:
        """The table, its longest-running types one by one."""
        rows = list(self.rows[:SHOWN])
        if rest := self.rows[SHOWN:]:
            whole = sum([row.seconds + row.seconds_backward for row in self.rows])
            rows.append(together(f"{len(rest)} others", rest, whole))
        return "\n".join([HEAD, *map(_line, rows)])


class TypeFlops(NamedTuple):
    """Operations of one node type."""

    forward: Flops
    backward: Flops


@dataclass(frozen=True)
class FlopCounts:
    """Floating-point operations of a graph's runs; `Graph.flops` says what counts.

    Attributes:
        forward, backward: of all types together.
        by_type: by the names that `explain` has for node types.
    """

    forward: Flops
    backward: Flops
    by_type: Mapping[str, TypeFlops]

    @classmethod
    def of(cls, profile: Profile) -> FlopCounts:
        """The operations of a profile."""
        forward, backward = _flops(profile.rows)
        by_type = {row.kind: TypeFlops(row.flops, row.flops_backward) for row in profile.rows}
        return cls(forward, backward, by_type)

    @property
    def products(self) -> int:
        """Operations of matrix products, forward and backward."""
        return self.forward.products + self.backward.products

    @property
    def total(self) -> int:
        """All operations."""
        return self.forward.total + self.backward.total


def flops_per_second(row: StepRecord | TypeProfile) -> float:
    """Operations a second of both passes; 0 if they are none, or on a GPU."""
    seconds = row.seconds + row.seconds_backward
    if row.on_device or not seconds:
        return 0.0
    return (row.flops.total + row.flops_backward.total) / seconds


def together(kind: str, rows: Sequence[StepRecord | TypeProfile], whole: float) -> TypeProfile:
    """Several batches, or types, as one; `whole` are the seconds of all."""
    forward = sum([row.seconds for row in rows])
    backward = sum([row.seconds_backward for row in rows])
    return TypeProfile(
        kind,
        sum([row.batches for row in rows]),
        sum([row.nodes for row in rows]),
        sum([row.rows for row in rows]),
        forward,
        backward,
        (forward + backward) / whole if whole else 0.0,
        *_flops(rows),
        sum([row.bytes for row in rows]),
        any([row.on_device for row in rows]),
    )


def _flops(rows: Sequence[StepRecord | TypeProfile]) -> TypeFlops:
    forward = backward = NO_FLOPS
    for row in rows:
        forward, backward = forward.plus(row.flops), backward.plus(row.flops_backward)
    return TypeFlops(forward, backward)


def _line(row: TypeProfile) -> str:
    name = row.kind if len(row.kind) <= WIDTH else f"{row.kind[: WIDTH - 1]}…"
    return (
        f"{name:<{WIDTH}} {row.batches:>7,} {row.nodes:>6,} {row.rows:>6,} "
        f"{row.seconds * 1e3:>7,.2f} {row.seconds_backward * 1e3:>8,.2f} {row.share:>5.0%} "
        f"{row.flops_per_second / 1e9:>7,.1f} {row.bytes / 1e6:>7,.2f}"
    )
