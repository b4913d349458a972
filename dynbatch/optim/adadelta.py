"""Adadelta."""

from __future__ import annotations

from dynbatch.arguments import number
from dynbatch.kernels import optimizers
from dynbatch.kernels.optimizers import Rule
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


class Adadelta(Optimizer):
    """θ ← θ - lr·d, where d has the size of former steps. With g' = g + weight_decay·θ:

        v ← rho·v + (1 - rho)·g'²
        d = √(u + eps) / √(v + eps) · g'
        u ← rho·u + (1 - rho)·d²

    Source: Zeiler 2012, arXiv:1212.5701, algorithm 1; `lr` and `weight_decay` as in PyTorch.
    """

    num_scratch = 2

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, slots=("square_average", "step_average"))
        self.rho = number(self, "rho", rho, "[0, 1]")
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")

    def rule(self, num_steps: int) -> Rule:
        numbers = (self.rho, 1.0 - self.rho, self.eps, self.weight_decay)
        return Rule(optimizers.adadelta, (float(self.lr), *numbers))
