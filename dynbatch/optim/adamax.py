"""Adamax."""

from __future__ import annotations

from dynbatch.arguments import number
from dynbatch.kernels.scalar.expressions import Expression, maximum
from dynbatch.kernels.scalar.update import Replaced, decayed, update_rule
from dynbatch.kernels.unary.arithmetic import absolute
from dynbatch.named_parameters import Parameters
from dynbatch.optim.adam import betas_of
from dynbatch.optim.optimizer import Optimizer


@update_rule
def adamax(
    value: Expression, gradient: Expression, gradient_average: Expression, largest: Expression,
    rate: Expression, beta1: Expression, rest: Expression, beta2: Expression, eps: Expression,
    weight_decay: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Adamax`, with rate = lr / (1 - β₁ᵗ) and rest = 1 - β₁."""
    g = decayed(gradient, value, weight_decay)
    m = beta1 * gradient_average + g * rest
    u = maximum(largest * beta2, absolute(g) + eps)
    return {"value": value - m / u * rate, "gradient_average": m, "largest": u}


class Adamax(Optimizer):
    """θ ← θ - lr / (1 - β₁ᵗ) · m / u: Adam with a decaying maximum u. With g' = g + weight_decay·θ:

        m ← β₁·m + (1 - β₁)·g'
        u ← max(β₂·u, |g'| + eps)

    t counts the parameter's steps from 1.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 2; eps and weight decay as in PyTorch.
    """

    update = adamax

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr)
        self.betas = betas_of(self, betas)
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")

    def numbers(self, num_steps: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        rate = float(self.lr) / (1.0 - beta1**num_steps)
        return {"rate": rate, "beta1": beta1, "rest": 1.0 - beta1, "beta2": beta2}
