"""NAdam."""

from __future__ import annotations

from dynbatch.arguments import number, switch
from dynbatch.kernels.scalar.expressions import Expression
from dynbatch.kernels.scalar.update import Replaced, decayed, times, update_rule
from dynbatch.kernels.unary.arithmetic import sqrt
from dynbatch.named_parameters import Parameters
from dynbatch.optim.moments import MomentOptimizer


@update_rule
def nadam(
    value: Expression, gradient: Expression, gradient_average: Expression,
    square_average: Expression, of_gradient: Expression, of_average: Expression,
    of_square: Expression, beta1: Expression, rest1: Expression, beta2: Expression,
    rest2: Expression, eps: Expression, l2: Expression, shrink: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `NAdam`, with the factors of g', m and v in its step."""
    g = decayed(gradient, value, l2)
    m = beta1 * gradient_average + g * rest1
    v = beta2 * square_average + g * g * rest2
    step = (g * of_gradient + m * of_average) / (sqrt(v * of_square) + eps)
    return {"value": times(value, shrink) - step, "gradient_average": m, "square_average": v}


class NAdam(MomentOptimizer):
    """Adam with Nesterov's momentum. With g' = g + weight_decay·θ:

        m ← β₁·m + (1 - β₁)·g'
        v ← β₂·v + (1 - β₂)·g'²,  v̂ = v / (1 - β₂ᵗ)
        m̂ = μₜ₊₁·m / (1 - μ₁…μₜ₊₁) + (1 - μₜ)·g' / (1 - μ₁…μₜ)
        θ ← θ - lr·m̂ / (√v̂ + eps)

    t counts the parameter's steps from 1, and μₜ = β₁·(1 - 0.96^(t·momentum_decay) / 2). With
    `decoupled_weight_decay` θ is multiplied by 1 - lr·weight_decay, as in `AdamW`, and g' is g.

    Source: Dozat 2016, ICLR workshop, "Incorporating Nesterov momentum into Adam"; the decay of μ
            and weight decay as in PyTorch.
    """

    update = nadam

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, maximize=maximize)
        self.momentum_decay = number(self, "momentum_decay", momentum_decay, "[0, inf)")
        self.decoupled_weight_decay = switch(self, "decoupled_weight_decay", decoupled_weight_decay)
        self._products = [1.0]
        """μ₁…μₜ by t, until it is 0."""

    def numbers(self, num_steps: int) -> dict[str, float]:
        _, beta2 = self.betas
        product, following = self._product(num_steps), self._product(num_steps + 1)
        lr = float(self.lr)
        numbers = {
            "of_gradient": lr * (1.0 - self._momentum(num_steps)) / (1.0 - product),
            "of_average": lr * self._momentum(num_steps + 1) / (1.0 - following),
            "of_square": 1.0 / (1.0 - beta2**num_steps),
        }
        return super().numbers(num_steps) | numbers

    def _product(self, num_steps: int) -> float:
        products = self._products
        while products[-1] and len(products) <= num_steps:
            products.append(products[-1] * self._momentum(len(products)))
        return products[min(num_steps, len(products) - 1)]

    def _momentum(self, num_steps: int) -> float:
        fading: float = 0.96 ** (num_steps * self.momentum_decay)
        return self.betas[0] * (1.0 - 0.5 * fading)
