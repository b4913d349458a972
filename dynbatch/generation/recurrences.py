"""Functions of a sentence that see the rows so far, as loops that leave a state after each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch import nodes as F
from dynbatch.cells.cell import cell
from dynbatch.cells.scan.arguments import zeros
from dynbatch.cells.scan.scan import scan
from dynbatch.nodes.attention.gated_delta_rule import GatedLinearAttention
from dynbatch.nodes.images.convolution import Convolution
from dynbatch.nodes.node import Node, ancestors
from dynbatch.nodes.operation import Operation


def as_loops(result: Any) -> Any:
    """A node or several, of scans in place of recurrences that have kernels of their own.

    These are gated linear attention, the gated delta rule, and causal convolutions of each feature
    by itself. Values differ by rounding.
    """
    if isinstance(result, tuple):
        return tuple(map(as_loops, result))
    if not isinstance(result, Node):  # whose trace refuses it by its type
        return result
    nodes = ancestors([result])
    loops: dict[int, Node] = {}
    for index in sorted(nodes):
        node = nodes[index]
        inputs = [loops.get(x.index, x) for x in node.inputs]
        if isinstance(node, GatedLinearAttention) and node.ndim == 2:
            loops[index] = _linear_attention(node, inputs)
        elif isinstance(node, Convolution) and node.is_causal and _is_of_each_feature(node):
            loops[index] = _convolution(node, *inputs)
        elif not loops.keys().isdisjoint([x.index for x in node.inputs]):
            assert isinstance(node, Operation)
            loops[index] = node.rebuild(*inputs)
    return loops.get(result.index, result)


def _linear_attention(node: GatedLinearAttention, inputs: Sequence[Node]) -> Node:
    _, k, v = [x.width // node.heads for x in inputs[:3]]
    first = zeros(node.heads, k, v)
    return scan(gated_delta_step, tuple(inputs), first, node.heads, return_state=False)


@cell
def gated_delta_step(x: Any, state: Any, heads: int) -> Any:
    """A token of `F.gated_delta_rule`: q, k, v, log_a and perhaps b, with a matrix a head."""
    log_a, *b = x[3:]
    q, k, v = [F.reshape(part, (heads, part.width // heads)) for part in x[:3]]
    state = F.reshape(F.exp(log_a), (heads, 1, 1)) * state
    if b:
        v = F.reshape(b[0], (heads, 1)) * (v - F.vecmat(k, state))
    state = state + F.outer(k, v)
    return F.reshape(F.vecmat(q, state), (-1,)), state


def _is_of_each_feature(node: Convolution) -> bool:
    return node.groups == node.width == node.inputs[0].width


def _convolution(node: Convolution, x: Node) -> Node:
    step = node.dilation[1]
    params = {"weight": node.weight, "bias": node.bias, "step": step}
    before = step * (node.kernel_size()[1] - 1)
    if not before:
        return _windowed(x, [x], params)
    return scan(convolution_step, x, (x.width,) * before, params, return_state=False)


@cell
def convolution_step(x: Any, before: Any, params: Any) -> Any:
    """A token of `F.conv1d(…, padding="causal", groups=features)`, with those before it."""
    return _windowed(x, [*before, x][:: params["step"]], params), (*before[1:], x)


def _windowed(x: Node, window: Sequence[Node], params: Any) -> Node:
    """Σ_j weight[:, 0, j] ⊙ window_j + bias."""
    weight = F.reshape(F.parameter(x.graph, params["weight"]), (x.width, len(window)))
    weight = F.transpose(weight)
    y = weight[0] * window[0]
    for number, row in enumerate(window[1:], 1):
        y = y + weight[number] * row
    return y if params["bias"] is None else y + F.parameter(x.graph, params["bias"])
