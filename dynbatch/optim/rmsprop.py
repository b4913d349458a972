"""RMSprop."""

from __future__ import annotations

from dynbatch.arguments import number, switch
from dynbatch.kernels.scalar.expressions import Expression, equal, where
from dynbatch.kernels.scalar.update import Replaced, decayed, update_rule
from dynbatch.kernels.unary.arithmetic import sqrt
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def rmsprop(
    value: Expression, gradient: Expression, square_average: Expression,
    gradient_average: Expression, momentum_buffer: Expression, lr: Expression, alpha: Expression,
    rest: Expression, eps: Expression, weight_decay: Expression, momentum: Expression,
    centered: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `RMSprop`, with rest = 1 - alpha."""
    g = decayed(gradient, value, weight_decay)
    v = alpha * square_average + g * g * rest
    a = where(equal(centered, 0), gradient_average, alpha * gradient_average + g * rest)
    d = g / (sqrt(where(equal(centered, 0), v, v - a * a)) + eps)
    b = where(equal(momentum, 0), momentum_buffer, momentum * momentum_buffer + d)
    step = where(equal(momentum, 0), d, b)
    slots = {"square_average": v, "gradient_average": a, "momentum_buffer": b}
    return {"value": value - step * lr, **slots}


class RMSprop(Optimizer):
    """Gradients divided by a running root mean square. With g' = g + weight_decay·θ:

        v ← alpha·v + (1 - alpha)·g'²
        a ← alpha·a + (1 - alpha)·g'              if centered, else a = 0
        d = g' / (√(v - a²) + eps)
        b ← momentum·b + d,  θ ← θ - lr·b         with momentum, else θ ← θ - lr·d

    Source: Tieleman & Hinton 2012, Coursera lecture 6.5; centered after Graves 2013,
            arXiv:1308.0850, eq. 38-41; eps outside the root as in PyTorch.
    """

    update = rmsprop

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        self.alpha = number(self, "alpha", alpha, "[0, inf)")
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")
        self.momentum = number(self, "momentum", momentum, "[0, 1)")
        self.centered = switch(self, "centered", centered)
        super().__init__(parameters, lr, maximize=maximize)

    def numbers(self, num_steps: int) -> dict[str, float]:
        return {"rest": 1.0 - self.alpha}
