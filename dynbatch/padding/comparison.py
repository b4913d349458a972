"""`Comparison`: what `compare_padding` found, as a table, as JSON, as a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dynbatch.atomic import replacing
from dynbatch.padding import picture, table
from dynbatch.padding.names import PADDED_BUCKETED, PADDED_RANDOM, UNPADDED_RANDOM


@dataclass(frozen=True)
class Form:
    """One way to make batches of the same sentences, and what a training step holds with it.

    All sizes in bytes. "The peak" is the largest of the measured batches, among them the epoch's
    largest. Means are over 32 batches spread evenly over the epoch, whose peaks are estimated,
    which equals measuring them; of other programs over those measured.

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
                           where a sequence is longer than `sides.MOST_TRACED`.
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
    """What one way to save takes off the peak of one batch, in bytes.

    Args:
        name:     one of `CAUSES`.
        alone:    from a step that saves nothing, with this alone switched on.
        in_chain: from the step with all causes before it; they add up.
    """

    name: str
    alone: int
    in_chain: int


@dataclass(frozen=True)
class Comparison:
    """What a training step holds with padding and without.

    Args:
        title:         model and data in a line.
        batch_size:    sentences of a batch.
        measured:      number of batches measured of random and bucketed order.
        epoch:         number of batches in an epoch.
        forms:         by name, in the order of the table.
        without:       bytes at the peak of a step that saves nothing: padded, logits stored, and no
                       block in the room of another. The causes are what is saved of them.
        causes:        in the order of the chain; `RECOMPUTE` comes on top of the unpadded form.
        parameter_bytes, optimizer_bytes: the same for all forms.
        by_batch_size: peak bytes of each form for other batch sizes.
        losses:        of the padded and the unpadded form on one batch, in nats.
        note:          whether these agree, and what follows.
        peers:         other programs on the same batches, PyTorch say.
    """

    title: str
    batch_size: int
    measured: int
    epoch: int
    forms: Mapping[str, Form]
    without: int
    causes: Sequence[Cause]
    parameter_bytes: int
    optimizer_bytes: int
    by_batch_size: Mapping[str, Mapping[int, int]]
    losses: tuple[float, float]
    note: str
    peers: Sequence[Form] = ()

    def saved(self, against: str = PADDED_RANDOM, form: str = UNPADDED_RANDOM) -> float:
        """The share of the peak of `against` that `form` does without; 0.7 is 70 % less."""
        return 1 - self.forms[form].peak_bytes / self._of(against).peak_bytes

    def _of(self, name: str) -> Form:
        return {**self.forms, **{peer.name: peer for peer in self.peers}}[name]

    def table(self) -> str:
        """Everything but the curves as text; megabytes of 1,000,000 bytes."""
        return table.table(self)

    def __str__(self) -> str:
        return self.table()

    def as_json(self) -> dict[str, Any]:
        """All numbers, as JSON has them."""
        found: dict[str, Any] = asdict(self)
        found["saved"] = {
            name: round(self.saved(name), 4)
            for name in (PADDED_RANDOM, PADDED_BUCKETED, *[peer.name for peer in self.peers])
        }
        return found

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers to a file, which is replaced whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        with replacing(Path(path)) as temporary:
            temporary.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw bytes over a step and bytes against batch size, PNG or SVG by the file's ending.

        Raises:
            ImportError: matplotlib is not installed.
            OSError:     the file cannot be written.
        """
        picture.draw(self, Path(path))
