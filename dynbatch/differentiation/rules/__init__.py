"""Rules by families, as in `dynbatch.nodes`: importing this enters all of them in the table."""

from dynbatch.differentiation.rules import (
    additive,
    arithmetic,
    attention,
    elementwise,
    gated,
    linear,
    losses,
    reduce,
    selection,
    shape,
    softmax,
    sources,
    windows,
)

__all__ = [
    "additive", "arithmetic", "attention", "elementwise", "gated", "linear", "losses", "reduce",
    "selection", "shape", "softmax", "sources", "windows",
]  # fmt: skip
