"""`MomentOptimizer`: the settings of Adam and of its variants."""

from __future__ import annotations

from dynbatch.arguments import number, pair
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


class MomentOptimizer(Optimizer):
    """Base of optimizers that average gradients, and their squares, over the steps.

    Args:
        betas:        the share of each average that is kept at a step.
        eps:          is added to a divisor.
        weight_decay: of the weights, in the gradient; apart from it, times lr, in a type or an
            optimizer whose `decoupled_weight_decay` is set.
    """

    decoupled_weight_decay = False

    def __init__(
        self, parameters: Parameters, lr: float, betas: tuple[float, float], eps: float,
        weight_decay: float, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, maximize=maximize)
        self.betas = pair(self, "betas", betas, ("[0, 1)", "[0, 1)"), "(0.9, 0.999)")
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")

    def numbers(self, num_steps: int) -> dict[str, float]:
        """The betas and their rests, `l2`, by which weights join the gradient, their `shrink`."""
        beta1, beta2 = self.betas
        l2, shrink = self.weight_decay, 1.0
        if self.decoupled_weight_decay:
            l2, shrink = 0.0, 1.0 - float(self.lr) * l2
        numbers = {"beta1": beta1, "rest1": 1.0 - beta1, "beta2": beta2, "rest2": 1.0 - beta2}
        return numbers | {"l2": l2, "shrink": shrink}
