"""Names that `FeedForward` has for the activations of a config.json."""

from __future__ import annotations

from collections.abc import Mapping

from dynbatch.arguments import refused

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def activation_of(owner: str, name: str) -> str:
    """The activation that config.json calls `name`.

    Raises:
        ArgumentError: it is not one of `ACTIVATIONS`.
    """
    return _named(owner, name, ACTIVATIONS)


GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
}
"""Names that `FeedForward` has for gates with the activations of a config.json."""


def gate_of(owner: str, name: str) -> str:
    """The gate whose activation config.json calls `name`.

    Raises:
        ArgumentError: it is not one of `GATES`.
    """
    return _named(owner, name, GATES)


def _named(owner: str, name: str, names: Mapping[str, str]) -> str:
    if name in names:
        return names[name]
    raise refused(
        owner, f"the activation is {name!r:.60}", f"one of {', '.join(map(repr, names))}",
        "choose a checkpoint with one of these",
    )  # fmt: skip
