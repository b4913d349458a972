"""Adamax."""

from __future__ import annotations

from dynbatch.kernels.scalar.expressions import Expression, maximum
from dynbatch.kernels.scalar.update import Replaced, decayed, update_rule
from dynbatch.kernels.unary.arithmetic import absolute
from dynbatch.named_parameters import Parameters
from dynbatch.optim.moments import MomentOptimizer


@update_rule
def adamax(
    value: Expression, gradient: Expression, gradient_average: Expression, largest: Expression,
    rate: Expression, beta1: Expression, rest1: Expression, beta2: Expression, eps: Expression,
    l2: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Adamax`, with rate = lr / (1 - β₁ᵗ)."""
    g = decayed(gradient, value, l2)
    m = beta1 * gradient_average + g * rest1
    u = maximum(largest * beta2, absolute(g) + eps)
    return {"value": value - m / u * rate, "gradient_average": m, "largest": u}


class Adamax(MomentOptimizer):
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
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, maximize=maximize)

    def numbers(self, num_steps: int) -> dict[str, float]:
        rate = float(self.lr) / (1.0 - self.betas[0] ** num_steps)
        return super().numbers(num_steps) | {"rate": rate}
