"""Adam and AdamW, which share their arithmetic, and AMSGrad."""

from __future__ import annotations

import math

from dynbatch.arguments import switch
from dynbatch.kernels.scalar.expressions import Expression, equal, maximum, where
from dynbatch.kernels.scalar.update import Replaced, decayed, times, update_rule
from dynbatch.kernels.unary.arithmetic import sqrt
from dynbatch.named_parameters import Parameters
from dynbatch.optim.moments import MomentOptimizer


@update_rule
def adam(
    value: Expression, gradient: Expression, gradient_sum: Expression, square_sum: Expression,
    largest_square_sum: Expression, step_size: Expression, beta1: Expression, beta2: Expression,
    scaled_eps: Expression, l2: Expression, shrink: Expression, amsgrad: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Adam`: θ ← shrink·θ - step_size·M / (√V + scaled_eps), with g' = g + l2·θ."""
    g = decayed(gradient, value, l2)
    m, v = beta1 * gradient_sum + g, beta2 * square_sum + g * g
    u = where(equal(amsgrad, 0), largest_square_sum, maximum(largest_square_sum, v))
    root = sqrt(where(equal(amsgrad, 0), v, u))
    slots = {"gradient_sum": m, "square_sum": v, "largest_square_sum": u}
    return {"value": times(value, shrink) - m / (root + scaled_eps) * step_size, **slots}


class Adam(MomentOptimizer):
    """θ ← θ - lr·m̂ / (√v̂ + eps), by means of g' and of its square. With g' = g + weight_decay·θ:

        m ← β₁·m + (1 - β₁)·g',   m̂ = m / (1 - β₁ᵗ)
        v ← β₂·v + (1 - β₂)·g'²,  v̂ = v / (1 - β₂ᵗ)

    t counts the parameter's steps from 1. The slots hold M = m / (1 - β₁) and V = v / (1 - β₂),
    which need two passes over memory fewer: M ← β₁·M + g', V ← β₂·V + g'²; the factors go into
    the step size and eps. With `amsgrad` the largest v so far takes the place of v in v̂.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1; weight decay as an L2 term as in
            PyTorch. For decay apart from the gradient take `AdamW`. AMSGrad: Reddi, Kale & Kumar
            2018, arXiv:1904.09237, algorithm 2, with the factors of Adam as in PyTorch.
    """

    update = adam

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        self.amsgrad = switch(self, "amsgrad", amsgrad)
        super().__init__(parameters, lr, betas, eps, weight_decay, maximize=maximize)

    def numbers(self, num_steps: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        scale = math.sqrt((1.0 - beta2**num_steps) / (1.0 - beta2))  # √V = scale·√v̂
        step_size = float(self.lr) * scale * (1.0 - beta1) / (1.0 - beta1**num_steps)
        numbers = {"step_size": step_size, "scaled_eps": self.eps * scale}
        return super().numbers(num_steps) | numbers


class SparseAdam(Adam):
    """Adam's step for the rows of a table that were read; the others, and their slots, stay.

    After a `lookup` an update costs those rows alone, however long the table is. A row's m and v
    are averages over the steps in which it was read, with t of the table; eps is added to √v. A
    parameter whose gradient is dense is stepped as a whole, which PyTorch refuses. All as in
    `torch.optim.SparseAdam`; without weight decay.
    """

    only_touched_rows = True

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, maximize=maximize)

    def numbers(self, num_steps: int) -> dict[str, float]:
        scaled_eps = self.eps / math.sqrt(1.0 - self.betas[1])
        return super().numbers(num_steps) | {"scaled_eps": scaled_eps}


class AdamW(Adam):
    """θ ← (1 - lr·weight_decay)·θ, then Adam's step: the decay stays out of the moments.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2, where lr also multiplies the
            decay, as in PyTorch.
    """

    decoupled_weight_decay = True

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
