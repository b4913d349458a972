"""Attention as a recurrence of matrices: gated linear attention, and the gated delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dynbatch.backend import Array
from dynbatch.kernels.attention import gated_delta_rule as kernels
from dynbatch.kernels.attention.gated_delta_rule import DeltaGradients, DeltaInputs, DeltaSizes
from dynbatch.nodes.arguments import nodes_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import ELEMENT, Operation, Retain
from dynbatch.ragged import Ragged


class GatedLinearAttention(Operation):
    """o_t = S_tᵀ q_t,  S_t = exp(log_a_t) S_t-1 + k_t v_tᵀ, in each of `heads` heads; S_0 = 0.

    Batches with:  every other one of the same heads and widths, whatever the lengths.
    Keeps:  the state after each 64 tokens but the last ones.
    Cost:  see `kernels.attention.gated_delta_rule`.
    """

    __slots__ = ("heads",)
    static = ("heads",)
    shape_rule = (
        "q (T, heads · d)|(T, heads, d), k (T, heads · d)|(T, heads, d),"
        " v (T, heads · e)|(T, heads, e), log_a (T, heads) -> (T, heads · e)|(T, heads, e)"
    )
    shape_fix: ClassVar[dict[str, str]] = {
        "heads": "give log_a and b a column for each head of q, k and v",
        "heads · d": "project q and k to as many features for each column of log_a",
        "heads · e": "project v to as many features for each column of log_a",
        "d": "project q and k to one width",
        "T": "take all of them from the same tokens of one sentence",
        "log_a": "F.linear(x, weight) makes a column for each of the weight's rows, the heads",
        "b": "F.sigmoid(F.linear(x, weight)) makes a column for each of the weight's rows",
        "": "give q, k and v one rank: (T, heads · d), or (T, heads, d)",
    }
    retains = Retain(inputs=True)
    multiplies_values = True
    heads: int

    @classmethod
    def sizes(cls, batch: Batch) -> DeltaSizes:
        first = batch.first
        d, e = [x.width if x.ndim > 2 else x.width // first.heads for x in first.inputs[1:3]]
        return DeltaSizes(batch.input_rows(3), first.heads, d, e, len(first.inputs) > 4)

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        sizes, arrays = cls.sizes(batch), {}
        if sizes.has_b:
            arrays["errors"] = sum(sizes.lengths), sizes.heads * sizes.value_width
        if states := sum(kernels.kept_states(batch.spec, sizes)):
            arrays["states"] = sizes.heads * states, sizes.key_width * sizes.value_width
        return arrays

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        return kernels.workspace(batch.spec, cls.sizes(batch), batch.keeps)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return kernels.workspace_backward(batch.spec, cls.sizes(batch))

    @classmethod
    def operations(cls, batch: Batch) -> int:
        elements: int = batch.elements
        return cls._products(batch) + ELEMENT * elements

    @classmethod
    def _products(cls, batch: Batch) -> int:
        """Multiply-adds of the recurrence: an update of the state and each product with it."""
        sizes = cls.sizes(batch)
        numbers = sum(sizes.lengths) * sizes.heads * sizes.key_width * sizes.value_width
        return (2 + sizes.has_b) * numbers

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        """Products of the recurrence, and one gate for each number of the state."""
        products = cls._products(sizes.batch)
        return Flops(2 * products, products // (2 + cls.sizes(sizes.batch).has_b))

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """Two products for each of forward; what is computed again is not counted."""
        return cls.flops(sizes).times(2)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        errors, states = [
            batch.saved.get(name) if batch.keeps else None for name in ("errors", "states")
        ]
        inputs, out = _inputs(xs), _of_tokens(y, xs[3])
        kernels.gated_delta_rule(inputs, out, errors, states, batch.scratch)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        xs = [batch.input(k) for k in range(len(dxs))]
        wanted = DeltaGradients(*[None if dx is None else _of_tokens(dx, xs[3]) for dx in dxs])
        errors, states = batch.saved.get("errors"), batch.saved.get("states")
        kernels.gated_delta_rule_backward(
            _inputs(xs), errors, states, _of_tokens(dy, xs[3]), wanted, batch.scratch
        )


class GatedDeltaRule(GatedLinearAttention):
    """o_t = S_tᵀ q_t,  S_t = a_t S_t-1 + k_t w_tᵀ,  w_t = b_t (v_t - a_t S_t-1ᵀ k_t).

    In each of `heads` heads, with a = exp(log_a) and S_0 = 0.

    Batches with:  every other one of the same heads and widths, whatever the lengths.
    Keeps:  v_t - a_t S_t-1ᵀ k_t of each token, and the state after each 64 but the last ones,
        where `kernels.kept_states` has them: on a CPU long sentences of narrow heads keep none.
    Cost:  see `kernels.attention.gated_delta_rule`.
    """

    __slots__ = ()
    shape_rule = GatedLinearAttention.shape_rule.replace(" ->", ", b (T, heads) ->")


def _inputs(xs: Sequence[Ragged]) -> DeltaInputs:
    q, k, v, log_a, *b = [_of_tokens(x, xs[3]) for x in xs]
    return DeltaInputs(q, k, v, log_a, b[0] if b else None, xs[3].offsets)


def _of_tokens(x: Ragged, log_a: Ragged) -> Array:
    """The values with a row for each token, which in rank 3 is several rows."""
    rows, width = x.values.shape
    tokens = log_a.values.shape[0]
    values: Array = x.values if rows == tokens else x.values.reshape(tokens, rows // tokens * width)
    return values


def gated_delta_rule(q: Node, k: Node, v: Node, log_a: Node, b: Node | None = None) -> Node:
    """Gated linear attention of one sentence, or with `b` the gated delta rule.

    A state of (D, E) numbers for each head, which is 0 before the first token, stands for all
    tokens so far; the time is proportional to their number:

        S_t = a_t S_t-1 + k_t w_tᵀ,  o_t = S_tᵀ q_t,  a = exp(log_a)

    Without `b`, w_t = v_t: linear attention with gates, which is also Mamba-2's recurrence. With
    it, w_t = b_t (v_t - a_t S_t-1ᵀ k_t): v_t replaces what the state holds for k_t, all of it where
    b_t = 1 and k_t has length 1 (DeltaNet where log_a = 0, else gated DeltaNet).

    Args:
        q, k:  (T, H · D) queries and keys of H heads, or (T, H, D). Nothing is scaled: with b keys
            have length 1, or at most √(2 / b), lest the state grow without bound.
        v:     (T, H · E) values, or (T, H, E).
        log_a: (T, H) logarithms of gates, at most 0; -inf forgets all that came before.
        b:     (T, H) writing strengths, from 0 to 1; None for linear attention.

    Returns:
        (T, H · E), or (T, H, E).

    Raises:
        ShapeError: shapes do not fit.
        DtypeError: an argument is not a node.

    Sums are those of chunks of 64 tokens or, with b on a CPU, of a loop over the tokens of long
    sentences; both are about as exact as a loop. NaN and infinities reach other tokens of their
    head, no other sentence. `db.grad` through it is an error.

    Source: Yang et al. 2025, arXiv:2412.06464, equation 10, with S_t transposed; without b Yang et
        al. 2024, arXiv:2312.06635, and Dao & Gu 2024, arXiv:2405.21060.

    Example:
        A layer of gated DeltaNet for one sentence (no convolution, no output gate), with weights
        (O, I):

        >>> import dynbatch as db, numpy as np
        >>> from dynbatch import nodes as F
        >>> H, D, E, I = 2, 4, 6, 8
        >>> def unit(x):
        ...     return F.normalize(F.reshape(x, (-1, H, D)))
        >>> def layer(x, p):
        ...     q, k, v = unit(F.linear(x, p["q"])), unit(F.linear(x, p["k"])), F.linear(x, p["v"])
        ...     log_a = -F.softplus(F.linear(x, p["a"]))
        ...     b = F.sigmoid(F.linear(x, p["b"]))
        ...     y = F.gated_delta_rule(q, k, F.reshape(v, (-1, H, E)), log_a, b)
        ...     return F.linear(F.reshape(F.rms_norm(y), (-1, H * E)), p["out"])
    """
    q, k, v, log_a = nodes_of("gated_delta_rule", q, k, v, log_a)
    heads = log_a.width if log_a.ndim == 2 else q.shape[1] if q.ndim > 2 else 1
    if b is None:
        return GatedLinearAttention(q, k, v, log_a, heads=heads)
    return GatedDeltaRule(q, k, v, log_a, *nodes_of("gated_delta_rule", b), heads=heads)
