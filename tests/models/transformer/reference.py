"""Transformer layers with every option, in a few lines of PyTorch; and random cases of them."""

import math
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from tests.models.transformer.parity import Case, exact

ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"]


class Reference:
    """A stack of layers computed from our state dict, sentence by sentence.

    Args:
        weights: tensors by our names.
        options: of the layers; `heads`, and what a call takes, are among them.
    """

    def __init__(self, torch: Any, weights: dict[str, Any], options: dict[str, Any]) -> None:
        self.torch, self.weights, self.options = torch, weights, options

    def linear(self, name: str, x: Any) -> Any:
        y = x @ self.weights[f"{name}weight"].T
        return y + self.weights[f"{name}bias"] if f"{name}bias" in self.weights else y

    def norm(self, name: str, x: Any) -> Any:
        if self.options["norm"] == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self.options["eps"]).sqrt()
        x = x * self.weights[f"{name}.weight"]
        return x + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else x

    def rotated(self, x: Any) -> Any:
        """x (heads, T, d) turned as complex numbers."""
        given = self.options["rotary"]
        turned = given.get("rotary_dim", x.shape[-1])
        frequencies = given.get("base", 10000.0) ** -(np.arange(0, turned, 2) / turned)
        angles = self.torch.tensor(np.outer(np.arange(x.shape[1]), frequencies))
        rest, x = x[..., turned:], x[..., :turned]
        if given.get("layout", "halves") == "halves":
            a, b = x.chunk(2, -1)
        else:
            a, b = x[..., ::2], x[..., 1::2]
        a, b = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        if given.get("layout", "halves") == "halves":
            return self.torch.cat([a, b, rest], -1)
        return self.torch.cat([self.torch.stack([a, b], -1).flatten(-2), rest], -1)

    def attention(self, name: str, x: Any, memory: Any, seen: Any) -> Any:
        o = self.options
        inner, shared = o["heads"] * o["head_dim"], o["kv_heads"] * o["head_dim"]
        if memory is None:
            q, k, v = self.linear(f"{name}.in_proj_", x).split([inner, shared, shared], -1)
        else:
            q = self.linear(f"{name}.q_proj.", x)
            k, v = self.linear(f"{name}.kv_proj.", memory).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (-1, o["head_dim"])).transpose(0, 1) for y in (q, k, v))
        if memory is None and o["rotary"] is not None:
            q, k = self.rotated(q), self.rotated(k)
        k, v = (y.repeat_interleave(o["heads"] // o["kv_heads"], 0) for y in (k, v))
        scale = 1 / math.sqrt(o["head_dim"]) if o["scale"] is None else o["scale"]
        scores = scale * q @ k.transpose(1, 2)
        if memory is None:
            scores = scores + self.bias(len(x))
        scores = scores.masked_fill(~seen, -1e30)
        weights = scores.softmax(-1) * seen  # a query that sees nothing gets zeros
        return self.linear(f"{name}.out_proj.", (weights @ v).transpose(0, 1).flatten(1))

    def bias(self, length: int) -> Any:
        """The numbers added to scores, (heads, T, T)."""
        name, torch = self.options["positions"], self.torch
        distance = torch.arange(length) - torch.arange(length)[:, None]
        if name == "alibi":
            slopes = 2 ** (-8 / self.options["heads"] * torch.arange(1, self.options["heads"] + 1))
            return -slopes[:, None, None] * distance.abs()
        if name == "relative":
            table = self.weights["layers.0.self_attn.position_bias.table"]  # of all layers
            reach = len(table) // 2
            return table[distance.clamp(-reach, reach) + reach].permute(2, 0, 1)
        return 0

    def feed_forward(self, name: str, x: Any) -> Any:
        activation, functional = self.options["activation"], self.torch.nn.functional
        plain = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
        kind = plain.get(activation, activation)
        x = self.linear(f"{name}linear1.", x)
        x, up = x.chunk(2, -1) if activation in plain else (x, 1)
        if kind.startswith("gelu"):
            x = functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
        else:
            x = getattr(functional, kind)(x)
        return self.linear(f"{name}linear2.", x * up)

    def layer(self, name: str, x: Any, memory: Any, seen: Any, memory_seen: Any) -> Any:
        parts = [lambda x: self.attention(f"{name}self_attn", x, None, seen)]
        if memory is not None:
            name_of = f"{name}multihead_attn"
            parts.append(lambda x: self.attention(name_of, x, memory, memory_seen))
        parts.append(lambda x: self.feed_forward(name, x))
        for k, part in enumerate(parts, 1):
            if self.options["norm_first"]:
                x = x + part(self.norm(f"{name}norm{k}", x))
            else:
                x = self.norm(f"{name}norm{k}", x + part(x))
        return x

    def stack(self, x: Any, memory: Any, seen: Any, memory_seen: Any) -> Any:
        for k in range(self.options["layers"]):
            x = self.layer(f"layers.{k}.", x, memory, seen, memory_seen)
        return self.norm("norm", x) if self.options["final_norm"] else x


def random_case(torch: Any, seed: int, longest: int) -> Case:
    """A case drawn by its seed; both sides in float64."""
    rng = np.random.default_rng(seed)
    is_decoder = bool(seed % 2)
    heads, head_dim = int(rng.choice([1, 2, 4])), int(rng.choice([4, 8]))
    dim = int(rng.choice([16, 32]))
    rotary = {
        "base": float(rng.choice([100.0, 10000.0])),
        "layout": str(rng.choice(["halves", "interleaved"])),
        "rotary_dim": int(rng.choice([2, 4])),
    }
    # Among 10^5 features some lie within float32's rounding of ReLU's kink.
    activations = ACTIVATIONS if longest < 20 else [a for a in ACTIVATIONS if "relu" not in a]
    positions = str(rng.choice(["none", "rotary", "relative", "alibi"]))
    options = {
        "kv_heads": int(rng.choice([k for k in (1, 2, 4) if heads % k == 0])),
        "head_dim": head_dim,
        "scale": None if rng.random() < 0.5 else 0.7,
        "activation": activations[seed % len(activations)],
        "norm": str(rng.choice(["layer", "rms"])),
        "norm_first": bool(rng.random() < 0.5),
        "eps": float(rng.choice([1e-5, 1e-2])),
        "bias": bool(rng.random() < 0.7),
        "rotary": rotary if positions == "rotary" else None,
        "position_bias": F.alibi(heads) if positions == "alibi" else None,
    }
    if positions == "relative":
        # Where clipped distances share a row, its gradient sums 10^5 numbers that nearly cancel, of
        # which float32 keeps no 5 digits, in PyTorch neither.
        rows = 7 if longest < 20 else 2 * longest + 1
        table = db.Parameter(np.zeros((rows, heads), np.float32))
        options["position_bias"] = F.relative_bias(table)
    stack = {"layers": int(rng.integers(1, 3)), "final_norm": bool(rng.random() < 0.5)}
    memory_dim = int(rng.choice([dim, 5])) if is_decoder else None
    kind = models.TransformerDecoder if is_decoder else models.TransformerEncoder
    more = {"memory_dim": memory_dim} if is_decoder else {}
    model = kind(dim=dim, heads=heads, hidden=12, dropout=0.0, **stack, **options, **more)
    state = {
        name: exact(rng, p.shape, *((0.3, 1.0) if "norm" in name and p.ndim == 1 else (dim**-0.5,)))
        for name, p in model.named_parameters()
    }
    model.astype("float64").load_state_dict(state)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in state.items()}
    given = {**options, **stack, "heads": heads, "positions": positions}
    reference = Reference(torch, tensors, given)
    causal, window = bool(rng.random() < 0.5), None if rng.random() < 0.7 else int(rng.integers(9))
    sentences, calls, visible = [], [], []
    for length in [0, 1, longest, *rng.integers(0, longest, size=3)]:
        given = [exact(rng, (length, dim))]
        call: dict[str, Any] = {"causal": causal, "window": window}
        seen = np.ones((length, length), bool)
        if rng.random() < 0.4:
            call["mask"] = rng.random((length, length) if rng.random() < 0.5 else length) < 0.7
            seen &= call["mask"]
        distance = np.subtract.outer(np.arange(length), np.arange(length))
        seen &= (distance >= 0) | (not causal)
        seen &= np.abs(distance) <= (length if window is None else window)
        memory_seen = None
        if is_decoder:
            given.append(exact(rng, (int(rng.choice([0, 1, rng.integers(longest)])), memory_dim)))
            memory_seen = np.ones((length, len(given[1])), bool)
            if rng.random() < 0.4:
                call["memory_mask"] = rng.random(memory_seen.shape) < 0.7
                memory_seen &= call["memory_mask"]
        sentences.append(given)
        calls.append(call)
        visible.append([None if s is None else torch.tensor(s) for s in (seen, memory_seen)])

    def of_ours(k: int, nodes: list[db.Node]) -> db.Node:
        return model(*nodes, **calls[k])

    def of_theirs(k: int, given: list[Any]) -> Any:
        x, memory = (*given, None)[:2]
        return reference.stack(x, memory, *visible[k])

    return Case(model, sentences, of_ours, of_theirs, tensors)
