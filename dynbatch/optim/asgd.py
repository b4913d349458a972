"""Averaged stochastic gradient descent."""

from __future__ import annotations

from dynbatch.arguments import number
from dynbatch.kernels.scalar.expressions import Expression, equal, where
from dynbatch.kernels.scalar.update import Replaced, decayed, update_rule
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def asgd(
    value: Expression, gradient: Expression, average: Expression, rate: Expression,
    shrink: Expression, share: Expression, weight_decay: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `ASGD`, with rate = η, shrink = 1 - lambd·η and share = μ."""
    stepped = value * shrink - decayed(gradient, value, weight_decay) * rate
    a = where(equal(share, 1), stepped, average + (stepped - average) * share)
    return {"value": stepped, "average": a}


class ASGD(Optimizer):
    """θ ← (1 - lambd·η)·θ - η·g' with a rate η that falls, and a mean a of θ after t0 steps:

        η = lr / (1 + lambd·lr·(t - 1))^alpha,  g' = g + weight_decay·θ
        a ← a + μ·(θ - a),  μ = 1 / max(1, t - 1 - t0)

    t counts the parameter's steps from 1. A changed lr acts at once, in PyTorch a step later.
    `state_dict` has a as "NAME/average". For the mean of any
    optimizer's weights, with a model to evaluate by it, take `Average`.

    Source: Polyak & Juditsky 1992, SIAM J. Control Optim. 30(4), 838-855; the rate of Xu 2011,
            arXiv:1107.2490, and names, as in PyTorch.
    """

    update = asgd

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, maximize=maximize)
        self.lambd = number(self, "lambd", lambd, "[0, inf)")
        self.alpha = number(self, "alpha", alpha, "[0, inf)")
        self.t0 = number(self, "t0", t0, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")

    def numbers(self, num_steps: int) -> dict[str, float]:
        lr, before = float(self.lr), num_steps - 1
        rate = lr / (1.0 + self.lambd * lr * before) ** self.alpha
        share = 1.0 / max(1.0, before - self.t0)
        return {"rate": rate, "shrink": 1.0 - self.lambd * rate, "share": share}
