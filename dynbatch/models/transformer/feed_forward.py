"""The feed-forward part of a Transformer layer: two linear maps, plain or with a gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dynbatch import nodes as F
from dynbatch.arguments import number, refused, sizes
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Linear
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node

Activation = Callable[[Node], Node]

ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "reglu": F.reglu,
    "geglu": F.geglu,
    "geglu_tanh": partial(F.geglu, approximate="tanh"),
    "swiglu": F.swiglu,
}
GATES = frozenset(("reglu", "geglu", "geglu_tanh", "swiglu"))
"""The activations that read a gate beside each feature: they halve the features."""


class FeedForward(Module):
    """y = W_2 f(W_1 x + b_1) + b_2 for every token; with a gate, y = W_2 (f(W_g x) ⊙ W_v x).

    x (T, D) -> (T, D).

    Args:
        dim, hidden: D, and H features between the two maps.
        activation:  f, one of "relu", "gelu", "gelu_tanh" (GPT-2's form) and "silu"; or a gate,
                     "reglu", "geglu", "geglu_tanh" or "swiglu" (Llama's).
        bias:        whether the maps have biases.
        dropout:     after f, while training.
        rng:         generator or seed of the initial values.

    Parameters: linear1.weight (H, D), linear1.bias (H,), linear2.weight (D, H), linear2.bias (D,);
        with a gate linear1 has 2 H rows, those of f first.

    Raises:
        ArgumentError: another activation.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.3; gates Shazeer 2020,
        arXiv:2002.05202.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        activation: str = "relu",
        *,
        bias: bool = True,
        dropout: float = 0.0,
        rng: Rng = None,
    ) -> None:
        sizes(self, dim=dim, hidden=hidden)
        if activation not in ACTIVATIONS:
            raise refused(
                "FeedForward", f"activation is {activation!r}",
                f"one of {', '.join(map(repr, ACTIVATIONS))}", "choose one of these",
            )  # fmt: skip
        rng = generator(rng)
        self.activation = activation
        self.dropout = number(self, "dropout", dropout, "[0, 1]")
        self.linear1 = Linear(dim, (1 + (activation in GATES)) * hidden, bias, rng=rng)
        self.linear2 = Linear(hidden, dim, bias, rng=rng)

    @block
    def __call__(self, x: Node) -> Node:
        x = ACTIVATIONS[self.activation](self.linear1(x))
        return self.linear2(F.dropout(x, self.dropout, self.training))
