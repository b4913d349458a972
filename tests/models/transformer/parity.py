"""Random configurations of Transformer modules, ours and PyTorch's with the same values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.testing.probe import gradient_of, probe

KINDS = (
    "self-attention", "cross-attention", "encoder layer", "decoder layer", "encoder", "decoder",
    "transformer",
)  # fmt: skip
WITH_MEMORY = ("cross-attention", "decoder layer", "decoder", "transformer")


@dataclass
class Case:
    """One module of each side, and sentences: a (T, D), and a memory (S, M) where it takes one."""

    kind: str
    ours: models.Module
    theirs: Any
    sentences: list[list[np.ndarray]]
    masks: list[np.ndarray | None]
    causal: bool
    weights: list[np.ndarray]


def random_case(torch: Any, seed: int, longest: int) -> Case:
    """A case drawn by its seed; both sides in float64."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    heads = int(rng.choice([1, 2, 4]))
    dim = heads * int(rng.choice([8, 16] if heads == 1 else [4, 8]))
    memory_dim = dim + 3 if kind == "cross-attention" and rng.random() < 0.5 else dim
    ours, theirs = _modules(torch.nn, rng, kind, (dim, heads, memory_dim))
    theirs.double()
    ours.astype("float64").load_state_dict(_random_values(torch, rng, theirs, dim))
    sentences, masks = [], []
    lengths = sorted({0, 1, *rng.integers(0, longest, size=3).tolist(), longest})
    for length in rng.permutation(lengths):
        given = [_exact(rng, (length, dim))]
        if kind in WITH_MEMORY:
            given.append(_exact(rng, (rng.integers(1, longest + 1), memory_dim)))
        sentences.append(given)
        masks.append(None)
        if kind != "transformer" and rng.random() < 0.5:  # every query sees some key: PyTorch's NaN
            keys = len(given[-1]) if kind == "cross-attention" else length
            masks[-1] = rng.random((length, keys)) < 0.6
            masks[-1][:, :1] = True
    causal = kind == "transformer" or (kind != "cross-attention" and bool(rng.random() < 0.5))
    weights = [_exact(rng, given[0].shape) for given in sentences]
    return Case(kind, ours, theirs, sentences, masks, causal, weights)


def _exact(rng: Any, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Normally distributed numbers that are the same in both precisions."""
    return (scale * rng.standard_normal(shape)).astype(np.float32).astype(np.float64)


def _modules(nn: Any, rng: Any, kind: str, sizes: tuple[int, ...]) -> tuple[models.Module, Any]:
    """The module of both sides with random options."""
    dim, heads, memory_dim = sizes
    hidden, layers = int(rng.choice([4, 12, 32])), int(rng.integers(1, 3))
    bias, final = bool(rng.random() < 0.7), bool(rng.random() < 0.5)
    activation, eps = str(rng.choice(["relu", "gelu"])), float(rng.choice([1e-5, 1e-2]))
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


def _random_values(torch: Any, rng: Any, theirs: Any, dim: int) -> dict[str, np.ndarray]:
    """Values for all parameters, also where PyTorch begins with zeros or copies of a layer."""
    state = {}
    for name, tensor in theirs.named_parameters():
        is_scale = "norm" in name and name.endswith("weight")
        low, scale = (1.0, 0.3) if is_scale else (0.0, dim**-0.5)
        state[name] = (low + _exact(rng, tensor.shape, scale)).astype(np.float32)
        tensor.data[...] = torch.tensor(state[name])
    return state


def expected(torch: Any, case: Case) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, Any]]:
    """PyTorch's values, gradients of inputs and gradients of parameters, in float64.

    A sentence without tokens gives none, and is left out.
    """
    values, gradients = [], []
    for given, mask, weight in zip(case.sentences, case.masks, case.weights, strict=True):
        tensors = [torch.tensor(x, requires_grad=True) for x in given]
        if len(given[0]):
            y = _theirs(torch, case, tensors, mask)
            y.backward(torch.tensor(weight))
        else:
            y = tensors[0]
        values.append(y.detach().numpy())
        gradients += [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in tensors]
    named = {name: tensor.grad.numpy() for name, tensor in case.theirs.named_parameters()}
    for prefix, module in case.ours._named_modules():
        module.own_names(named, prefix)
    return values, gradients, named


def _theirs(torch: Any, case: Case, tensors: list[Any], mask: np.ndarray | None) -> Any:
    length = len(tensors[0])
    seen = np.ones((length, length), bool) if mask is None else mask
    if case.causal:
        seen = np.tril(seen)
    hidden = torch.tensor(~seen)
    x, *memory = [tensor[None] for tensor in tensors]
    if case.kind.endswith("attention"):
        keys = (memory or [x])[0]
        given = None if mask is None and not case.causal else hidden
        return case.theirs(x, keys, keys, attn_mask=given, need_weights=False)[0][0]
    if case.kind == "transformer":
        return case.theirs(*memory, x, tgt_mask=hidden)[0]
    return case.theirs(x, *memory, hidden)[0]


def found(
    case: Case, dtype: str, chosen: list[int]
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Our values and gradients of the chosen sentences in one mini-batch."""
    case.ours.astype(dtype)
    with db.Graph(dtype=dtype) as graph:
        inputs = [[F.input(graph, x).keep() for x in case.sentences[k]] for k in chosen]
        outputs = [
            _ours(case, given, case.masks[k]).keep()
            for k, given in zip(chosen, inputs, strict=True)
        ]
        graph.backward(probe(outputs, [case.weights[k] for k in chosen]))
        gradients = [gradient_of(x) for given in inputs for x in given]
        values = [y.value for y in outputs]
    return values, gradients, [dense(p) for p in case.ours.parameters()]


def dense(parameter: db.Parameter) -> np.ndarray:
    """The gradient, zeros where there is none."""
    return np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.copy()


def _ours(case: Case, given: list[db.Node], mask: np.ndarray | None) -> db.Node:
    if case.kind == "transformer":
        return case.ours(given[1], given[0])
    if case.kind == "cross-attention":
        return case.ours(*given, mask=mask)
    return case.ours(*given, causal=case.causal, mask=mask)
