"""RMSprop."""

from __future__ import annotations

from dynbatch.arguments import number, switch
from dynbatch.kernels import optimizers
from dynbatch.kernels.optimizers import Rule
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


class RMSprop(Optimizer):
    """Gradients divided by a running root mean square. With g' = g + weight_decay·θ:

        v ← alpha·v + (1 - alpha)·g'²
        a ← alpha·a + (1 - alpha)·g'              if centered, else a = 0
        d = g' / (√(v - a²) + eps)
        b ← momentum·b + d,  θ ← θ - lr·b         with momentum, else θ ← θ - lr·d

    Source: Tieleman & Hinton 2012, Coursera lecture 6.5; centered after Graves 2013,
            arXiv:1308.0850, eq. 38-41; eps outside the root as in PyTorch.
    """

    num_scratch = 2

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        self.alpha = number(self, "alpha", alpha, "[0, inf)")
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")
        self.momentum = number(self, "momentum", momentum, "[0, 1)")
        self.centered = switch(self, "centered", centered)
        centre = ("gradient_average",) if centered else ()
        buffer = ("momentum_buffer",) if self.momentum else ()
        super().__init__(parameters, lr, ("square_average", *centre, *buffer))

    def rule(self, num_steps: int) -> Rule:
        alpha, centered = self.alpha, float(self.centered)
        numbers = (alpha, 1.0 - alpha, self.eps, self.weight_decay, self.momentum, centered)
        return Rule(optimizers.rmsprop, (float(self.lr), *numbers))
