"""Loss of a language model: each token of a text, given those before it."""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import refused, size
from dynbatch.backend import Array
from dynbatch.nodes.arguments import same_ids
from dynbatch.nodes.node import Node


def next_token_loss(
    owner: str, ids: ArrayLike, features: Callable[[Array], Node], scores: Callable[[Node], Node],
    reduction: str, context: int,
) -> Node:  # fmt: skip
    """Cross-entropy in nats of all tokens but the first.

    Args:
        owner:    whose loss it is; errors name it.
        ids:      (T,), each but the last is read.
        features: of T - 1 ids, (T - 1, D).
        scores:   of features, (K, D) -> (K, V).
        context:  of the T - 1 predictions so many are not counted, the first ones.

    Raises:
        ArgumentError: `context` is not a whole number from 0 on, or leaves nothing to count.
        ShapeError:    `ids` are not one sentence's.
    """
    tokens, context = same_ids(owner, ids), size(owner, "context", context, 0)
    if context and context >= tokens.size - 1:
        raise refused(
            owner, f"context is {context}, of a text of {tokens.size} tokens: nothing is counted",
            "of T tokens T - 1 are predicted, and those behind the context count",
            "leave a text without an answer out; or give a context below T - 1",
        )  # fmt: skip
    x = features(tokens[:-1])
    return F.cross_entropy(
        scores(x[context:] if context else x), tokens[1 + context :], reduction=reduction
    )
