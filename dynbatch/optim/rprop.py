"""Rprop."""

from __future__ import annotations

from dynbatch.arguments import pair
from dynbatch.kernels.scalar.expressions import Expression, where
from dynbatch.kernels.scalar.update import Replaced, update_rule
from dynbatch.kernels.unary.arithmetic import clip, sign
from dynbatch.named_parameters import Parameters
from dynbatch.optim.optimizer import Optimizer


@update_rule
def rprop(
    value: Expression, gradient: Expression, previous_gradient: Expression,
    step_size: Expression, slower: Expression, faster: Expression, smallest: Expression,
    greatest: Expression,
) -> Replaced:  # fmt: skip
    """The formula of `Rprop`."""
    agreement = gradient * previous_gradient
    factor = where(agreement > 0, faster, where(agreement < 0, slower, 1))
    g, step = where(agreement < 0, 0, gradient), clip(step_size * factor, smallest, greatest)
    return {"value": value - sign(g) * step, "previous_gradient": g, "step_size": step}


class Rprop(Optimizer):
    """θ ← θ - sign(g')·s: only the signs of gradients count. For whole batches, not for samples:

        s ← η₊·s,  g' = g    where g has the sign of the g' before,  η = etas = (η₋, η₊)
        s ← η₋·s,  g' = 0    where it has the other one
        s ← s,     g' = g    where one of them is 0

    s is kept within `step_sizes`, and starts at lr, which does not matter any more then.

    Source: Riedmiller & Braun 1993, IEEE International Conference on Neural Networks, 586-591;
            without going back after a change of sign, as in PyTorch.
    """

    update = rprop

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(parameters, lr, maximize=maximize)
        self.etas = pair(self, "etas", etas, ("(0, 1)", "(1, inf)"), "(0.5, 1.2)")
        within = ("[0, inf)", "[0, inf)")
        self.step_sizes = pair(self, "step_sizes", step_sizes, within, "(1e-6, 50.0)")

    def initial(self, slot: str) -> float:
        return float(self.lr) if slot == "step_size" else 0.0

    def numbers(self, num_steps: int) -> dict[str, float]:
        (slower, faster), (least, most) = self.etas, self.step_sizes
        return {"slower": slower, "faster": faster, "smallest": least, "greatest": most}
