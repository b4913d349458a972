"""Random cases of PyTorch's own modules."""

from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from tests.models.transformer.parity import Case, exact

KINDS = (
    "self-attention", "cross-attention", "encoder layer", "decoder layer", "encoder", "decoder",
    "transformer",
)  # fmt: skip
WITH_MEMORY = ("cross-attention", "decoder layer", "decoder", "transformer")


def random_case(torch: Any, seed: int, longest: int) -> Case:
    """A case drawn by its seed; both sides in float64."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    heads = int(rng.choice([1, 2, 4]))
    dim = heads * int(rng.choice([8, 16] if heads == 1 else [4, 8]))
    memory_dim = dim + 3 if kind == "cross-attention" and rng.random() < 0.5 else dim
    # Among 10^5 features some lie within float32's rounding of ReLU's kink.
    activations = ["relu", "gelu"] if longest < 20 else ["gelu", "gelu"]
    ours, theirs = _modules(torch.nn, rng, kind, (dim, heads, memory_dim), activations)
    theirs.double()
    ours.astype("float64").load_state_dict(random_values(torch, rng, theirs, dim))
    sentences, masks = [], []
    lengths = sorted({0, 1, *rng.integers(0, longest, size=3).tolist(), longest})
    for length in rng.permutation(lengths):
        given = [exact(rng, (length, dim))]
        if kind in WITH_MEMORY:
            given.append(exact(rng, (rng.integers(1, longest + 1), memory_dim)))
        sentences.append(given)
        masks.append(None)
        if kind != "transformer" and rng.random() < 0.5:  # every query sees some key: PyTorch's NaN
            keys = len(given[-1]) if kind == "cross-attention" else length
            masks[-1] = rng.random((length, keys)) < 0.6
            masks[-1][:, :1] = True
    causal = kind == "transformer" or (kind != "cross-attention" and bool(rng.random() < 0.5))

    def of_ours(k: int, nodes: list[db.Node]) -> db.Node:
        if kind == "transformer":
            return ours(nodes[1], nodes[0])
        return ours(*nodes, causal=causal, mask=masks[k])

    def of_theirs(k: int, tensors: list[Any]) -> Any:
        length = len(tensors[0])
        if not length:  # which PyTorch refuses
            return tensors[0] * 1
        seen = np.ones((length, length), bool) if masks[k] is None else masks[k]
        hidden = torch.tensor(~(np.tril(seen) if causal else seen))
        x, *memory = [tensor[None] for tensor in tensors]
        if kind.endswith("attention"):
            keys = (memory or [x])[0]
            given = None if masks[k] is None and not causal else hidden
            return theirs(x, keys, keys, attn_mask=given, need_weights=False)[0][0]
        if kind == "transformer":
            return theirs(*memory, x, tgt_mask=hidden)[0]
        return theirs(x, *memory, hidden)[0]

    return Case(ours, sentences, of_ours, of_theirs, dict(theirs.named_parameters()))


def _modules(
    nn: Any, rng: Any, kind: str, sizes: tuple[int, ...], activations: list[str]
) -> tuple[Any, Any]:
    """The module of both sides with random options."""
    dim, heads, memory_dim = sizes
    hidden, layers = int(rng.choice([4, 12, 32])), int(rng.integers(1, 3))
    bias, final = bool(rng.random() < 0.7), bool(rng.random() < 0.5)
    activation, eps = str(rng.choice(activations)), float(rng.choice([1e-5, 1e-2]))
    ours = {"dropout": 0.0, "activation": activation, "bias": bias}
    theirs = {**ours, "dim_feedforward": hidden, "layer_norm_eps": eps, "batch_first": True}
    ours["norm_first"] = theirs["norm_first"] = bool(rng.random() < 0.5)
    ours["eps"] = eps
    if kind.endswith("attention"):
        given = {"memory_dim": memory_dim} if kind.startswith("cross") else {}
        widths = {"kdim": memory_dim, "vdim": memory_dim, "batch_first": True}
        own = models.MultiHeadAttention(dim, heads, bias=bias, **given)
        return own, nn.MultiheadAttention(dim, heads, bias=bias, **widths)
    if kind == "transformer":
        counts = {"encoder_layers": layers, "decoder_layers": 2}
        own = models.Transformer(dim, heads, hidden, **counts, **ours)
        return own, nn.Transformer(dim, heads, layers, 2, **theirs)
    name = f"Transformer{kind.split()[0].capitalize()}"
    layer = getattr(nn, f"{name}Layer")(dim, heads, **theirs)
    if kind.endswith("layer"):
        return getattr(models, f"{name}Layer")(dim, heads, hidden, **ours), layer
    norm = nn.LayerNorm(dim, eps, bias=bias) if final else None
    own = getattr(models, name)(layers, dim, heads, hidden, final_norm=final, **ours)
    return own, getattr(nn, name)(layer, layers, norm)


def random_values(torch: Any, rng: Any, theirs: Any, dim: int) -> dict[str, np.ndarray]:
    """Values for all parameters, also where PyTorch begins with zeros or copies of a layer."""
    state = {}
    for name, tensor in theirs.named_parameters():
        is_scale = "norm" in name and name.endswith("weight")
        mean, scale = (1.0, 0.3) if is_scale else (0.0, dim**-0.5)
        state[name] = exact(rng, tensor.shape, scale, mean)
        tensor.data[...] = torch.tensor(state[name])
    return state
