"""Learning-rate schedules: small objects that set `optimizer.lr`.

Call `schedule.step()` after each `optimizer.step()`. A schedule sets the rate of the first update
when it is made; its formulas give the rate of update t = 1, 2, ... from the optimizer's `lr` at
that moment, `base`. The rates of an optimizer's groups keep their proportion to it: a group that
has ten times the base rate ends at ten times `min_lr` (at `min_lr` itself in PyTorch).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import cos, inf, pi, sqrt
from typing import ClassVar, SupportsFloat

from dynbatch.arguments import is_count, is_number, number, refused, size, switch
from dynbatch.errors import CheckpointError
from dynbatch.optim.optimizer import Optimizer


class Schedule:
    """Base of the schedules; a subclass defines `rate`.

    Args:
        optimizer: its `lr` is the base rate, and is set from here on.
    """

    needs_metric: ClassVar[bool] = False
    """Whether `step` belongs after each validation, with its metric, not after each update."""

    def __init__(self, optimizer: Optimizer) -> None:
        if not hasattr(optimizer, "lr"):
            raise refused(
                type(self).__name__, f"optimizer is a {type(optimizer).__name__}",
                "an optimizer, whose lr is the base rate",
                f"make the optimizer first: {type(self).__name__}(optim.Adam(model), …)",
            )  # fmt: skip
        self.optimizer = optimizer
        self.base_lr = float(optimizer.lr)
        self.num_steps = 0
        optimizer.lr = self.rate(1)

    def rate(self, update: int) -> float:
        """The learning rate of update number `update`, counted from 1."""
        raise NotImplementedError

    def step(self, metric: float | None = None) -> None:
        """Set the rate of the next update. `metric` is only read by `Plateau`."""
        self.num_steps += 1
        self.optimizer.lr = self.rate(self.num_steps + 1)

    def state_dict(self) -> dict[str, float]:
        """The state that `step` changes, and the base rate: numbers by name."""
        return {"base_lr": self.base_lr, "num_steps": self.num_steps}

    def check_state_dict(self, state: Mapping[str, float]) -> None:
        """Check that `load_state_dict` would take `state`.

        Raises:
            CheckpointError: it was saved by a schedule of another kind, or a value is not a number,
                or not a learning rate.
        """
        expected = self.state_dict()
        wrong = [name for name in expected if not _is_like(expected[name], state.get(name))]
        wrong += [name for name in expected.keys() & RATES - {*wrong} if not 0 <= state[name] < inf]
        if state.keys() != expected.keys() or wrong:
            values = f"\n  no such numbers: {wrong}" if state.keys() == expected.keys() else ""
            raise CheckpointError(
                f"{type(self).__name__}: the state does not fit this schedule; nothing was loaded."
                f"\n  expected: {sorted(expected)}\n  got:      {sorted(map(str, state))}{values}\n"
                "  fix: use the schedule that it was saved with."
            )

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from a `state_dict`; sets `optimizer.lr`.

        Raises:
            CheckpointError: it was saved by a schedule of another kind.
        """
        self.check_state_dict(state)
        self.base_lr, self.num_steps = float(state["base_lr"]), int(state["num_steps"])
        self.optimizer.lr = self.rate(self.num_steps + 1)


RATES = {"base_lr", "lr"}
"""Numbers of a state that are learning rates."""


def _is_like(expected: float, value: object) -> bool:
    """Whether a number of a state has the type of the schedule's own: a count, or a float."""
    return is_count(value) if isinstance(expected, int) else is_number(value)


class Constant(Schedule):
    """lr(t) = base."""

    def rate(self, update: int) -> float:
        return self.base_lr


