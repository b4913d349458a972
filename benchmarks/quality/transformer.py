"""A layer of a Transformer in PyTorch, padded: what the tasks with attention have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.quality.task import Task, Weights, dropped, linear


def normed(x: Tensor, weights: Weights, name: str) -> Tensor:
    """The layer norm of a name, with its bias if it has one."""
    scale, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    return functional.layer_norm(x, x.shape[-1:], scale, bias)


def layer(
    task: Task, x: Tensor, weights: Weights, name: str, heads: int, *,
    activation: Callable[[Tensor], Tensor], turned: Callable[[Tensor], Tensor] | None = None,
    memory: Tensor | None = None, memory_mask: Tensor | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    """A pre-norm layer of (B, T, D), with dropout wherever `torch.nn.Transformer` has it.

    Args:
        turned:              the rotary positions of queries and keys (B, heads, T, d).
        memory, memory_mask: what a decoder's layer also attends to, and which of it is no padding.
        how:                 of `scaled_dot_product_attention` of x to itself: is_causal, attn_mask.
    """
    dropout = task.model.dropout.p if task.model.training else 0.0  # type: ignore[attr-defined]

    def seen(part: str, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        q, k, v = [each.unflatten(2, (heads, -1)).transpose(1, 2) for each in (q, k, v)]
        if turned is not None:
            q, k = turned(q), turned(k)
        values = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, **how)
        joined = linear(values.transpose(1, 2).flatten(2), weights, f"{name}.{part}.out_proj")
        return dropped(joined, task)

    in_proj = [weights.get(f"{name}.self_attn.in_proj_{kind}") for kind in ("weight", "bias")]
    joined = functional.linear(normed(x, weights, f"{name}.norm1"), *in_proj)  # type: ignore[arg-type]
    x = x + seen("self_attn", *joined.chunk(3, 2), **how)
    norm = "norm2"
    if memory is not None:
        q = linear(normed(x, weights, f"{name}.norm2"), weights, f"{name}.multihead_attn.q_proj")
        k, v = linear(memory, weights, f"{name}.multihead_attn.kv_proj").chunk(2, 2)
        x = x + seen("multihead_attn", q, k, v, attn_mask=memory_mask)
        norm = "norm3"
    inner = activation(linear(normed(x, weights, f"{name}.{norm}"), weights, f"{name}.linear1"))
    return x + dropped(linear(dropped(inner, task), weights, f"{name}.linear2"), task)


def angles(length: int, width: int) -> Tensor:
    """The angles (length, width / 2) of positions: p / 10000^(2i / width)."""
    half = width // 2
    return torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
