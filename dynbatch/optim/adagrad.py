"""Adagrad."""

from __future__ import annotations

from dynbatch.arguments import number
from dynbatch.kernels.scalar.expressions import Expression
from dynbatch.kernels.scalar.update import Replaced, decayed, update_rule
from dynbatch.kernels.unary.arithmetic import sqrt
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def adagrad(
    value: Expression, gradient: Expression, square_sum: Expression,
    rate: Expression, eps: Expression, weight_decay: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Adagrad`, with rate = lr / (1 + (t - 1)·lr_decay)."""
    g = decayed(gradient, value, weight_decay)
    s = square_sum + g * g
    return {"value": value - g / (sqrt(s) + eps) * rate, "square_sum": s}


class Adagrad(Optimizer):
    """θ ← θ - lr / (1 + (t - 1)·lr_decay) · g' / (√s + eps), with g' = g + weight_decay·θ and
    s ← s + g'².

    t counts the parameter's steps from 1; s starts at `initial_accumulator_value`. Without decay, a
    row-sparse gradient costs its rows only.

    Source: Duchi, Hazan & Singer 2011, JMLR 12, with diagonal matrices; `lr_decay` and the place of
            eps as in PyTorch.
    """

    update = adagrad

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, maximize=maximize)
        self.lr_decay = number(self, "lr_decay", lr_decay, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")
        start = initial_accumulator_value
        self.initial_accumulator_value = number(
            self, "initial_accumulator_value", start, "[0, inf)"
        )
        self.eps = number(self, "eps", eps, "[0, inf)")

    def initial(self, slot: str) -> float:
        return self.initial_accumulator_value

    def numbers(self, num_steps: int) -> dict[str, float]:
        return {"rate": float(self.lr) / (1.0 + (num_steps - 1) * self.lr_decay)}
