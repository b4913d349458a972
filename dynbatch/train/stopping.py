"""Early stopping: the best validation so far, and how long ago it was."""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.arguments import is_count, is_number
from dynbatch.train.checkpoint_file import wrong_field


@dataclass(slots=True)
class EarlyStopping:
    """Ends training after `patience` validations in a row that were not better than the best one.

    Args:
        patience:         None never ends it.
        higher_is_better: for an accuracy; False for an error rate or a loss.

    Example:
        >>> stopping = EarlyStopping(patience=2)
        >>> [stopping.note(metric, step) for step, metric in enumerate([3.0, 2.0, 2.5, 2.0])]
        [True, True, False, False]
        >>> stopping.is_over, stopping.best, stopping.best_step
        (True, 2.0, 1)
    """

    patience: int | None = None
    higher_is_better: bool = False
    best: float | None = None
    best_step: int = 0
    num_bad: int = 0

    @property
    def is_over(self) -> bool:
        return self.patience is not None and self.num_bad >= self.patience

    def note(self, metric: float, step: int) -> bool:
        """Note a validation, and return whether it is the best so far. NaN never is."""
        better = metric == metric and (
            self.best is None
            or (metric > self.best if self.higher_is_better else metric < self.best)
        )
        if better:
            self.best, self.best_step, self.num_bad = float(metric), step, 0
        else:
            self.num_bad += 1
        return better

    def state_dict(self) -> dict[str, float | None]:
        return {"best": self.best, "best_step": self.best_step, "num_bad": self.num_bad}

    @staticmethod
    def wrong(state: object) -> str | None:
        """Describe what is wrong with a state from JSON; None if it can be loaded."""
        return wrong_field(
            state,
            {
                "best": lambda best: best is None or is_number(best),
                "best_step": is_count,
                "num_bad": is_count,
            },
        )

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        self.best = state["best"]
        self.best_step, self.num_bad = int(state["best_step"] or 0), int(state["num_bad"] or 0)
