"""The parts of a Transformer layer that have biases."""

from __future__ import annotations

from collections.abc import Collection

from dynbatch.arguments import refused

PARTS = ("qkv", "out", "feed_forward", "norm")
"""Queries, keys and values; attention's output; the feed-forward part; LayerNorms."""

Biases = bool | Collection[str]
"""True for all parts, False for none, or the names of some."""


def has_bias(owner: object, bias: Biases, part: str) -> bool:
    """Whether a part has a bias.

    Raises:
        ArgumentError: `bias` is neither a switch nor names of parts.
    """
    if isinstance(bias, bool):
        return bias
    if isinstance(bias, str) or not (isinstance(bias, Collection) and set(bias) <= set(PARTS)):
        raise refused(
            type(owner).__name__, f"bias is {bias!r:.60}",
            f"True, False or some of {', '.join(map(repr, PARTS))}", 'give bias=("qkv",), say',
        )  # fmt: skip
    return part in bias
