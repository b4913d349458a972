"""Multi-head attention of a sentence to itself, or to a memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dynbatch import nodes as F
from dynbatch.arguments import number, refused, size, sizes, switch
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.adapter import Adaptable
from dynbatch.models.initial import Rng, generator, glorot, uniform, zeros
from dynbatch.models.layers import Linear, RMSNorm
from dynbatch.models.transformer.biases import Biases, has_bias
from dynbatch.nodes.attention.bias import Bias, DistanceBias
from dynbatch.nodes.node import Node


class MultiHeadAttention(Adaptable):
    """Attention of several heads, out_proj [head_1; …; head_H], as `torch.nn.MultiheadAttention`.

        head_h = softmax(scale · q_h k_hᵀ) v_h,   q = W_q x + b_q,  k, v likewise of x or memory

    Called on x (T, D) it is self-attention: queries, keys and values are one product. Made with a
    `memory_dim`, it is called on x and a memory (S, memory_dim), of which keys and values come. The
    result is (T, D); over a memory of length 0 each row is out_proj's bias.

    Args:
        dim:        D, features of x and of the result.
        heads:      of the queries; they divide `dim`, or have `head_dim` features each.
        memory_dim: features of a memory to attend to; None for self-attention.
        kv_heads:   of keys and values, as many as `heads` by default; with fewer, heads share them.
        head_dim:   features of a head, dim / heads by default.
        bias:       whether the linear maps have biases; ("qkv",) for those of queries, keys and
                    values alone, ("out",) for the last.
        scale:      of the scores; 1/√head_dim by default.
        dropout:    of the softmax's probabilities, while training.
        rotary:     arguments of `F.rotary`, which then turns queries and keys of self-attention:
                    {} for its defaults, or {"base": 5e5, "layout": "interleaved"}.
        qk_norm:    eps of RMSNorms of the queries and keys of each head of self-attention, before
                    they are turned; None for none.
        softcap:    c, which bounds scores s by c · tanh(s / c); None for none.
        position_bias: added to the scores of self-attention by the distance of query and key, an
                    `F.relative_bias`, `F.t5_bias` or `F.alibi`; layers may share one.
        gated:      whether the values of each head are multiplied by sigmoid(W_g x) before
                    out_proj, in self-attention.
        rng:        generator or seed of the initial values, distributed as PyTorch's.

    Parameters: with I = heads · head_dim and K = kv_heads · head_dim, of self-attention
        in_proj_weight (I + 2 K, D) and in_proj_bias (I + 2 K,), whose rows are those of q, k and v
        in turn, with qk_norm q_norm.weight and k_norm.weight (head_dim,); if it is gated, those of
        q are 2 I, head by head those of the query and of its gate; of attention to a memory
        q_proj.weight (I, D), q_proj.bias (I,), kv_proj.weight (2 K, memory_dim), kv_proj.bias
        (2 K,); of both out_proj.weight (D, I), out_proj.bias (D,).
        `load_state_dict` takes PyTorch's names for all of these: in_proj_weight, or q_proj_weight,
        k_proj_weight and v_proj_weight, with in_proj_bias.

    Raises:
        ArgumentError: heads do not divide `dim`, or called with a memory and made without, or
            made for a memory and called without; or `rotary`, `position_bias`, `qk_norm` or `gated`
            is given for a memory; or called with a bias where there is a `position_bias`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; gates: Qiu et al. 2025,
        arXiv:2505.06708.
    """

    adapted_weight = "in_proj_weight"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        memory_dim: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: Biases = True,
        scale: float | None = None,
        dropout: float = 0.0,
        rotary: Mapping[str, Any] | None = None,
        qk_norm: float | None = None,
        softcap: float | None = None,
        position_bias: DistanceBias | None = None,
        gated: bool = False,
        rng: Rng = None,
    ) -> None:
        sizes(self, dim=dim, heads=heads)
        if head_dim is None and dim % heads:
            raise refused(
                "MultiHeadAttention", f"{heads} heads for {dim} features",
                "heads divide the features", "choose a divisor, or give head_dim",
            )  # fmt: skip
        head_dim = dim // heads if head_dim is None else size(self, "head_dim", head_dim)
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else size(self, "kv_heads", kv_heads)
        if heads % self.kv_heads:
            raise refused(
                "MultiHeadAttention", f"{heads} heads for {kv_heads} of keys and values",
                "kv_heads divides heads", "choose a divisor; 1 lets all heads share one",
            )  # fmt: skip
        self.inner, self.kv_inner = heads * head_dim, self.kv_heads * head_dim
        self.scale = 1 / math.sqrt(head_dim) if scale is None else number(self, "scale", scale)
        self.dropout = number(self, "dropout", dropout, "[0, 1]")
        self.has_memory = memory_dim is not None
        self.gated = switch(self, "gated", gated)
        of_sentence = (rotary, position_bias, qk_norm)
        if self.has_memory and (gated or any([each is not None for each in of_sentence])):
            raise refused(
                "MultiHeadAttention", f"{'gates' if gated else 'positions'} and a memory",
                "positions of a sentence and of a memory are not compared, nor are heads gated",
                "leave rotary, position_bias, qk_norm and gated out",
            )  # fmt: skip
        self.rotary = None if rotary is None else dict(rotary)
        self.position_bias = position_bias
        self.softcap = None if softcap is None else number(self, "softcap", softcap, "(0, inf)")
        self.q_norm, self.k_norm = [
            None if qk_norm is None else RMSNorm(head_dim, qk_norm) for _ in "qk"
        ]
        rng = generator(rng)
        has_qkv_bias = has_bias(self, bias, "qkv")
        if memory_dim is None:
            rows = sum(self.projected)
            self.in_proj_weight = glorot(rng, (rows, dim))
            self.in_proj_bias = zeros(rows) if has_qkv_bias else None
        else:
            memory_dim = size(self, "memory_dim", memory_dim)
            self.q_proj = _projection(rng, dim, self.inner, has_qkv_bias)
            self.kv_proj = _projection(rng, memory_dim, 2 * self.kv_inner, has_qkv_bias)
        weight = uniform(rng, (dim, self.inner), self.inner)
        self.out_proj = Linear.of(weight, zeros(dim) if has_bias(self, bias, "out") else None)

    @property
    def projected(self) -> tuple[int, int, int]:
        """Rows of in_proj_weight for queries, with their gates, for keys and for values."""
        return (1 + self.gated) * self.inner, self.kv_inner, self.kv_inner

    @block
    def __call__(
        self,
        x: Node,
        memory: Node | None = None,
        *,
        causal: bool = False,
        window: int | None = None,
        mask: Any = None,
        bias: Bias | None = None,
    ) -> Node:
        """Attention of x to itself or to a memory.

        Args:
            x:      (T, D).
            memory: (S, memory_dim), if the module was made for one.
            causal: token i sees tokens j <= i only.
            window: token i sees tokens with |i - j| <= window only.
            mask:   boolean (T, S) or (S,); False hides a token.
            bias:   added to the scores, as `F.attention` has it: (T, S) or (heads, T, S), an array
                or a node, or of `F.feature_bias`; none where the module has a `position_bias`.
        """
        queries, keys, values, *gates = self._projected(x, memory)
        if bias is None:
            bias = self.position_bias
        elif self.position_bias is not None:
            raise refused(
                "MultiHeadAttention", "called with a bias, and made with a position_bias",
                "one bias is added to the scores",
                "leave one out; a matrix may hold the sum of both",
            )  # fmt: skip
        seen = F.attention(
            queries, keys, values, scale=self.scale, causal=causal, window=window, mask=mask,
            heads=self.heads, kv_heads=self.kv_heads, bias=bias,
            dropout=self.dropout if self.training else 0.0, softcap=self.softcap,
        )  # fmt: skip
        return self.out_proj(seen * F.sigmoid(gates[0]) if gates else seen)

    def _projected(self, x: Node, memory: Node | None) -> Sequence[Node]:
        if self.has_memory != (memory is not None):
            raise refused(
                "MultiHeadAttention", f"called {'without' if memory is None else 'with'} a memory",
                "it attends to what it was made for: a memory if it has a memory_dim, else itself",
                "attention(x, memory)" if self.has_memory else "give memory_dim when it is made",
            )  # fmt: skip
        if memory is None:
            joined = self.adapted(x, F.linear(x, self.in_proj_weight, self.in_proj_bias))
            if self.gated:
                mixed, keys, values = F.split(joined, self.projected)
                parts = F.chunk(mixed, 2 * self.heads)
                queries, gates = F.concat(parts[::2]), F.concat(parts[1::2])
                return *self._normalised(queries, keys), values, gates
            if self.rotary is None or self.q_norm is not None:
                queries, keys, values = F.split(joined, self.projected)
                return *self._normalised(queries, keys), values
            turned, values = F.split(joined, [self.inner + self.kv_inner, self.kv_inner])
            turned = F.rotary(turned, self.heads + self.kv_heads, **self.rotary)
            return *F.split(turned, [self.inner, self.kv_inner]), values
        return self.q_proj(x), *F.chunk(self.kv_proj(memory), 2)

    def _normalised(self, queries: Node, keys: Node) -> Sequence[Node]:
        """Queries and keys normalised by head, if they are, and turned."""
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries, self.heads), self.k_norm(keys, self.kv_heads)
        if self.rotary is None:
            return queries, keys
        return (
            F.rotary(queries, self.heads, **self.rotary),
            F.rotary(keys, self.kv_heads, **self.rotary),
        )

    def own_names(self, state: dict[str, Array], prefix: str) -> None:
        """Divide PyTorch's joined weight where there is a memory, and join its three otherwise."""
        names = [f"{prefix}{part}_proj_weight" for part in "qkv"]
        if all([name in state for name in names]):
            parts = [state.pop(name) for name in names]
        elif self.has_memory and (joined := f"{prefix}in_proj_weight") in state:
            parts = np.split(np.asarray(state.pop(joined)), 3)
        else:
            return
        bias = state.pop(f"{prefix}in_proj_bias", None)
        if not self.has_memory:
            state[f"{prefix}in_proj_weight"] = np.concatenate(parts)
            if bias is not None:
                state[f"{prefix}in_proj_bias"] = bias
            return
        state[f"{prefix}q_proj.weight"] = parts[0]
        state[f"{prefix}kv_proj.weight"] = np.concatenate(parts[1:])
        if bias is not None:
            rows = len(parts[0])
            state[f"{prefix}q_proj.bias"], state[f"{prefix}kv_proj.bias"] = bias[:rows], bias[rows:]


def _projection(rng: np.random.Generator, inputs: int, outputs: int, bias: bool) -> Linear:
    return Linear.of(glorot(rng, (outputs, inputs)), zeros(outputs) if bias else None)
