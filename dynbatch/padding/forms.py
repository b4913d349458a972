"""`Form` and `Cause`: the parts of a `Comparison`, and their names in reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PADDED_RANDOM = "padded, random"
PADDED_BUCKETED = "padded, bucketed"
PADDED_BY_TOKENS = "padded, by tokens"
UNPADDED_RANDOM = "unpadded, random"
UNPADDED_BUCKETED = "unpadded, bucketed"
UNPADDED_BY_TOKENS = "unpadded, by tokens"
RECOMPUTE = "recompute"
CAUSES = ("no padding", "chunked loss", "reused memory", RECOMPUTE)
"""Ways to save; the last is one that `recompute="sqrt"` switches on, and that costs time."""

FORMS = (
    PADDED_RANDOM, PADDED_BUCKETED, PADDED_BY_TOKENS,
    UNPADDED_RANDOM, UNPADDED_BUCKETED, UNPADDED_BY_TOKENS,
)  # fmt: skip


def is_padded(name: str) -> bool:
    return name.startswith("padded")


CURVES = (PADDED_RANDOM, PADDED_BUCKETED, PADDED_BY_TOKENS, UNPADDED_RANDOM)
"""Forms whose peak against batch size is estimated and drawn."""

MB = 1e6
"""Bytes of the megabyte in which reports count."""


def megabytes(size: float) -> str:
    """Megabytes as text, with so many digits that small data has some, too."""
    digits = 1 if abs(size) >= 10 * MB or not size else 2 if abs(size) >= MB / 10 else 3
    return f"{size / MB:,.{digits}f}"


VALUES = ("activations", "kept for backward", "gradients")
"""Causes of `MemoryUse` that hold what a network computes; the rest are kernels' workspace, copies
and gaps."""


@dataclass(frozen=True)
class Form:
    """One way to make batches of the same sentences, and what a training step holds with it.

    All sizes in bytes. "The peak" is the largest of the measured batches, among them the epoch's
    largest; batches by tokens are all about as large. Means are over 32 batches spread evenly over
    the epoch, whose peaks are estimated, which equals measuring them; of other programs over those
    measured.

    Args:
        name:              one of `FORMS`, or of another program.
        peak_bytes:        at the peak.
        mean_bytes:        mean of the batches' own peaks.
        value_bytes:       most of activations, what is kept for backward, and their gradients:
                           without workspace of kernels, copies and gaps. None of other programs.
        by_cause:          the peak by what it is for; sums to `peak_bytes`, but for other programs,
                           of which only what they keep for backward is known.
        by_type:           the same peak by node type.
        stages:            of the peak's batch, (label, bytes) from the first stage to the last.
        cells_a_token:     tokens that are computed, with padding, for each token of the data.
        tokens_per_second: tokens of the data; the median batch.
        requested_bytes, reserved_bytes: of the pool, at most.
        traced_bytes:      most that NumPy and Python took in forward and backward, the arena as the
                           pool rounds it and parameters' gradients among it; None on a GPU, and
                           where a sequence is longer than `measured_models.MOST_TRACED`.
        gradient_bytes:    most of the parameters' gradients.
    """

    name: str
    peak_bytes: int
    mean_bytes: float
    value_bytes: int | None = None
    by_cause: Mapping[str, int] = field(default_factory=dict)
    by_type: Mapping[str, int] = field(default_factory=dict)
    stages: Sequence[tuple[str, int]] = ()
    cells_a_token: float = 1.0
    tokens_per_second: float | None = None
    requested_bytes: int | None = None
    reserved_bytes: int | None = None
    traced_bytes: int | None = None
    gradient_bytes: int | None = None


@dataclass(frozen=True)
class Cause:
    """The bytes that one way to save takes off the peak of a batch.

    Args:
        name:     one of `CAUSES`.
        alone:    from a step that saves nothing, with this alone switched on.
        in_chain: from the step with all causes before it; they add up.
    """

    name: str
    alone: int
    in_chain: int