class LinearWarmup(Schedule):
    """lr(t) = base · min(1, t / warmup_steps), t = 1, 2, ...

    PyTorch's `LinearLR(start_factor=1 / warmup_steps, total_iters=warmup_steps - 1)`.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int) -> None:
        self.warmup_steps = number(self, "warmup_steps", warmup_steps, "[1, inf)")
        super().__init__(optimizer)

    def rate(self, update: int) -> float:
        return self.base_lr * min(1.0, update / self.warmup_steps)


class Cosine(Schedule):
    """Linear warm-up, then half a cosine from base down to min_lr, which it keeps. With W warm-up
    steps, N steps in all and t = 1, 2, ...:

        lr(t) = base · t / W                                                    t <= W
        lr(t) = min_lr + (base - min_lr) · (1 + cos(π (t - 1 - W) / (N - W))) / 2     W < t <= N
        lr(t) = min_lr                                                          t > N

    PyTorch's `SequentialLR` of `LinearLR` and `CosineAnnealingLR(T_max=N - W)`, milestone W, up to
    step N; theirs then rises again.

    Source: Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, without restarts.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, min_lr: float = 0.0
    ) -> None:
        self.warmup_steps = number(self, "warmup_steps", warmup_steps, "[0, inf)")
        self.total_steps = number(
            self, "total_steps", total_steps, f"({self.warmup_steps!r}, inf)"
        )  # fmt: skip
        self.min_lr = number(self, "min_lr", min_lr, "[0, inf)")
        super().__init__(optimizer)

    def rate(self, update: int) -> float:
        warmup, total = self.warmup_steps, self.total_steps
        if update <= warmup:
            return self.base_lr * update / warmup
        if update > total:
            return self.min_lr
        angle = pi * (update - 1 - warmup) / (total - warmup)
        return self.min_lr + (self.base_lr - self.min_lr) * (1.0 + cos(angle)) / 2.0


class InverseSqrt(Schedule):
    """lr(t) = base · min(t / W, √(W / t)), t = 1, 2, ..., W = warmup_steps: base is the peak.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 5.3, whose rate
            d_model^-0.5 · min(t^-0.5, t · W^-1.5) is this one with base = (d_model · W)^-0.5.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int) -> None:
        self.warmup_steps = number(self, "warmup_steps", warmup_steps, "[1, inf)")
        super().__init__(optimizer)

    def rate(self, update: int) -> float:
        warmup = self.warmup_steps
        return self.base_lr * min(update / warmup, sqrt(warmup / update))


class Plateau(Schedule):
    """lr ← max(min_lr, factor · lr) when the metric has not improved for more than `patience`
    validations. Call `step(metric)` after each validation.

    Improved means metric < best · (1 - threshold), or with `higher_is_better`
    metric > best · (1 + threshold). After a cut, `cooldown` validations are not counted.

    PyTorch's `ReduceLROnPlateau` with its relative threshold. A NaN metric is not an improvement.
    """

    needs_metric = True

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
        higher_is_better: bool = False,
    ) -> None:
        self.factor = number(self, "factor", factor, "(0, 1)")
        self.patience = number(self, "patience", patience, "[0, inf)")
        self.threshold = number(self, "threshold", threshold)
        self.cooldown = size(self, "cooldown", cooldown, 0)
        self.min_lr = number(self, "min_lr", min_lr, "[0, inf)")
        self.higher_is_better = switch(self, "higher_is_better", higher_is_better)
        self.lr = float(optimizer.lr)
        self.best = -inf if higher_is_better else inf
        self.num_bad = 0
        self.num_cooldown = 0
        super().__init__(optimizer)

    def rate(self, update: int) -> float:
        return self.lr

    def step(self, metric: float | None = None) -> None:
        """Note the metric of a validation, and cut the rate if it is time.

        Raises:
            ArgumentError: `metric` is missing, or not a number.
        """
        if not isinstance(metric, SupportsFloat):
            raise refused(
                "Plateau.step", f"metric is {metric!r}", "the validation's metric, a number",
                "schedule.step(metric), once after each validation",
            )  # fmt: skip
        if self._is_better(metric):
            self.best, self.num_bad = float(metric), 0
        else:
            self.num_bad += 1
        if self.num_cooldown:
            self.num_cooldown -= 1
            self.num_bad = 0
        if self.num_bad > self.patience:
            self.lr = self._cut()
            self.num_bad, self.num_cooldown = 0, self.cooldown
        super().step()

    def _is_better(self, metric: float) -> bool:
        if self.higher_is_better:
            return metric > self.best * (1.0 + self.threshold)
        return metric < self.best * (1.0 - self.threshold)

    def _cut(self) -> float:
        lower = max(self.min_lr, self.factor * self.lr)
        return lower if self.lr - lower > 1e-8 else self.lr  # PyTorch ignores smaller cuts

    def state_dict(self) -> dict[str, float]:
        names = ("lr", "best", "num_bad", "num_cooldown")
        return super().state_dict() | {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.check_state_dict(state)
        self.lr, self.best = float(state["lr"]), float(state["best"])
        self.num_bad, self.num_cooldown = int(state["num_bad"]), int(state["num_cooldown"])
        super().load_state_dict(state)
