"""RAdam."""

from __future__ import annotations

import math

from dynbatch.arguments import switch
from dynbatch.kernels.scalar.expressions import Expression, equal, where
from dynbatch.kernels.scalar.update import Replaced, decayed, times, update_rule
from dynbatch.kernels.unary.arithmetic import sqrt
from dynbatch.named_parameters import Parameters
from dynbatch.optim.moments import MomentOptimizer


@update_rule
def radam(
    value: Expression, gradient: Expression, gradient_average: Expression,
    square_average: Expression, rate: Expression, is_rectified: Expression, beta1: Expression,
    rest1: Expression, beta2: Expression, rest2: Expression, eps: Expression, l2: Expression,
    shrink: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `RAdam`, with its factors in the rate."""
    g = decayed(gradient, value, l2)
    m = beta1 * gradient_average + g * rest1
    v = beta2 * square_average + g * g * rest2
    step = where(equal(is_rectified, 0), m, m / (sqrt(v) + eps))
    return {
        "value": times(value, shrink) - step * rate, "gradient_average": m, "square_average": v,
    }  # fmt: skip


class RAdam(MomentOptimizer):
    """Adam that starts as momentum alone. With g' = g + weight_decay·θ and ρ = 2 / (1 - β₂) - 1:

        m ← β₁·m + (1 - β₁)·g',   m̂ = m / (1 - β₁ᵗ)
        v ← β₂·v + (1 - β₂)·g'²
        ρₜ = ρ - 2t·β₂ᵗ / (1 - β₂ᵗ),  r² = (ρₜ - 4)(ρₜ - 2)·ρ / ((ρ - 4)(ρ - 2)·ρₜ)
        θ ← θ - lr·r·√(1 - β₂ᵗ)·m̂ / (√v + eps)    if ρₜ > 5, else θ ← θ - lr·m̂

    t counts the parameter's steps from 1. With `decoupled_weight_decay` θ is multiplied by
    1 - lr·weight_decay, as in `AdamW`, and g' is g.

    Source: Liu, Jiang, He, Chen, Liu, Gao & Han 2020, ICLR, arXiv:1908.03265, algorithm 2; the
            bound of 5, eps and weight decay as in PyTorch.
    """

    update = radam

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, maximize=maximize)
        self.decoupled_weight_decay = switch(self, "decoupled_weight_decay", decoupled_weight_decay)

    def numbers(self, num_steps: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        rate = float(self.lr) / (1.0 - beta1**num_steps)
        present = 1.0 - beta2**num_steps
        limit = 2.0 / (1.0 - beta2) - 1.0
        length = limit - 2.0 * num_steps * (1.0 - present) / present
        if length > 5.0:
            square = (length - 4.0) * (length - 2.0) * limit
            rate *= math.sqrt(present * square / ((limit - 4.0) * (limit - 2.0) * length))
        numbers = {"rate": rate, "is_rectified": float(length > 5.0)}
        return super().numbers(num_steps) | numbers
