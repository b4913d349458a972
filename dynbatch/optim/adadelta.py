"""Adadelta."""

from __future__ import annotations

from dynbatch.arguments import number
from dynbatch.kernels.scalar.expressions import Expression
from dynbatch.kernels.scalar.update import Replaced, decayed, update_rule
from dynbatch.kernels.unary.arithmetic import sqrt
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def adadelta(
    value: Expression, gradient: Expression, square_average: Expression, step_average: Expression,
    lr: Expression, rho: Expression, rest: Expression, eps: Expression, weight_decay: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Adadelta`, with rest = 1 - rho."""
    g = decayed(gradient, value, weight_decay)
    v = rho * square_average + g * g * rest
    d = g / sqrt(v + eps) * sqrt(step_average + eps)
    u = rho * step_average + d * d * rest
    return {"value": value - d * lr, "square_average": v, "step_average": u}


class Adadelta(Optimizer):
    """θ ← θ - lr·d, where d has the size of former steps. With g' = g + weight_decay·θ:

        v ← rho·v + (1 - rho)·g'²
        d = √(u + eps) / √(v + eps) · g'
        u ← rho·u + (1 - rho)·d²

    Source: Zeiler 2012, arXiv:1212.5701, algorithm 1; `lr` and `weight_decay` as in PyTorch.
    """

    update = adadelta

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, maximize=maximize)
        self.rho = number(self, "rho", rho, "[0, 1]")
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")

    def numbers(self, num_steps: int) -> dict[str, float]:
        return {"rest": 1.0 - self.rho}
