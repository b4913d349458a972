"""Activation functions."""

from __future__ import annotations

from dynbatch.arguments import refused
from dynbatch.kernels.unary import activations
from dynbatch.nodes.node import Node
from dynbatch.nodes.unary.node_types import NODE_TYPES

__all__ = [
    "celu",
    "elu",
    "gelu",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "relu",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softsign",
    "tanh",
]


def tanh(x: Node) -> Node:
    """Hyperbolic tangent."""
    return NODE_TYPES[activations.tanh](x)


def sigmoid(x: Node) -> Node:
    """Logistic function."""
    return NODE_TYPES[activations.sigmoid](x)


def relu(x: Node) -> Node:
    """max(x, 0)."""
    return NODE_TYPES[activations.relu](x)


def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """x where positive, else `negative_slope` · x."""
    return NODE_TYPES[activations.leaky_relu](x, slope=float(negative_slope))


def elu(x: Node, alpha: float = 1.0) -> Node:
    """x where positive, else alpha · (exp(x) - 1)."""
    return NODE_TYPES[activations.elu](x, alpha=float(alpha))


def celu(x: Node, alpha: float = 1.0) -> Node:
    """x where positive, else alpha · (exp(x / alpha) - 1)."""
    return NODE_TYPES[activations.celu](x, alpha=float(alpha))


def selu(x: Node) -> Node:
    """`elu` of alpha 1.6733, times 1.0507, as `torch.nn.functional.selu`."""
    return NODE_TYPES[activations.selu](x)


def hardtanh(x: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """`clip` between two bounds, on which its derivative is 0, as in PyTorch."""
    return NODE_TYPES[activations.hardtanh](x, low=float(min_val), high=float(max_val))


def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    return NODE_TYPES[activations.softsign](x)


def mish(x: Node) -> Node:
    """x tanh(softplus(x))."""
    return NODE_TYPES[activations.mish](x)


def require_approximation(approximate: object) -> None:
    """Raise `ArgumentError` unless a GELU has such a form."""
    if approximate not in ("none", "tanh"):
        raise refused(
            "a GELU", f"approximate is {approximate!r}", 'approximate is "none" or "tanh"',
            '"tanh" is what others call gelu_new or gelu_pytorch_tanh',
        )  # fmt: skip


def gelu(x: Node, approximate: str = "none") -> Node:
    """x Φ(x), as `torch.nn.functional.gelu`; `approximate="tanh"` for the tanh form of GPT-2.

    Raises:
        ArgumentError: `approximate` is neither "none" nor "tanh".

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    require_approximation(approximate)
    return NODE_TYPES[activations.gelu](x, approximate=approximate)


def silu(x: Node) -> Node:
    """x σ(x)."""
    return NODE_TYPES[activations.silu](x)


def softplus(x: Node) -> Node:
    """log(1 + exp(x))."""
    return NODE_TYPES[activations.softplus](x)


def logsigmoid(x: Node) -> Node:
    """log σ(x) = -log(1 + exp(-x)), as `torch.nn.functional.logsigmoid`.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.logsigmoid(F.input(graph, [-1000.0, 1000.0])).value.tolist()
        [-1000.0, -0.0]
    """
    return NODE_TYPES[activations.log_sigmoid](x)
