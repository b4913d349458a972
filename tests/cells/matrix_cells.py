"""Six recurrences whose state is a matrix in each head, as cells and as loops of PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import nodes as F

H, D, E = 2, 4, 19


def by_head(*values):
    """Vectors (H · D,) as heads (H, D)."""
    return [F.reshape(x, (H, x.width // H)) for x in values]


def times(scalars, state):
    """Each head's matrix times its number."""
    return F.reshape(scalars, (H, 1, 1)) * state


@db.cell
def linear_attention(x, state, p):
    q, k, v = by_head(*x)
    state = state + F.outer(k, v)
    return F.reshape(F.vecmat(q, state), (-1,)), state


@db.cell
def delta_net(x, state, p):
    q, k, v, b = by_head(*x)
    state = state + F.outer(k, F.sigmoid(b) * (v - F.vecmat(k, state)))
    return F.reshape(F.vecmat(q, state), (-1,)), state


@db.cell
def gated_delta_net(x, state, p):
    q, k, v, b, a = by_head(*x)
    state = times(F.sigmoid(a), state)
    state = state + F.outer(k, F.sigmoid(b) * (v - F.vecmat(k, state)))
    return F.reshape(F.vecmat(q, state), (-1,)), state


@db.cell
def m_lstm(x, states, p):
    (q, k, v), i, f, (state, total, most) = by_head(*x[:3]), *x[3:], states
    kept = F.negative(F.softplus(-f)) + most
    most = F.maximum(kept, i)
    kept, new = F.exp(kept - most), F.exp(i - most)
    state = times(kept, state) + times(new, F.outer(k, v))
    total = F.reshape(kept, (H, 1)) * total + F.reshape(new, (H, 1)) * k
    scale = F.maximum(F.abs(F.sum(q * total, dim=-1)), F.reshape(F.exp(-most), (H, 1)))
    return F.reshape(F.vecmat(q, state) / scale, (-1,)), (state, total, most)


@db.cell
def rwkv_7(x, state, p):
    r, w, k, v, a, b = by_head(*x)
    kept = F.unsqueeze(F.exp(F.negative(F.exp(w))), 1) * state
    state = kept + F.outer(F.matvec(state, -a), a * F.sigmoid(b)) + F.outer(v, k)
    return F.reshape(F.matvec(state, r), (-1,)), state


@db.cell
def mamba_2(x, state, p):
    (b, c, step), (values,) = x[1:], by_head(x[0])
    step = F.softplus(step + p["bias"])
    kept = F.exp(F.negative(step * F.exp(p["log_a"])))
    new = F.outer(F.reshape(step, (H, 1)) * values, F.expand(b, (H, D)))
    state = times(kept, state) + new
    y = F.matvec(state, F.expand(c, (H, D))) + F.reshape(p["skip"], (H, 1)) * values
    return F.reshape(y, (-1,)), state


# By PyTorch, with functions of `torch` and states that broadcast ---------------------------------


def linear_attention_step(torch, x, state, p):
    q, k, v = x
    state = state + k[:, :, None] * v[:, None]
    return torch.einsum("hd,hde->he", q, state), state


def delta_net_step(torch, x, state, p):
    q, k, v, b = x
    error = v - torch.einsum("hd,hde->he", k, state)
    state = state + k[:, :, None] * (b.sigmoid() * error)[:, None]
    return torch.einsum("hd,hde->he", q, state), state


def gated_delta_net_step(torch, x, state, p):
    *others, a = x
    return delta_net_step(torch, others, a.sigmoid()[:, :, None] * state, p)


def m_lstm_step(torch, x, states, p):
    (q, k, v, i, f), (state, total, most) = x, states
    i, f = i[:, 0], torch.nn.functional.logsigmoid(f[:, 0])
    kept, most = f + most, torch.maximum(f + most, i)
    kept, new = (kept - most).exp()[:, None], (i - most).exp()[:, None]
    state = kept[:, :, None] * state + new[:, :, None] * k[:, :, None] * v[:, None]
    total = kept * total + new * k
    scale = torch.maximum((q * total).sum(-1).abs(), (-most).exp())
    return torch.einsum("hd,hde->he", q, state) / scale[:, None], (state, total, most)


def rwkv_7_step(torch, x, state, p):
    r, w, k, v, a, b = x
    removed = torch.einsum("hed,hd->he", state, -a)
    state = state * (-w.exp()).exp()[:, None]
    state = state + removed[:, :, None] * (a * b.sigmoid())[:, None] + v[:, :, None] * k[:, None]
    return torch.einsum("hed,hd->he", state, r), state


def mamba_2_step(torch, x, state, p):
    (values, b, c, step), (bias, log_a, skip) = x, p
    step = torch.nn.functional.softplus(step[:, 0] + bias)
    new = (step[:, None] * values)[:, :, None] * b.reshape(1, 1, -1)
    state = (-step * log_a.exp()).exp()[:, None, None] * state + new
    return state @ c.reshape(-1) + skip[:, None] * values, state


@dataclass
class MatrixCase:
    """A recurrence.

    widths:     of each sentence that is read side by side.
    state:      the shape of each part of the state; `single` says that there is one.
    step:       (torch, x, state, parameters) -> (y, state), with heads (H, …) in x.
    parameters: names of parameters (H,).
    """

    cell: Any
    step: Callable[..., Any]
    widths: tuple[int, ...]
    state: tuple[tuple[int, ...], ...] = ((H, D, E),)
    parameters: tuple[str, ...] = ()
    heads: tuple[int, ...] | None = None

    @property
    def single(self) -> bool:
        return len(self.state) == 1

    @property
    def init(self) -> Any:
        """The first state, zeros."""
        parts = tuple([db.zeros(*shape) for shape in self.state])
        return parts[0] if self.single else parts

    def sentences(self, lengths, dtype="float64", seed=0):
        """Arrays (T, D) of each sentence, for each of these lengths."""
        rng = np.random.default_rng(seed)
        return [
            [rng.standard_normal((n, width)).astype(dtype) * 0.7 for width in self.widths]
            for n in lengths
        ]

    def given(self, dtype="float64"):
        """Parameters (H,) by name."""
        rng = np.random.default_rng(1)
        return {
            name: db.Parameter(rng.standard_normal(H).astype(dtype)) for name in self.parameters
        }


MATRIX_CASES = {
    case.cell.__name__: case
    for case in (
        MatrixCase(linear_attention, linear_attention_step, (H * D, H * D, H * E)),
        MatrixCase(delta_net, delta_net_step, (H * D, H * D, H * E, H)),
        MatrixCase(gated_delta_net, gated_delta_net_step, (H * D, H * D, H * E, H, H)),
        MatrixCase(m_lstm, m_lstm_step, (H * D, H * D, H * E, H, H), ((H, D, E), (H, D), (H,))),
        MatrixCase(rwkv_7, rwkv_7_step, (H * D, H * D, H * D, H * E, H * D, H * D), ((H, E, D),)),
        MatrixCase(mamba_2, mamba_2_step, (H * E, D, D, H), ((H, E, D),), ("bias", "log_a", "skip"),
                   (H, 1, 1, H)),
    )
}  # fmt: skip
