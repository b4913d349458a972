"""Lion."""

from __future__ import annotations

from dynbatch.arguments import number, pair
from dynbatch.kernels.scalar.expressions import Expression
from dynbatch.kernels.scalar.update import Replaced, times, update_rule
from dynbatch.kernels.unary.arithmetic import sign
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def lion(
    value: Expression, gradient: Expression, gradient_average: Expression, lr: Expression,
    beta1: Expression, rest1: Expression, beta2: Expression, rest2: Expression, shrink: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Lion`, with rest = 1 - β and shrink = 1 - lr·weight_decay."""
    step = sign(beta1 * gradient_average + rest1 * gradient)
    m = beta2 * gradient_average + rest2 * gradient
    return {"value": times(value, shrink) - step * lr, "gradient_average": m}


class Lion(Optimizer):
    """θ ← (1 - lr·weight_decay)·θ - lr·sign(β₁·m + (1 - β₁)·g), then m ← β₂·m + (1 - β₂)·g.

    Each number moves by lr, so that lr is three to ten times smaller than Adam's, and weight_decay
    as much larger. One slot, where Adam has two.

    Source: Chen, Liang, Huang, Real, Wang et al. 2023, NeurIPS, arXiv:2302.06675, program 1.
    """

    update = lion

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, maximize=maximize)
        self.betas = pair(self, "betas", betas, ("[0, 1)", "[0, 1)"), "(0.9, 0.99)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")

    def numbers(self, num_steps: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        shrink = 1.0 - float(self.lr) * self.weight_decay
        numbers = {"beta1": beta1, "rest1": 1.0 - beta1, "beta2": beta2, "rest2": 1.0 - beta2}
        return numbers | {"shrink": shrink}
