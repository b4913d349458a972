"""AdamW."""

from __future__ import annotations

from dynbatch.kernels.optimizers import Rule
from dynbatch.optim.adam import Adam
from dynbatch.optim.parameters import Parameters


class AdamW(Adam):
    """θ ← (1 - lr·weight_decay)·θ, then Adam's step: the decay stays out of the moments.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2, where lr also multiplies the
            decay, as in PyTorch.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)

    def rule(self, num_steps: int) -> Rule:
        shrink = 1.0 - float(self.lr) * self.weight_decay
        return self.adam_rule(num_steps, l2=0.0, shrink=shrink)
