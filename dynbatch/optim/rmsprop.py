"""RMSprop."""

from __future__ import annotations

from dynbatch.kernels import optimizers
from dynbatch.kernels.optimizers import Rule
from dynbatch.optim.optimizer import Optimizer
from dynbatch.optim.parameters import Parameters


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
        centre = ("gradient_average",) if centered else ()
        buffer = ("momentum_buffer",) if momentum else ()
        super().__init__(parameters, lr, ("square_average", *centre, *buffer))
        self._require(alpha >= 0.0, "alpha", alpha, ">= 0")
        self._require(eps >= 0.0, "eps", eps, ">= 0")
        self._require(weight_decay >= 0.0, "weight_decay", weight_decay, ">= 0")
        self._require(momentum >= 0.0, "momentum", momentum, ">= 0")
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.centered = centered

    def rule(self, num_steps: int) -> Rule:
        alpha, centered = self.alpha, float(self.centered)
        numbers = (alpha, 1.0 - alpha, self.eps, self.weight_decay, self.momentum, centered)
        return Rule(optimizers.rmsprop, (float(self.lr), *numbers))
