"""Layers whose state is a matrix for each head: gated DeltaNet and Mamba-2.

Both are a short causal convolution, which begins anew in each sentence, the recurrence of
`F.gated_delta_rule`, and an output gate. Nothing of one sentence reaches another: a mini-batch has
no padding, and a sentence's first token sees zeros before it.
"""

from __future__ import annotations

import math

import numpy as np

from dynbatch import nodes as F
from dynbatch.arguments import number, pair, refused, size, sizes
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator, made, ones, uniform
from dynbatch.models.layers import Linear, RMSNorm
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter


class CausalConv1d(Module):
    """Each feature's convolution over this token and the kernel - 1 before it, (T, D) -> (T, D).

        y_t = Σ_j weight[:, 0, j] ⊙ x_(t - kernel + 1 + j) + bias,  with zeros before the sentence

    Args:
        features: D.
        kernel:   tokens that an output sees, its own among them.
        bias:     whether there is one.
        rng:      generator or seed of the initial values, uniform in ±1/√kernel as PyTorch's.

    Parameters: weight (D, 1, kernel) and bias (D,), as those of `torch.nn.Conv1d` with groups=D.
    """

    def __init__(
        self, features: int, kernel: int = 4, bias: bool = True, *, rng: Rng = None
    ) -> None:
        sizes(self, features=features, kernel=kernel)
        rng = generator(rng)
        self.weight = uniform(rng, (features, 1, kernel), kernel)
        self.bias = uniform(rng, (features,), kernel) if bias else None

    def __call__(self, x: Node) -> Node:
        return F.conv1d(x, self.weight, self.bias, padding="causal", groups=self.weight.shape[0])


