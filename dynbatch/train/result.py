"""`TrainingResult`: what a run came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of `Trainer.fit`: total updates and epochs, and the best validation if any."""

    step: int
    epoch: int
    best_metric: float | None
    best_step: int
    stopped_early: bool
