"""The nodes of a graph computed by PyTorch, one by one: what random graphs are compared with.

Each rule is PyTorch's own function, or the formula, on the matrix of one sentence. Cells and scans
have none: random graphs are built without scans, and with cells as plain functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch.nodes.node import Node
from dynbatch.testing.policies import Outcome
from dynbatch.testing.random_graph import OPERATIONS, Built, RandomGraph
from tests.torch_parity import import_torch

WITH_RULE = [name for name in OPERATIONS if not name.startswith("scan") and name != "dropout"]
"""The operations of random programs that PyTorch can do; masks of dropout are ours."""

Rule = Callable[..., Any]


def outcome_by_torch(random_graph: RandomGraph) -> Outcome:
    """`policies.outcome` by PyTorch; without gradients of nodes that cells made."""
    torch = import_torch()
    inline = replace(random_graph, inline=True)
    parameters = inline.parameters
    with db.Graph(dtype="float64", seed=3) as graph:
        built = inline.build(graph)
        weights = {
            parameter.uid: torch.tensor(parameter.value, requires_grad=not parameter.frozen)
            for parameter in parameters.values()
        }
        tensors = computed(torch, graph.nodes, built, weights)
    arrays: Outcome = {}
    losses = [built.loss]
    if random_graph.backwards == 2:
        losses.insert(0, built.losses[0])
    for number, loss in enumerate(losses):
        for node in built.kept.values():
            tensors[node.index].grad = None
        if tensors[loss.index].requires_grad:
            tensors[loss.index].backward(retain_graph=True)
        arrays[f"loss {number}"] = tensors[loss.index].detach().numpy()
        for name, node in built.kept.items():
            arrays[f"{name}: gradient {number}"] = _array(torch, tensors[node.index])
    for name, node in built.kept.items():
        arrays[f"{name}: value"] = tensors[node.index].detach().numpy()
    for parameter in parameters.values():
        arrays[f"gradient of {parameter.name!r}"] = _array(torch, weights[parameter.uid])
    return arrays


def computed(
    torch: Any, nodes: Sequence[Node], built: Built, weights: dict[int, Any]
) -> dict[int, Any]:
    """The tensor of each node, by its index; those of kept nodes will have a gradient."""
    kept = {node.index for node in built.kept.values()}
    tensors: dict[int, Any] = {}
    for node in nodes:
        rule = RULES[type(node).__name__]
        read = [tensors[x.index] for x in node.inputs]
        owned = [weights[parameter.uid] for parameter in node.all_parameters()]
        tensor = rule(torch, node, *read, *owned).reshape(node.shape)
        if node.index in kept and not tensor.requires_grad:
            tensor = tensor.detach().clone().requires_grad_()
        elif node.index in kept:
            tensor.retain_grad()
        tensors[node.index] = tensor
    return tensors


def _array(torch: Any, tensor: Any) -> Any:
    grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return grad.detach().numpy().copy()


def _matrix(node: Node, tensor: Any) -> Any:
    (x,) = node.inputs
    return tensor.reshape(x.rows, x.width)


def _taken(torch: Any, node: Any, x: Any) -> Any:
    rows, columns = node.taken
    return _matrix(node, x)[list(rows)][:, list(columns)]


def _axis(node: Any) -> int:
    return 0 if node.over == "tokens" else -1


def _sum(torch: Any, node: Any, x: Any) -> Any:
    return x.sum() if node.over == "all" else x.sum(_axis(node))


def _mean(torch: Any, node: Any, x: Any) -> Any:
    count = x.numel() if node.over == "all" else x.shape[_axis(node)]
    return _sum(torch, node, x) / max(1, count)


def _segments(torch: Any, node: Any, x: Any) -> Any:
    return torch.stack([each.sum(0) / max(1, len(each)) for each in x.split(node.counts.tolist())])


def _attention(torch: Any, node: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.T * node.scale, -1) @ v


def _cross_entropy(torch: Any, node: Any, x: Any) -> Any:
    losses = torch.nn.functional.cross_entropy(
        _matrix(node, x),
        torch.tensor(node.targets),
        label_smoothing=node.smoothing,
        reduction="none",
    )
    counts = torch.tensor(node.weights > 0)
    total = losses[counts].sum()
    return total / max(1, int(counts.sum())) if node.rule.reduction == "mean" else total


def _argmax(torch: Any, node: Any, x: Any) -> Any:
    return torch.tensor(np.argmax(x.detach().numpy(), _axis(node)).astype(np.float64))


def _sinusoids(torch: Any, node: Any, x: Any) -> Any:
    rows, width = x.shape
    powers = node.angles.base ** (torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = torch.arange(rows, dtype=x.dtype)[:, None] / powers
    return torch.stack([torch.sin(angles), torch.cos(angles)], -1).flatten(1)[:, :width]


def _rotary(torch: Any, node: Any, x: Any) -> Any:
    angles = node.offset + torch.arange(x.shape[0], dtype=x.dtype)
    a, b, rest = x[:, 0], x[:, 1], x[:, 2:]
    turned = [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()]
    return torch.cat([torch.stack(turned, -1), rest], -1)


RULES: dict[str, Rule] = {
    "Input": lambda torch, node: torch.tensor(node.array),
    "ParameterNode": lambda torch, node, p: p,
    "Lookup": lambda torch, node, table: table[torch.tensor(node.ids, dtype=torch.long)],
    "LinearMap": lambda torch, node, x, *p: torch.nn.functional.linear(x, *p),
    "Add": lambda torch, node, x, y: x + y,
    "Subtract": lambda torch, node, x, y: x - y,
    "Multiply": lambda torch, node, x, y: x * y,
    "Divide": lambda torch, node, x, y: x / y,
    "Tanh": lambda torch, node, x: torch.tanh(x),
    "Sigmoid": lambda torch, node, x: torch.sigmoid(x),
    "Silu": lambda torch, node, x: torch.nn.functional.silu(x),
    "Softplus": lambda torch, node, x: torch.nn.functional.softplus(x),
    "Exp": lambda torch, node, x: torch.exp(x),
    "Sqrt": lambda torch, node, x: torch.sqrt(x),
    "Negative": lambda torch, node, x: -x,
    "Detach": lambda torch, node, x: x.detach(),
    "Scale": lambda torch, node, x: x * node.number,
    "DivideByNumber": lambda torch, node, x: x / node.number,
    "Shift": lambda torch, node, x: x + node.number,
    "Reshape": lambda torch, node, x: x,
    "Concat": lambda torch, node, *xs: torch.cat(
        [x.reshape(1, -1) if node.ndim > x.ndim else x for x in xs], node.along
    ),
    "Row": _taken,
    "Slice": _taken,
    "Sum": _sum,
    "Mean": _mean,
    "Total": lambda torch, node, *xs: node.number * sum(xs),
    "Probe": lambda torch, node, *xs: (
        torch.cat([x.reshape(-1) for x in xs]) @ torch.tensor(node.weights)
    ),
    "Transpose": lambda torch, node, x: x.T,
    "MatMul": lambda torch, node, x, y: x @ y,
    "Expand": lambda torch, node, x: x.expand(node.shape),
    "ExpandToLength": lambda torch, node, x: x.expand(node.shape),
    "Softmax": lambda torch, node, x: torch.softmax(x, _axis(node)),
    "LogSoftmax": lambda torch, node, x: torch.log_softmax(x, _axis(node)),
    "LogSumExp": lambda torch, node, x: torch.logsumexp(x, _axis(node)),
    "Max": lambda torch, node, x: x.max(_axis(node)).values,
    "Min": lambda torch, node, x: x.min(_axis(node)).values,
    "ArgMax": _argmax,
    "Reverse": lambda torch, node, x: x.flip(0),
    "GatherRows": lambda torch, node, x: x[torch.tensor(node.ids, dtype=torch.long)],
    "SegmentMean": _segments,
    "CrossEntropy": _cross_entropy,
    "DotProductAttention": _attention,
    "GatedUnit": lambda torch, node, x, y: torch.nn.functional.silu(x) * y,
    "LayerNormalization": lambda torch, node, x: torch.nn.functional.layer_norm(
        x, x.shape[-1:], eps=node.eps
    ),
    "RmsNormalization": lambda torch, node, x: (
        x / ((x * x).mean(-1, keepdim=True) + node.eps).sqrt()
    ),
    "Sinusoids": _sinusoids,
    "Rotary": _rotary,
}
"""By the name of the node type: what PyTorch makes of a node's tensors, then of its parameters."""