class GatedDeltaNet(Module):
    """Gated DeltaNet, (T, D) -> (T, D): the layer that Qwen3-Next and Qwen3.5 have for attention.

        q, k, v = silu(conv(W_qkv x));  k, q of length 1, q / √key_dim
        a = exp(-exp(A_log) softplus(W_a x + dt_bias)),  b = sigmoid(W_b x)
        S_t = a_t S_t-1 + k_t w_tᵀ,  w_t = b_t (v_t - a_t S_t-1ᵀ k_t)
        y_t = W_o (rms_norm(S_tᵀ q_t) ⊙ silu(W_z x_t))

    A head of queries and keys serves value_heads / heads heads of values. S is 0 before the first
    token of each sentence.

    Args:
        dim:         D, features of x and of the result.
        heads:       of queries and keys.
        value_heads: of values; as many as `heads` by default, or a multiple.
        key_dim, value_dim: features of a head of keys, and of values; dim / heads by default.
        kernel:      tokens that the convolution sees.
        eps:         of the norm.
        rng:         generator or seed of the initial values: exp(A_log) from 0.01 to 16, and
            softplus(dt_bias) from 0.001 to 0.1, as in the authors' code.

    Parameters: with K = heads · key_dim and V = value_heads · value_dim, in_proj_qkv.weight
        (2 K + V, D), in_proj_z.weight (V, D), in_proj_b.weight and in_proj_a.weight
        (value_heads, D), conv1d.weight (2 K + V, 1, kernel), dt_bias and A_log (value_heads,),
        norm.weight (value_dim,), out_proj.weight (D, V). `load_state_dict` takes Qwen3-Next's
        in_proj_qkvz.weight and in_proj_ba.weight, whose rows go by heads of keys, for the first.

    Raises:
        ArgumentError: heads do not divide dim (without key_dim or value_dim), or value_heads.

    Source: Yang et al. 2025, arXiv:2412.06464, section 3.4; sizes and names are those of
        `Qwen3NextGatedDeltaNet` in `transformers`.
    """

    def __init__(
        self, dim: int, heads: int, *, value_heads: int | None = None, key_dim: int | None = None,
        value_dim: int | None = None, kernel: int = 4, eps: float = 1e-6, rng: Rng = None,
    ) -> None:  # fmt: skip
        sizes(self, dim=dim, heads=heads, kernel=kernel)
        if None in (key_dim, value_dim) and dim % heads:
            raise refused(
                "GatedDeltaNet", f"{heads} heads for {dim} features", "heads divide the features",
                "choose a divisor, or give key_dim and value_dim",
            )  # fmt: skip
        self.heads = heads
        self.value_heads = _multiple("GatedDeltaNet", "value_heads", value_heads, "heads", heads)
        self.key_dim = dim // heads if key_dim is None else size(self, "key_dim", key_dim)
        self.value_dim = dim // heads if value_dim is None else size(self, "value_dim", value_dim)
        keys, values = heads * self.key_dim, self.value_heads * self.value_dim
        rng = generator(rng)
        self._add_projections(dim, 2 * keys + values, values, rng)
        self.conv1d = CausalConv1d(2 * keys + values, kernel, bias=False, rng=rng)
        self.dt_bias = made((self.value_heads,), lambda: _dt_bias(rng, self.value_heads))
        self.A_log = _log_rates(rng, self.value_heads, 0.01)
        self.norm = RMSNorm(self.value_dim, number(self, "eps", eps, "[0, inf)"))
        self.out_proj = Linear(values, dim, bias=False, rng=rng)

    def _add_projections(self, dim: int, mixed: int, values: int, rng: np.random.Generator) -> None:
        self.in_proj_qkv = Linear(dim, mixed, bias=False, rng=rng)
        self.in_proj_z = Linear(dim, values, bias=False, rng=rng)
        self.in_proj_b = Linear(dim, self.value_heads, bias=False, rng=rng)
        self.in_proj_a = Linear(dim, self.value_heads, bias=False, rng=rng)

    @block
    def __call__(self, x: Node) -> Node:
        """The layer's values for a sentence x (T, D)."""
        keys, values = self.heads * self.key_dim, self.value_heads * self.value_dim
        mixed, z, b, a = self.projected(x)
        q, k, v = F.split(F.silu(self.conv1d(mixed)), [keys, keys, values])
        q, k = [self._of_value_heads(self._unit(part)) for part in (q, k)]
        log_a = -F.exp(F.parameter(x.graph, self.A_log)) * F.softplus(a)
        scale: float = self.key_dim**-0.5
        seen = F.gated_delta_rule(q * scale, k, v, log_a, F.sigmoid(b))
        normed = F.rms_norm(seen, self.norm.weight, self.norm.eps, heads=self.value_heads)
        return self.out_proj(normed * F.silu(z))

    def projected(self, x: Node) -> tuple[Node, Node, Node, Node]:
        """W_qkv x, W_z x, W_b x and W_a x + dt_bias."""
        a = self.in_proj_a.adapted(x, F.linear(x, self.in_proj_a.weight, self.dt_bias))
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), a

    def _unit(self, x: Node) -> Node:
        """Each head divided by √(Σ x² + 1e-6), as a root mean square."""
        scale: float = self.key_dim**-0.5
        return F.rms_norm(x, None, 1e-6 / self.key_dim, heads=self.heads) * scale

    def _of_value_heads(self, x: Node) -> Node:
        return _repeated(x, self.heads, self.value_heads // self.heads)

    def own_names(self, state: dict[str, Array], prefix: str) -> None:
        """Take apart Qwen3-Next's joined weights, whose rows go by heads of keys."""
        d, e, shared = self.key_dim, self.value_dim, self.value_heads // self.heads
        for name, widths, names in (
            ("in_proj_qkvz", (d, d, shared * e, shared * e), ("q", "k", "v", "z")),
            ("in_proj_ba", (shared, shared), ("b", "a")),
        ):
            shape = np.shape(state.get(f"{prefix}{name}.weight", ()))
            if len(shape) != 2 or shape[0] != self.heads * sum(widths):
                continue  # there is none, or of other sizes, and stays a name that is not known
            joined = state.pop(f"{prefix}{name}.weight")
            rows = np.asarray(joined).reshape(self.heads, sum(widths), -1)
            cut = np.split(rows, np.cumsum(widths)[:-1], axis=1)
            parts = [part.reshape(-1, rows.shape[2]) for part in cut]
            if len(parts) > 2:
                parts, names = [np.concatenate(parts[:3]), parts[3]], ("qkv", "z")
            for short, part in zip(names, parts, strict=True):
                state[f"{prefix}in_proj_{short}.weight"] = part


class Mamba2(Module):
    """Mamba-2, (T, D) -> (T, D): a state space with one gate for each head and token.

        z, [x, B, C], dt = W_in u;  [x, B, C] = silu(conv([x, B, C]));  dt = softplus(dt + dt_bias)
        S_t = exp(-exp(A_log) dt_t) S_t-1 + B_t (dt_t x_t)ᵀ,  y_t = S_tᵀ C_t + D ⊙ x_t
        out = W_out rms_norm(y ⊙ silu(z))

    S is 0 before the first token of each sentence. B and C of a group serve heads / groups heads;
    the norm is of each group of features by itself.

    Args:
        dim:      D, features of u and of the result.
        heads:    of the state; each has expand · dim / heads features.
        state:    numbers of the state for each feature of x, 128 in the paper.
        expand:   inner features for each of dim.
        groups:   of B and C.
        kernel:   tokens that the convolution sees.
        bias:     whether in_proj and out_proj have one.
        conv_bias: whether the convolution has one.
        dt_limit: least and largest dt.
        eps:      of the norm.
        rng:      generator or seed of the initial values: A from 1 to 16, dt from 0.001 to 0.1.

    Parameters: with I = expand · dim and N = groups · state, in_proj.weight (2 I + 2 N + heads, D),
        conv1d.weight (I + 2 N, 1, kernel), conv1d.bias, dt_bias, A_log and D (heads,), norm.weight
        (I,), out_proj.weight (D, I), as `Mamba2Mixer` in `transformers` names them.

    Raises:
        ArgumentError: heads do not divide expand · dim, or groups the heads, or dt_limit are not
            two numbers in their order.

    Source: Dao & Gu 2024, arXiv:2405.21060, section 7 and figure 6.
    """

    def __init__(
        self, dim: int, heads: int, *, state: int = 128, expand: int = 2, groups: int = 1,
        kernel: int = 4, bias: bool = False, conv_bias: bool = True,
        dt_limit: tuple[float, float] = (0.0, math.inf), eps: float = 1e-5, rng: Rng = None,
    ) -> None:  # fmt: skip
        sizes(self, dim=dim, heads=heads, state=state, expand=expand, groups=groups, kernel=kernel)
        self.heads, self.groups, self.state, self.inner = heads, groups, state, expand * dim
        _multiple("Mamba2", "expand · dim", self.inner, "heads", heads)
        _multiple("Mamba2", "heads", heads, "groups", groups)
        within = ("[0, inf]", "[0, inf]")
        low, high = self.dt_limit = pair(self, "dt_limit", dt_limit, within, "(0.001, 0.1)")
        if low > high:
            raise refused(
                "Mamba2", f"dt_limit is from {low:g} to {high:g}",
                "the least dt, then the largest", "exchange them",
            )  # fmt: skip
        mixed = self.inner + 2 * groups * state
        rng = generator(rng)
        self.in_proj = Linear(dim, self.inner + mixed + heads, bias=bias, rng=rng)
        self.conv1d = CausalConv1d(mixed, kernel, conv_bias, rng=rng)
        self.dt_bias = made((heads,), lambda: _dt_bias(rng, heads))
        self.A_log = _log_rates(rng, heads, 1.0)
        self.D = ones(heads)
        self.norm = RMSNorm(self.inner, number(self, "eps", eps, "[0, inf)"))
        self.out_proj = Linear(self.inner, dim, bias=bias, rng=rng)

    @block
    def __call__(self, x: Node) -> Node:
        """The layer's values for a sentence x (T, D)."""
        heads, groups, states = self.heads, self.groups, self.groups * self.state
        z, mixed, dt = F.split(self.in_proj(x), [self.inner, self.inner + 2 * states, heads])
        mixed = F.silu(self.conv1d(mixed))
        inner, keys, queries = F.split(mixed, [self.inner, states, states])
        dt = F.softplus(dt + self._vector(x, self.dt_bias))
        low, high = self.dt_limit
        if low > 0 or high < math.inf:
            dt = F.clip(dt, low, high)
        log_a = -F.exp(self._vector(x, self.A_log)) * dt
        keys, queries = [_repeated(part, groups, heads // groups) for part in (keys, queries)]
        v, skip = [
            inner * _repeated(factors, heads, self.inner // heads)
            for factors in (dt, self._vector(x, self.D))
        ]
        y = F.gated_delta_rule(queries, keys, v, log_a)
        y = (y + skip) * F.silu(z)
        normed = F.rms_norm(y, None, self.norm.eps, heads=groups)
        return self.out_proj(normed * self._vector(x, self.norm.weight))

    def _vector(self, x: Node, parameter: Parameter) -> Node:
        return F.parameter(x.graph, parameter)


def _repeated(x: Node, heads: int, times: int) -> Node:
    """Each head of features (T, heads · d), or of (heads · d,), `times` over, side by side."""
    if times == 1:
        return x
    return F.concat([head for head in F.chunk(x, heads) for _ in range(times)])


def _dt_bias(rng: np.random.Generator, heads: int) -> Array:
    """The inverse of softplus of steps from 0.001 to 0.1, uniform by their logarithms."""
    dt = np.exp(rng.uniform(math.log(0.001), math.log(0.1), heads))
    bias: Array = (dt + np.log(-np.expm1(-dt))).astype(np.float32)
    return bias


def _log_rates(rng: np.random.Generator, heads: int, least: float) -> Parameter:
    """Logarithms of rates of decay, uniform from `least` to 16."""
    return made((heads,), lambda: np.log(rng.uniform(least, 16, heads)).astype(np.float32))


def _multiple(owner: str, name: str, value: int | None, divisor: str, count: int) -> int:
    """`value`, a multiple of `count`, which it is by default."""
    if value is None:
        return count
    value = size(owner, name, value)
    if value % count:
        raise refused(
            owner, f"{value} {name} for {count} {divisor}", f"{divisor} divide {name}",
            "choose a divisor",
        )  # fmt: skip
    return value
