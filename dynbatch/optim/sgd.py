"""Stochastic gradient descent."""

from __future__ import annotations

from dynbatch.arguments import number, refused, switch
from dynbatch.kernels.scalar.expressions import Expression, equal, where
from dynbatch.kernels.scalar.update import Replaced, decayed, times, update_rule
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def sgd(
    value: Expression, gradient: Expression, momentum_buffer: Expression, lr: Expression,
    momentum: Expression, share: Expression, weight_decay: Expression, nesterov: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `SGD`, with share = 1 - dampening, and 1 at first."""
    g = decayed(gradient, value, weight_decay)
    b = where(equal(momentum, 0), momentum_buffer, momentum * momentum_buffer + times(g, share))
    d = where(equal(momentum, 0), g, where(equal(nesterov, 0), b, g + momentum * b))
    return {"value": value - d * lr, "momentum_buffer": b}


class SGD(Optimizer):
    """θ ← θ - lr·d, with or without momentum. The direction d is, with g' = g + weight_decay·θ,

        g'                      without momentum,
        b                       with momentum,  b ← momentum·b + (1 - dampening)·g'
        g' + momentum·b         with momentum and nesterov.

    The first b is g' itself. Without momentum and decay, a row-sparse gradient costs its rows only.

    Source: Sutskever, Martens, Dahl & Hinton 2013, ICML, in PyTorch's form, where lr multiplies b
            instead of entering it.
    """

    update = sgd

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        self.momentum = number(self, "momentum", momentum, "[0, 1)")
        self.dampening = number(self, "dampening", dampening)
        self.weight_decay = number(self, "weight_decay", weight_decay, "[0, inf)")
        self.nesterov = switch(self, "nesterov", nesterov)
        super().__init__(parameters, lr, maximize=maximize)
        if nesterov and (not self.momentum or self.dampening):
            raise refused(
                type(self).__name__, f"nesterov with momentum={momentum}, dampening={dampening}",
                "nesterov takes momentum > 0 and dampening 0", "nesterov=True, momentum=0.9",
            )  # fmt: skip

    def numbers(self, num_steps: int) -> dict[str, float]:
        return {"share": 1.0 if num_steps == 1 else 1.0 - self.dampening}
