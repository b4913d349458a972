"""Attention as modules: additive, general and dot scores.

Keys are projected once for each sentence, `keys(memory)`; every query after that costs `attend`.
"""

from __future__ import annotations

from dynbatch import nodes as F
from dynbatch.arguments import number, refused, sizes
from dynbatch.models.initial import Rng, generator, uniform
from dynbatch.models.layers import Linear
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node


class Attention(Module):
    """Base: `attention(query, memory)` is Σ_j p_j memory_j, p = softmax of a score of query and j.

    query (Q,) or (T_q, Q), memory (T_k, K) -> (K,) or (T_q, K); zeros where T_k is 0.
    """

    def keys(self, memory: Node) -> Node:
        """The keys of a memory, computed once for each sentence; here its rows as they are."""
        return memory

    def projected(self, query: Node) -> Node:
        """The query as `scored` takes it; it is itself unless a subclass projects it."""
        return query

    def scored(self, query: Node, keys: Node, values: Node) -> Node:
        """The attention of a projected query to projected keys, which a subclass computes."""
        raise NotImplementedError(f"{type(self).__name__}.scored")

    def attend(self, query: Node, memory: tuple[Node, ...]) -> Node:
        """Attention to (keys, values)."""
        keys, values = memory
        return self.scored(self.projected(query), keys, values)

    def __call__(self, query: Node, memory: Node, values: Node | None = None) -> Node:
        return self.attend(query, (self.keys(memory), memory if values is None else values))


class AdditiveAttention(Attention):
    """score_j = v · tanh(W query + U memory_j).

    Args:
        query_size, key_size, hidden: features of query, memory and the sum.
        rng: generator or seed of the initial values.

    Parameters: query.weight (hidden, query_size), key.weight (hidden, key_size), vector (hidden,).
    Source: Bahdanau et al. 2015, arXiv:1409.0473, appendix A.1.2: W_a, U_a, v_a.
    """

    def __init__(self, query_size: int, key_size: int, hidden: int, *, rng: Rng = None) -> None:
        sizes(self, query_size=query_size, key_size=key_size, hidden=hidden)
        rng = generator(rng)
        self.query = Linear(query_size, hidden, bias=False, rng=rng)
        self.key = Linear(key_size, hidden, bias=False, rng=rng)
        self.vector = uniform(rng, (hidden,), hidden)

    def keys(self, memory: Node) -> Node:
        return self.key(memory)

    def projected(self, query: Node) -> Node:
        return self.query(query)

    def scored(self, query: Node, keys: Node, values: Node) -> Node:
        return F.additive_attention(query, keys, values, self.vector)


class GeneralAttention(Attention):
    """score_j = query · W memory_j. W is applied to the memory, once.

    Parameters: key.weight (query_size, key_size).
    Source: Luong et al. 2015, arXiv:1508.04025, section 3.1, "general": W_a.
    """

    def __init__(self, query_size: int, key_size: int, *, rng: Rng = None) -> None:
        sizes(self, query_size=query_size, key_size=key_size)
        self.key = Linear(key_size, query_size, bias=False, rng=rng)

    def keys(self, memory: Node) -> Node:
        return self.key(memory)

    def scored(self, query: Node, keys: Node, values: Node) -> Node:
        return F.attention(query, keys, values, scale=1.0)


class DotAttention(Attention):
    """score_j = scale · query · memory_j, which have the same features.

    Args:
        scale: 1.0 for Luong's dot score; None for 1/√D (Vaswani et al. 2017).
    """

    def __init__(self, scale: float | None = 1.0) -> None:
        self.scale = None if scale is None else number(self, "scale", scale)

    def scored(self, query: Node, keys: Node, values: Node) -> Node:
        return F.attention(query, keys, values, scale=self.scale)


def make_attention(name: str, query_size: int, key_size: int, rng: Rng) -> Attention:
    """The attention module of a name, "additive" or "general".

    Raises:
        ArgumentError: another name.
    """
    if name == "additive":
        return AdditiveAttention(query_size, key_size, query_size, rng=rng)
    if name == "general":
        return GeneralAttention(query_size, key_size, rng=rng)
    raise refused(
        "Seq2Seq", f"attention is {name!r}", "it is 'additive' or 'general'",
        "take 'general' for dot products; its projection makes the widths equal",
    )  # fmt: skip
