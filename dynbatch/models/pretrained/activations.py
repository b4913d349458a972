"""Names that `FeedForward` has for the activations of a config.json."""

from __future__ import annotations

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
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    raise refused(
        owner, f"the activation is {name!r:.60}", f"one of {', '.join(map(repr, ACTIVATIONS))}",
        "choose a checkpoint with one of these",
    )  # fmt: skip
