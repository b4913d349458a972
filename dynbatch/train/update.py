"""`Update`: one update of training, whose numbers a GPU may still be working on."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from dynbatch.errors import NumericError
from dynbatch.nodes.base import Node
from dynbatch.optim import GradientNorm
from dynbatch.train.metrics import Record


@dataclass(slots=True)
class Update:
    """One mini-batch's loss and gradients, and what there is to say about them.

    Args:
        record:        the line of the metrics file; `read` fills in `loss` and `gradient_norm`.
        loss:          its loss, after backward.
        norm:          of all gradients, before clipping.
        random_states: those after the update.
    """

    record: Record
    loss: Node
    norm: float | GradientNorm
    random_states: Any = None

    @property
    def is_on_device(self) -> bool:
        """Whether reading would wait for a GPU."""
        return isinstance(self.norm, GradientNorm)

    def read(self) -> None:
        """Read the loss and the norm; on a GPU this waits for them.

        Raises:
            NumericError: one is NaN or infinite.
        """
        if isinstance(self.norm, GradientNorm):
            self.norm.was_read = True  # whatever is wrong with it is told here
        self.record["loss"] = float(self.loss.value)
        if not isfinite(self.record["loss"]):
            raise NumericError(f"the loss is {self.record['loss']}.")
        self.record["gradient_norm"] = float(self.norm)
