"""One row for every node type: how to build it, on what, and what PyTorch calls it.

Adding a node type is adding a row; `tests/nodes/test_contract.py` says what a row must satisfy, and
fails for a node type that has none.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.nodes.inner_product import seed
from dynbatch.nodes.shape.scatter import scattered
from dynbatch.nodes.transposed_linear import TransposedLinearMap
from dynbatch.testing.probe import probe, variable
from tests.node_arguments import (
    Generator,
    at_least,
    chances,
    choices,
    emissions_and_segments,
    emissions_and_tags,
    frames_and_labels,
    gated_rows,
    grouped_memory,
    ids,
    image,
    larger_image,
    matrix,
    matrix_and_column,
    matrix_and_ids,
    matrix_and_labels,
    matrix_and_rows,
    matrix_and_segments,
    matrix_and_vector,
    memory_and_bias,
    memory_and_features,
    pair,
    pair_of_positives,
    positive,
    product,
    products_by_head,
    query_and_memory,
    scalars,
    some_memory,
    two_sentences,
    two_with_words,
    vector,
    vector_and_ids,
)

# Of every mini-batch; the arguments of a row are drawn for each of these lengths.
LENGTHS = (3, 0, 1, 11, 2)


class Case(NamedTuple):
    """A node type under test.

    Args:
        name:       of the row.
        build:      (graph, *arguments, *parameters) -> a node or several. Floating-point arrays
                    among the arguments arrive as nodes.
        arguments:  (generator, length) -> the arguments of one sentence.
        parameters: shapes of the parameters.
        torch:      (torch, *tensors, *parameters) -> the same by PyTorch, where it has it.
        batches:    for each node type that must batch over all lengths: in how many batches.
    """

    name: str
    build: Callable[..., Any]
    arguments: Callable[[Generator, int], tuple[Any, ...]]
    parameters: Sequence[tuple[int, ...]] = ()
    torch: Callable[..., Any] | None = None
    batches: Mapping[str, int] = MappingProxyType({})


def matrix_and_vectors(graph, q, k, w):
    """Products of a matrix of each head, a row w_i times the sum of q_i, with vectors."""
    a, b = F.sum(q, dim=1), F.sum(k, dim=1)
    matrix = F.reshape(a, (*a.shape, 1)) * w
    row = F.expand(w[0], (a.rows, 3))
    return [F.outer(a, b), F.matvec(matrix, row), F.vecmat(b, matrix)]


# Formulas that PyTorch has otherwise -------------------------------------------------------------


def mean_by_segment(torch, x, lengths):
    """Means of segments, of which an empty one has 0 where PyTorch's function has NaN."""
    return torch.stack([each.sum(0) / max(1, len(each)) for each in x.split(lengths.tolist())])


# Cells -------------------------------------------------------------------------------------------


@db.cell
def elman(x, h, p):
    h = F.tanh(F.linear(x, p.input, p.bias) + F.linear(h, p.state))
    return h, h


@db.cell
def gated(x, state, p):
    """Two parts of state, outputs that are no state, operators before and after the loop."""
    h, c = state
    gate = F.sigmoid(F.linear(F.concat([x, h]), p.gate))
    c = gate * c + (1 - gate) * F.tanh(x)
    return F.softplus(c * 2.0), (F.tanh(c), c)


@db.cell
def attending(x, h, p, memory):
    h = F.tanh(F.linear(x, p.input) + F.attention(h, memory))
    return h, h


@cache
def named(**parameters: db.Parameter) -> SimpleNamespace:
    """The parameters under their names: one namespace for all sentences, as a model is one."""
    return SimpleNamespace(**parameters)


@db.cell
def dropping(x, h, p):
    """One mask before the loop, one inside."""
    h = F.dropout(x, 0.4) + F.dropout(h, 0.3)
    return h, h


def scan_elman(graph, x, weight_input, weight_state, bias):
    params = named(input=weight_input, state=weight_state, bias=bias)
    ys, last = db.scan(elman, x, init=3, params=params)
    return [ys, last]


def scan_backwards(graph, x, h, weight_input, weight_state, bias):
    params = named(input=weight_input, state=weight_state, bias=bias)
    ys, last = db.scan(elman, x, init=h, params=params, reverse=True)
    return [ys, last]


def scan_gated(graph, x, gate):
    ys, (h, c) = db.scan(gated, x, init=(4, 4), params=named(gate=gate))
    return [ys, h, c]


def scan_attending(graph, x, memory, weight):
    params = named(input=weight)
    ys, last = db.scan(attending, x, init=4, params=params, memory=memory)
    return [ys, last]


def scan_dropping(graph, x):
    ys, last = db.scan(dropping, x, init=4)
    return [F.dropout(ys, 0.2), last]


def calls_elman(graph, x, weight_input, weight_state, bias):
    """One call more than there are rows, since a sentence may have none."""
    params = named(input=weight_input, state=weight_state, bias=bias)
    rows = [F.constant(graph, 0.5, (x.width,)), *[x[t] for t in range(x.rows)]]
    states, h = [], 3
    for row in rows:
        _, h = elman(row, h, params)
        states.append(h)
    return [db.stack(states), F.tanh(h)]


def torch_rotary(torch, x):
    """Two heads of one pair each, whose frequency is 1."""
    angles = torch.arange(len(x), dtype=x.dtype)[:, None]
    turns = torch.complex(torch.cos(angles), torch.sin(angles))
    heads = torch.view_as_complex(x.reshape(-1, 2, 2)) * turns
    return torch.view_as_real(heads).reshape(x.shape)


def torch_sparsemax(torch, x):
    """Algorithm 1 of Martins & Astudillo 2016: by sorting."""
    if not x.numel():
        return x
    largest, k = x.sort(-1, descending=True).values, torch.arange(1, x.shape[-1] + 1)
    sums = largest.cumsum(-1) - 1
    count = (k * largest > sums).sum(-1, keepdim=True)
    return (x - sums.gather(-1, count - 1) / count).clamp(min=0)


def torch_calls_elman(torch, x, *parameters):
    ys, last = torch_elman(torch, torch.cat([torch.full((1, x.shape[1]), 0.5), x]), *parameters)
    return [ys, torch.tanh(last)]


def torch_elman(torch, x, weight_input, weight_state, bias):
    h, outputs = torch.zeros(3), [torch.zeros(0, 3)]
    for row in x:
        h = torch.tanh(weight_input @ row + bias + weight_state @ h)
        outputs.append(h[None])
    return [torch.cat(outputs), h]


def first(x):
    """An image (H, W, C) as PyTorch's (1, C, H, W)."""
    return x.permute(2, 0, 1)[None]


def last(x):
    return x[0].permute(1, 2, 0)


@db.block
def two_results(x, y, weight):
    return F.tanh(F.linear(x, weight)), x * y


def block_of_two_results(graph, x, y, weight):
    return list(two_results(x, y, weight))


def torch_two_results(torch, x, y, weight):
    return [torch.tanh(x @ weight.T), x * y]


def scores(graph, q, k):
    """(T_q, T_k), a width that is a length."""
    return q @ F.transpose(k)


def torch_crf(torch, x, tags, transitions, start, end):
    """The forward algorithm in log space, one token after the other."""
    if not len(x):
        return torch.zeros(())
    a = start + x[0]
    for row in x[1:]:
        a = (a[:, None] + transitions).logsumexp(0) + row
    score = start[tags[0]] + x[torch.arange(len(x)), tags].sum() + end[tags[-1]]
    return (a + end).logsumexp(0) - score - transitions[tags[:-1], tags[1:]].sum()


def torch_ctc(torch, x, ids):
    if not len(x):
        return torch.zeros(())
    sizes = torch.tensor([len(x)]), torch.tensor([len(ids)])
    x = torch.nn.functional.log_softmax(x, 1)[:, None]
    return torch.nn.functional.ctc_loss(x, ids[None], *sizes, reduction="none")[0]


def torch_semi_crf(torch, x, segments, transitions, start, end):
    """The forward algorithm over segments of 1 and 2 tokens with 2 labels."""
    if not len(x):
        return torch.zeros(())
    entries, score = [start], 0
    for t, row in enumerate(x):
        a = torch.stack([entries[t - k] + row[2 * k : 2 * k + 2] for k in range(min(2, t + 1))])
        a = a.logsumexp(0)
        entries.append((a[:, None] + transitions).logsumexp(0))
    t, labels = -1, [label for _, label in segments]
    for length, label in segments:
        t += length
        score = score + x[t, 2 * (length - 1) + label]
    score = score + start[labels[0]] + end[labels[-1]] + transitions[labels[:-1], labels[1:]].sum()
    return (a + end).logsumexp(0) - score


def torch_gated_delta_rule(torch, q, k, v, log_a, b=None):
    """Token by token, with two heads."""
    q, k, v = [x.reshape(len(x), 2, x.shape[1] // 2) for x in (q, k, v)]
    state, outputs = torch.zeros(2, k.shape[2], v.shape[2], dtype=q.dtype), [v[:0].reshape(0, 4)]
    for t in range(len(q)):
        state = log_a[t].exp()[:, None, None] * state
        w = v[t]
        if b is not None:
            w = b[t][:, None] * (w - (k[t][:, None] @ state)[:, 0])
        state = state + k[t][:, :, None] * w[:, None]
        outputs.append((q[t][:, None] @ state).reshape(1, 4))
    return torch.cat(outputs)


# Rows --------------------------------------------------------------------------------------------


COMPARISONS = {"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
               "equal": "eq", "not_equal": "ne"}  # fmt: skip


def compare_all(a, b):
    return [getattr(F, name)(a, b) for name in COMPARISONS]


def torch_compare_all(torch, a, b):
    x = a if isinstance(a, torch.Tensor) else b
    a, b = (torch.as_tensor(value, dtype=x.dtype) for value in (a, b))
    return [getattr(torch, name)(a, b).to(x.dtype) for name in COMPARISONS.values()]


def elementwise(name: str, build: Any, twin: Any, arguments: Any = matrix) -> Case:
    """A row for a function of one matrix, which is one batch whatever the lengths."""
    return Case(name, lambda graph, x: build(x), arguments, (), twin)


# Gated units, and PyTorch's function of the gate.
GATED = {
    "swiglu": (F.swiglu, lambda functional, x: functional.silu(x)),
    "geglu": (F.geglu, lambda functional, x: functional.gelu(x)),
    "geglu of tanh": (
        partial(F.geglu, approximate="tanh"),
        lambda functional, x: functional.gelu(x, approximate="tanh"),
    ),
    "reglu": (F.reglu, lambda functional, x: functional.relu(x)),
}

CASES = [
    # Sources
    Case("input", lambda graph, x: x, matrix, (), lambda torch, x: x, {"Input": 1}),
    Case("input, scalar", lambda graph, *xs: list(xs), scalars),
    Case("variable", lambda graph, x, labels: x * variable(graph, labels, 0), matrix_and_labels),
    Case("constant", lambda graph, x: F.constant(graph, 2.0, x.shape) * x, matrix),
    Case("parameter", lambda graph, x, p: F.parameter(graph, p) * x, matrix, [(4,)],
         lambda torch, x, p: p * x, {"ParameterNode": 1}),
    Case("parameter, matrix", lambda graph, x, p: x @ F.parameter(graph, p), matrix, [(4, 3)],
         lambda torch, x, p: x @ p, {"ParameterNode": 1, "MatMul": 1}),
    Case("constant of an array", lambda graph, x: F.constant(graph, [1.0, 2.0, 3.0, 4.0]) * x,
         matrix, (), lambda torch, x: torch.tensor([1.0, 2.0, 3.0, 4.0]) * x),
    Case("lookup", lambda graph, ids, table: F.lookup(graph, table, ids), ids, [(7, 3)],
         lambda torch, ids, table: table[ids], {"Lookup": 1}),
    # Linear maps
    Case("linear", lambda graph, x, w, b: F.linear(x, w, b), matrix, [(3, 4), (3,)],
         lambda torch, x, w, b: torch.nn.functional.linear(x, w, b), {"LinearMap": 1}),
    Case("linear, vector without bias", lambda graph, x, w: F.linear(x, w), vector, [(3, 4)],
         lambda torch, x, w: torch.nn.functional.linear(x, w), {"LinearMap": 1}),
    Case("linear by the transpose", lambda graph, x, w: TransposedLinearMap(x, weight=w), matrix,
         [(4, 3)], lambda torch, x, w: x @ w, {"TransposedLinearMap": 1}),
    Case("affine", lambda graph, x, y, b, w, u: F.affine(b, (w, x), (u, y)), pair,
         [(3,), (3, 4), (3, 4)], lambda torch, x, y, b, w, u: b + x @ w.T + y @ u.T),
    Case("matmul", lambda graph, a, b: a @ b, product, (), lambda torch, a, b: a @ b,
         {"MatMul": 1}),
    # More than two dimensions
    Case("matmul by head", lambda graph, q, k, w: [q @ F.transpose(k, -2, -1), q @ w],
         products_by_head, (), lambda torch, q, k, w: [q @ k.mT, q @ w], {"MatMul": 2}),
    Case("matmul of what is repeated by head",
         lambda graph, q, k, w: [w.T @ q.mT, w.T[0] @ k.mT, F.unsqueeze(q.mT, 1) @ F.unsqueeze(
             q, 0)],
         products_by_head, (),
         lambda torch, q, k, w: [w.T @ q.mT, w.T[0] @ k.mT, q.mT[:, None] @ q[None]]),
    Case("outer, matvec and vecmat, by head", matrix_and_vectors, products_by_head, (),
         lambda torch, q, k, w: [torch.einsum("hi,hj->hij", q.sum(1), k.sum(1)),
                                 torch.einsum("hij,hj->hi", q.sum(1)[:, :, None] * w, w[0].expand(
                                     len(q), 3)),
                                 torch.einsum("hi,hij->hj", k.sum(1), q.sum(1)[:, :, None] * w)]),
    Case("attention by hand, by head",
         lambda graph, q, k, w: F.softmax(q @ F.transpose(k, 1, 2)) @ k, products_by_head, (),
         lambda torch, q, k, w: (q @ k.mT).softmax(-1) @ k, {"MatMul": 2, "Softmax": 1}),
    Case("permute", lambda graph, x: F.permute(F.reshape(x, (x.rows, 2, 2)), (1, 0, 2)), matrix, (),
         lambda torch, x: x.reshape(-1, 2, 2).permute(1, 0, 2), {"Permute": 1}),
    Case("permute to the end", lambda graph, x: F.permute(F.reshape(x, (x.rows, 2, 2)), (1, 2, 0)),
         matrix, (), lambda torch, x: x.reshape(-1, 2, 2).permute(1, 2, 0), {"Permute": 1}),
    Case("sum of a dimension inside",
         lambda graph, x: F.sum(F.reshape(x, (x.rows, 2, 2)), dim=1), matrix, (),
         lambda torch, x: x.reshape(-1, 2, 2).sum(1), {"Permute": 1, "Sum": 1}),
    # Widths that are lengths
    Case("scores", scores, two_sentences, (), lambda torch, q, k: q @ k.T,
         {"Transpose": 1, "MatMul": 1}),
    Case("own attention", lambda graph, q, k: F.softmax(scores(graph, q, k)) @ k, two_sentences, (),
         lambda torch, q, k: (q @ k.T).softmax(-1) @ k, {"MatMul": 2, "Softmax": 1}),
    Case("softmax of scores over queries",
         lambda graph, q, k: F.transpose(F.softmax(scores(graph, q, k), dim=0)) @ q, two_sentences,
         (), lambda torch, q, k: (q @ k.T).softmax(0).T @ q, {"Transpose": 2, "Softmax": 1}),
    *[Case(f"log_softmax of scores over dim {dim}",
           lambda graph, q, k, dim=dim: F.log_softmax(scores(graph, q, k), dim=dim), two_sentences,
           (), lambda torch, q, k, dim=dim: (q @ k.T).log_softmax(dim), {"LogSoftmax": 1})
      for dim in (0, 1)],
    *[Case(f"{name} of scores over dim {dim}",
           lambda graph, q, k, name=name, dim=dim: getattr(F, name)(scores(graph, q, k), dim=dim),
           two_with_words, (), lambda torch, q, k, twin=twin, dim=dim: twin(torch, q @ k.T, dim),
           {kind: 1})
      for dim in (0, 1)
      for name, kind, twin in (
          ("sum", "Sum", lambda torch, x, dim: x.sum(dim, keepdim=dim == 1)),
          ("mean", "Mean", lambda torch, x, dim: x.mean(dim, keepdim=dim == 1)),
          ("max", "Max", lambda torch, x, dim: x.max(dim, keepdim=dim == 1).values),
          ("min", "Min", lambda torch, x, dim: x.min(dim, keepdim=dim == 1).values),
          ("logsumexp", "LogSumExp", lambda torch, x, dim: x.logsumexp(dim, keepdim=dim == 1)),
          ("argmax", "ArgMax", lambda torch, x, dim: x.argmax(dim, keepdim=dim == 1).to(x.dtype)),
      )],
    *[Case(f"{name} of scores over everything",
           lambda graph, q, k, name=name: getattr(F, name)(scores(graph, q, k)),
           two_with_words, (), lambda torch, q, k, twin=twin: twin(q @ k.T), {kind: 1})
      for name, kind, twin in (
          ("sum", "Sum", lambda x: x.sum()), ("mean", "Mean", lambda x: x.mean()),
          ("max", "Max", lambda x: x.max()),
          ("logsumexp", "LogSumExp", lambda x: x.logsumexp((0, 1))),
      )],
    Case("rows of scores, some of them twice",
         lambda graph, q, k: scores(graph, q, k)[[0, q.rows - 1, 0]] @ k, two_sentences,
         (), lambda torch, q, k: (q @ k.T)[[0, len(q) - 1, 0]] @ k, {"GatherRows": 1}),
    *[Case(f"cumsum of scores over dim {dim}",
           lambda graph, q, k, dim=dim: F.cumsum(scores(graph, q, k), dim=dim), two_sentences,
           (), lambda torch, q, k, dim=dim: (q @ k.T).cumsum(dim), {"CumSum": 1})
      for dim in (0, 1)],
    *[Case(f"{name} of scores over {over}",
           lambda graph, q, k, name=name, dim=dim: getattr(F, name)(scores(graph, q, k), dim,
                                                                    correction=0.5),
           two_with_words, (),
           lambda torch, q, k, name=name, dim=dim: getattr(q @ k.T, name)(
               dim, correction=0.5, keepdim=dim == 1), {kind: 1})
      for over, dim in (("dim 0", 0), ("dim 1", 1), ("everything", None))
      for name, kind in (("var", "Variance"), ("std", "StandardDeviation"))],
    *[Case(f"{name} of scores of no keys",
           lambda graph, q, k, name=name: [getattr(F, name)(scores(graph, q, k), dim=dim)
                                           for dim in (0, 1, None)], two_sentences)
      for name in ("sum", "mean")],
    Case("a row, a column and a number repeated over scores",
         lambda graph, q, k: scores(graph, q, k) * F.sum(scores(graph, q, k), dim=0)
         - F.sum(q, dim=-1) / (F.exp(F.mean(k)) + scores(graph, q, k) ** 2),
         two_sentences, (),
         lambda torch, q, k: (q @ k.T) * (q @ k.T).sum(0) - q.sum(-1, keepdim=True)
         / ((k.sum() / max(1, k.numel())).exp() + (q @ k.T) ** 2), {"ExpandToLength": 2}),
    Case("scores by rows and columns",
         lambda graph, q, k: F.softmax(F.concat([scores(graph, q, k), scores(graph, q, q)]))
         @ F.concat([k, q], dim=0), two_sentences, (),
         lambda torch, q, k: torch.cat([q @ k.T, q @ q.T], -1).softmax(-1) @ torch.cat([k, q]),
         {"Concat": 2, "Softmax": 1}),
    Case("a vector of scores",
         lambda graph, q, k: F.softmax(F.squeeze(F.sum(k, dim=-1), dim=-1)) @ k, two_sentences, (),
         lambda torch, q, k: k.sum(-1).softmax(-1) @ k, {"Softmax": 1, "MatMul": 1}),
    Case("matmul, vector", lambda graph, a, b: [a @ b, b @ F.transpose(a), F.dot(b, b)],
         lambda generator, length: matrix_and_vector(generator, max(length, 1)), (),
         lambda torch, a, b: [a @ b, b @ a.T, b.dot(b)], {"Multiply": 1, "Sum": 1}),
    Case("attention by a vector", lambda graph, a, b: F.softmax(a @ b) @ a, matrix_and_vector, (),
         lambda torch, a, b: (a @ b).softmax(-1) @ a, {"MatMul": 2, "Softmax": 1}),
    Case("matmul of any sentence and a vector", lambda graph, a, b: a @ b, matrix_and_vector, (),
         lambda torch, a, b: a @ b, {"MatMul": 1, "Reshape": 2}),
    # Elementwise
    elementwise("tanh", F.tanh, lambda torch, x: torch.tanh(x)),
    Case("detach", lambda graph, x: x * F.detach(F.clip(x * 1e9, -1.0, 1.0)), matrix, (),
         lambda torch, x: x * (x * 1e9).clip(-1, 1).detach(), {"Detach": 1}),
    elementwise("tanh, vector", F.tanh, lambda torch, x: torch.tanh(x), vector),
    elementwise("sigmoid", F.sigmoid, lambda torch, x: torch.sigmoid(x)),
    elementwise("relu", F.relu, lambda torch, x: torch.relu(x)),
    elementwise("negative", lambda x: -x, lambda torch, x: -x),
    elementwise("exp", F.exp, lambda torch, x: torch.exp(x)),
    elementwise("log", F.log, lambda torch, x: torch.log(x), positive),
    elementwise("sqrt", F.sqrt, lambda torch, x: torch.sqrt(x), positive),
    elementwise("abs", F.abs, lambda torch, x: torch.abs(x)),
    elementwise("power", lambda x: x**3, lambda torch, x: x**3),
    elementwise("power, fraction", lambda x: x**-0.5, lambda torch, x: x**-0.5, positive),
    elementwise("power, zero", lambda x: x**0, lambda torch, x: x**0),
    elementwise("clip", lambda x: F.clip(x, -0.5, 0.8), lambda torch, x: torch.clip(x, -0.5, 0.8)),
    elementwise("leaky_relu", lambda x: F.leaky_relu(x, 0.1),
                lambda torch, x: torch.nn.functional.leaky_relu(x, 0.1)),
    elementwise("elu", lambda x: F.elu(x, 0.7),
                lambda torch, x: torch.nn.functional.elu(x, 0.7)),
    elementwise("gelu", F.gelu, lambda torch, x: torch.nn.functional.gelu(x)),
    elementwise("gelu by tanh", lambda x: F.gelu(x, approximate="tanh"),
                lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")),
    elementwise("silu", F.silu, lambda torch, x: torch.nn.functional.silu(x)),
    elementwise("softplus", F.softplus, lambda torch, x: torch.nn.functional.softplus(x)),
    elementwise("logsigmoid", F.logsigmoid,
                lambda torch, x: torch.nn.functional.logsigmoid(x)),
    elementwise("celu", lambda x: F.celu(x, 0.5),
                lambda torch, x: torch.nn.functional.celu(x, 0.5)),
    elementwise("selu", F.selu, lambda torch, x: torch.nn.functional.selu(x)),
    elementwise("hardtanh", lambda x: F.hardtanh(x, -0.5, 0.8),
                lambda torch, x: torch.nn.functional.hardtanh(x, -0.5, 0.8)),
    elementwise("softsign", F.softsign, lambda torch, x: torch.nn.functional.softsign(x)),
    elementwise("mish", F.mish, lambda torch, x: torch.nn.functional.mish(x)),
    elementwise("trigonometric functions",
                lambda x: [f(x) for f in (F.sin, F.cos, F.tan, F.atan, F.sinh, F.cosh, F.asinh)],
                lambda torch, x: [f(x) for f in (torch.sin, torch.cos, torch.tan, torch.atan,
                                                 torch.sinh, torch.cosh, torch.asinh)]),
    elementwise("inverses of limited domain",
                lambda x: [F.asin(F.tanh(x)), F.acos(F.tanh(x)), F.atanh(F.tanh(x) * 0.9),
                           F.acosh(x * x + 1.5)],
                lambda torch, x: [x.tanh().asin(), x.tanh().acos(), (x.tanh() * 0.9).atanh(),
                                  (x * x + 1.5).acosh()]),
    elementwise("erf", F.erf, lambda torch, x: torch.erf(x)),
    *[elementwise(f"{name}, straight through",  # in steps smaller than those of differences
                  lambda x, name=name: getattr(F, name)(x * 1e12) * 1e-12,
                  lambda torch, x, name=name: (getattr(x * 1e12, name)() * 1e-12 - x).detach() + x)
      for name in ("round", "floor", "ceil")],
    elementwise("whole numbers, without a gradient",
                lambda x: [f(F.detach(x * 3)) * x for f in (F.round, F.floor, F.ceil)],
                lambda torch, x: [f(x * 3).detach() * x
                                  for f in (torch.round, torch.floor, torch.ceil)]),
    elementwise("sign", F.sign, lambda torch, x: torch.sign(x)),
    elementwise("clamp", lambda x: F.clamp(x, max=0.5), lambda torch, x: torch.clamp(x, max=0.5)),
    elementwise("scale", lambda x: x * (x.rows + 0.5), lambda torch, x: x * (len(x) + 0.5)),
    elementwise("shift", lambda x: x - (x.rows + 0.5), lambda torch, x: x - (len(x) + 0.5)),
    elementwise("number minus node", lambda x: 2 - x, lambda torch, x: 2 - x),
    elementwise("over a number", lambda x: x / (x.rows + 0.5), lambda torch, x: x / (len(x) + 0.5)),
    elementwise("number over node", lambda x: 2 / x, lambda torch, x: 2 / x, positive),
    Case("add", lambda graph, a, b: a + b, pair, (), lambda torch, a, b: a + b, {"Add": 1}),
    Case("subtract", lambda graph, a, b: a - b, pair, (), lambda torch, a, b: a - b),
    Case("multiply", lambda graph, a, b: a * b, pair, (), lambda torch, a, b: a * b),
    Case("divide", lambda graph, a, b: a / b, pair_of_positives, (), lambda torch, a, b: a / b),
    Case("power of two nodes", lambda graph, a, b: b**a, pair_of_positives, (),
         lambda torch, a, b: b**a, {"RaiseTo": 1}),
    elementwise("power of a number", lambda x: (x.rows + 0.5) ** x,
                lambda torch, x: (len(x) + 0.5) ** x),
    # Selection
    Case("comparisons", lambda graph, a, labels: compare_all(a, a * variable(graph, labels, 0)),
         matrix_and_labels, (), lambda torch, a, labels: torch_compare_all(torch, a, a * labels)),
    Case("comparisons with a number",
         lambda graph, a, labels: compare_all(a * variable(graph, labels, 0), 0.0),
         matrix_and_labels, (), lambda torch, a, labels: torch_compare_all(torch, a * labels, 0.0)),
    Case("comparisons of a number", lambda graph, x: compare_all(0.1 * x.rows, x), matrix, (),
         lambda torch, x: torch_compare_all(torch, 0.1 * len(x), x)),
    Case("maximum and minimum", lambda graph, a, b: [F.maximum(a, b), F.minimum(a, b)], pair, (),
         lambda torch, a, b: [torch.maximum(a, b), torch.minimum(a, b)],
         {"Maximum": 1, "Minimum": 1}),
    Case("maximum of equal values", lambda graph, x: [F.maximum(x, x * 1), F.minimum(x, x * 1)],
         matrix, (), lambda torch, x: [torch.maximum(x, x * 1), torch.minimum(x, x * 1)]),
    Case("maximum and minimum with a number",
         lambda graph, x: [F.maximum(x, 0.1 * x.rows), F.minimum(-0.2, x)], matrix, (),
         lambda torch, x: [x.clamp(min=0.1 * len(x)), x.clamp(max=-0.2)],
         {"MaximumWithNumber": 1, "MinimumWithNumber": 1}),
    Case("where", lambda graph, a, b: F.where(F.greater(a, b), a * b, b), pair, (),
         lambda torch, a, b: torch.where(a > b, a * b, b), {"Where": 1}),
    Case("where, of an array and numbers",
         lambda graph, a, labels: [F.where(labels, a, 2.0), F.where(labels == 0, a.rows, a)],
         matrix_and_labels, (),
         lambda torch, a, labels: [torch.where(labels > 0, a, 2.0),
                                   torch.where(labels == 0, float(len(a)), a)], {"Where": 1}),
    Case("where, repeated", lambda graph, a, b: F.where(F.less(b, 0.0), b, a), matrix_and_vector,
         (), lambda torch, a, b: torch.where(b < 0, b, a), {"Where": 1}),
    Case("x times x", lambda graph, x: x * x, matrix, (), lambda torch, x: x * x),
    Case("x plus x", lambda graph, x: x + x, matrix, (), lambda torch, x: x + x),
    Case("x over x", lambda graph, x: x / x, positive, (), lambda torch, x: x / x),
    Case("expand, vector", lambda graph, a, b: a * b, matrix_and_vector, (),
         lambda torch, a, b: a * b, {"Expand": 1}),
    Case("expand, column", lambda graph, a, b: a * b, matrix_and_column, (),
         lambda torch, a, b: a * b, {"Expand": 1}),
    Case("expand, columns and numbers in one batch",
         lambda graph, a, b: a * (b if a.rows % 2 else F.sum(b)), matrix_and_column, (),
         lambda torch, a, b: a * (b if len(a) % 2 else b.sum()), {"Expand": 1}),
    Case("column with vector", lambda graph, a, b: [a * b[0], b[0] - a],
         lambda generator, length: matrix_and_column(generator, max(length, 1))[::-1], (),
         lambda torch, a, b: [a * b[0], b[0] - a]),
    Case("column with vector, any length", lambda graph, x, w: F.sum(x, dim=-1) / F.exp(w),
         matrix_and_vector, (), lambda torch, x, w: x.sum(-1, keepdim=True) / w.exp(),
         {"Expand": 2}),
    Case("row with column and with matrix",
         lambda graph, x, w: F.maximum(F.unsqueeze(w, 0) * F.sum(x, dim=-1), x - F.unsqueeze(w, 0)),
         matrix_and_vector, (),
         lambda torch, x, w: torch.maximum(w[None] * x.sum(-1, keepdim=True), x - w[None])),
    Case("differences of all pairs",
         lambda graph, x: F.sum(x, dim=-1) - F.squeeze(F.mean(x, dim=-1), dim=-1), matrix, (),
         lambda torch, x: x.sum(-1, keepdim=True) - x.mean(-1), {"ExpandToLength": 2}),
    # Structure
    Case("concat", lambda graph, a, b: F.concat([a, b, a]), pair, (),
         lambda torch, a, b: torch.cat([a, b, a], -1), {"Concat": 1}),
    Case("concat, tokens", lambda graph, a, b: F.concat([a, b], dim=0), pair, (),
         lambda torch, a, b: torch.cat([a, b], 0), {"Concat": 1}),
    Case("concat, any number", lambda graph, a, b: F.concat([a] * (1 + a.rows) + [b]), pair, (),
         lambda torch, a, b: torch.cat([a] * (1 + len(a)) + [b], -1), {"Concat": 1}),
    Case("concat of scalars",
         lambda graph, *xs: [F.concat(xs), F.concat([*xs, F.stack(xs)], dim=0)], scalars, (),
         lambda torch, *xs: [torch.stack(xs), torch.stack(xs).repeat(2)], {"Concat": 2}),
    Case("stack of columns", lambda graph, a, b: F.stack([a[0], b[0], a[0]], dim=-1),
         lambda generator, length: pair(generator, max(length, 1)), (),
         lambda torch, a, b: torch.stack([a[0], b[0], a[0]], dim=-1)),
    Case("stack", lambda graph, *xs: F.stack(xs), scalars, (),
         lambda torch, *xs: torch.stack(xs)),
    Case("split", lambda graph, x: F.split(x, [1, 3]), matrix, (),
         lambda torch, x: x.split([1, 3], -1), {"Slice": 1}),
    Case("slice of tokens", lambda graph, x: x[1:3], matrix, (), lambda torch, x: x[1:3]),
    Case("slice of features", lambda graph, x: x[:, 1:3], matrix, (), lambda torch, x: x[:, 1:3]),
    Case("slice both ways", lambda graph, x: x[1:, :-1], matrix, (), lambda torch, x: x[1:, :-1]),
    Case("one feature", lambda graph, x: x[:, 2], matrix, (), lambda torch, x: x[:, 2:3]),
    Case("chunk of tokens", lambda graph, x: F.chunk(x, 2, dim=0), matrix, (),
         lambda torch, x: x.chunk(2, 0)),
    Case("slice backwards", lambda graph, x: x[::-2], matrix, (),
         lambda torch, x: x.flip(0)[::2]),
    Case("pick", lambda graph, x: x[-1], at_least(1), (), lambda torch, x: x[-1], {"Slice": 1}),
    Case("gather_rows", lambda graph, x, rows: F.gather_rows(x, rows), matrix_and_rows, (),
         lambda torch, x, rows: x[rows], {"GatherRows": 1}),
    Case("segment_sum", lambda graph, x, lengths: F.segment_sum(x, lengths), matrix_and_segments,
         (), lambda torch, x, lengths: torch.stack([each.sum(0) for each in x.split([*lengths])]),
         {"SegmentSum": 1}),
    Case("segment_mean", lambda graph, x, lengths: F.segment_mean(x, lengths), matrix_and_segments,
         (), mean_by_segment, {"SegmentMean": 1}),
    Case("rows added up by ids", lambda graph, x, rows: scattered(x[rows], rows, len(rows) + 9),
         matrix_and_rows, (), None, {"ScatterRows": 1}),
    Case("rows of scores added up",
         lambda graph, q, k: scattered(scores(graph, q, k), np.zeros(q.rows, int), 2) @ k,
         two_sentences, (), None, {"ScatterRows": 1}),
    Case("repeat", lambda graph, x: F.repeat(x, 3), matrix, (),
         lambda torch, x: x.repeat(3, 1)),
    Case("transpose", lambda graph, x: F.transpose(x), at_least(1), (), lambda torch, x: x.T),
    Case("reverse", lambda graph, x: F.reverse(x), matrix, (), lambda torch, x: x.flip(0),
         {"Reverse": 1}),
    Case("reshape", lambda graph, x: F.reshape(x, (-1, 2)), matrix, (),
         lambda torch, x: x.reshape(-1, 2), {"Reshape": 1}),
    Case("squeeze and unsqueeze",
         lambda graph, x: [F.squeeze(x[:1], dim=0), F.unsqueeze(x[0], -1)], at_least(1), (),
         lambda torch, x: [x[:1].squeeze(0), x[0].unsqueeze(-1)]),
    # Reductions
    *[Case(f"{name} over {over}", lambda graph, x, name=name, dim=dim: getattr(F, name)(x, dim=dim),
           at_least(1), (), twin)
      for over, dim in (("tokens", 0), ("features", -1))
      for name, twin in (
          ("sum", lambda torch, x, dim=dim: x.sum(dim, keepdim=dim == -1)),
          ("mean", lambda torch, x, dim=dim: x.mean(dim, keepdim=dim == -1)),
          ("max", lambda torch, x, dim=dim: x.max(dim, keepdim=dim == -1).values),
          ("min", lambda torch, x, dim=dim: x.min(dim, keepdim=dim == -1).values),
          ("logsumexp", lambda torch, x, dim=dim: x.logsumexp(dim, keepdim=dim == -1)),
          ("argmax", lambda torch, x, dim=dim: x.argmax(dim, keepdim=dim == -1).to(x.dtype)),
      )],
    *[Case(f"{name} of no tokens", lambda graph, x, name=name: getattr(F, name)(x, dim=0), matrix)
      for name in ("sum", "mean")],
    Case("mean of scalars", lambda graph, *xs: F.mean(xs), scalars, (),
         lambda torch, *xs: torch.stack(xs).mean(), {"Total": 1}),
    *[Case(f"{name} over everything", lambda graph, x, name=name: getattr(F, name)(x), at_least(1),
           (), twin)
      for name, twin in (
          ("sum", lambda torch, x: x.sum()),
          ("mean", lambda torch, x: x.mean()),
          ("max", lambda torch, x: x.max()),
          ("min", lambda torch, x: x.min()),
          ("logsumexp", lambda torch, x: x.logsumexp((0, 1))),
          ("argmax", lambda torch, x: x.argmax().to(x.dtype)),
      )],
    *[Case(f"cumsum over {over}", lambda graph, x, dim=dim: F.cumsum(x, dim), matrix, (),
           lambda torch, x, dim=dim: x.cumsum(dim), {"CumSum": 1})
      for over, dim in (("tokens", 0), ("features", -1))],
    Case("cumsum of a vector", lambda graph, x: F.cumsum(x, 0), vector, (),
         lambda torch, x: x.cumsum(0), {"CumSum": 1}),
    *[Case(f"{name} over {over}", lambda graph, x, name=name, dim=dim: getattr(F, name)(x, dim),
           at_least(2), (),
           lambda torch, x, name=name, dim=dim: getattr(x, name)(dim, keepdim=dim == -1),
           {kind: 1})
      for over, dim in (("tokens", 0), ("features", -1))
      for name, kind in (("var", "Variance"), ("std", "StandardDeviation"))],
    *[Case(f"{name} over everything",
           lambda graph, x, name=name: getattr(F, name)(x, correction=0.5), at_least(1), (),
           lambda torch, x, name=name: getattr(x, name)(correction=0.5), {kind: 1})
      for name, kind in (("var", "Variance"), ("std", "StandardDeviation"))],
    Case("var of a vector", lambda graph, x: F.var(x), vector, (), lambda torch, x: x.var()),
    Case("var of no tokens", lambda graph, x: [F.var(x, dim=-1), F.std(x, dim=-1)], matrix),
    Case("sum of a vector", lambda graph, x: F.sum(x, dim=-1), vector, (),
         lambda torch, x: x.sum(), {"Sum": 1}),
    Case("max_pool", lambda graph, x: F.max_pool(x, 2, 1), at_least(2), (),
         lambda torch, x: torch.nn.functional.max_pool1d(x.T[None], 2, 1)[0].T, {"MaxPool": 1}),
    Case("mean_pool", lambda graph, x: F.mean_pool(x, 2, 1), at_least(2), (),
         lambda torch, x: torch.nn.functional.avg_pool1d(x.T[None], 2, 1)[0].T, {"MeanPool": 1}),
    Case("kmax_pool", lambda graph, x: F.kmax_pool(x, 2), at_least(2), (),
         lambda torch, x: x.gather(0, x.topk(2, 0).indices.sort(0).values), {"KMaxPool": 1}),
    *[Case(f"topk over {over}", lambda graph, x, dim=dim: F.topk(x, 2, dim), at_least(2), (),
           lambda torch, x, dim=dim: [part.to(x.dtype) for part in torch.topk(x, 2, dim)],
           {"TopK": 1, "TopKPlaces": 1})
      for over, dim in (("tokens", 0), ("features", -1))],
    Case("topk of a vector", lambda graph, x: F.topk(x, 4), vector, (),
         lambda torch, x: [part.to(x.dtype) for part in torch.topk(x, 4)],
         {"TopK": 1, "TopKPlaces": 1}),
    Case("topk of scores", lambda graph, q, k: F.topk(scores(graph, q, k), 1), two_with_words, (),
         lambda torch, q, k: [part.to(q.dtype) for part in torch.topk(q @ k.T, 1)],
         {"TopK": 1, "TopKPlaces": 1}),
    Case("pools of short sentences", lambda graph, x: [F.max_pool(x, 3, 2), F.mean_pool(x, 3, 2)],
         matrix, (), None, {"MaxPool": 1, "MeanPool": 1}),
    Case("windows", lambda graph, x: F.windows(x, 3, padding=1), matrix, (), None, {"Windows": 1}),
    Case("windows as a convolution",
         lambda graph, x, w: F.linear(F.windows(x, 3, padding=2), w), at_least(1), [(2, 12)],
         lambda torch, x, w: torch.conv1d(
             x.T[None], w.reshape(2, 3, 4).transpose(1, 2), padding=2)[0].T,
         {"LinearOfWindows": 1}),
    # Images
    Case("conv2d", lambda graph, x, w, b: F.conv2d(x, w, b, (1, 2), (2, 1), (2, 1)), image,
         [(3, 4, 2, 3), (3,)], lambda torch, x, w, b: last(torch.conv2d(
             first(x), w, b, (1, 2), (2, 1), (2, 1))), {"Convolution": 1}),
    Case("conv1d", lambda graph, x, w: F.conv1d(x, w, stride=2, padding=1), at_least(1),
         [(3, 4, 2)], lambda torch, x, w: torch.conv1d(x.T[None], w, None, 2, 1)[0].T,
         {"Convolution": 1}),
    Case("conv2d, groups", lambda graph, x, w, b: F.conv2d(x, w, b, 2, 1, groups=2), image,
         [(4, 2, 2, 3), (4,)], lambda torch, x, w, b: last(torch.conv2d(
             first(x), w, b, 2, 1, groups=2)), {"Convolution": 1}),
    Case("conv1d, depthwise", lambda graph, x, w: F.conv1d(x, w, padding=1, groups=4), at_least(1),
         [(8, 1, 3)], lambda torch, x, w: torch.conv1d(x.T[None], w, None, 1, 1, groups=4)[0].T,
         {"Convolution": 1}),
    Case("conv1d, causal", lambda graph, x, w, b: F.conv1d(x, w, b, padding="causal", groups=4),
         at_least(1), [(4, 1, 3), (4,)], lambda torch, x, w, b: torch.conv1d(
             x.T[None], w, b, 1, 2, groups=4)[0].T[: len(x)], {"Convolution": 1}),
    Case("conv2d, same size", lambda graph, x, w: F.conv2d(x, w, None, 1, "same", (2, 1)), image,
         [(3, 4, 2, 3)], lambda torch, x, w: last(torch.conv2d(
             first(x), w, None, 1, "same", (2, 1))),
         {"Convolution": 1}),
    Case("conv_transpose2d",
         lambda graph, x, w, b: F.conv_transpose2d(x, w, b, (1, 3), 0, (0, 1), 1, (2, 1)), image,
         [(4, 3, 2, 2), (3,)], lambda torch, x, w, b: last(torch.conv_transpose2d(
             first(x), w, b, (1, 3), 0, (0, 1), 1, (2, 1))), {"TransposedConvolution": 1}),
    Case("conv_transpose2d, groups",
         lambda graph, x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2), image,
         [(4, 1, 3, 3)], lambda torch, x, w: last(torch.conv_transpose2d(
             first(x), w, None, 2, 1, 1, 2)), {"TransposedConvolution": 1}),
    Case("max_pool2d", lambda graph, x: F.max_pool2d(x, (2, 3), (1, 2), (1, 1)), image, (),
         lambda torch, x: last(torch.nn.functional.max_pool2d(first(x), (2, 3), (1, 2), (1, 1))),
         {"MaxPooling2d": 1}),
    Case("max_pool2d, dilated", lambda graph, x: F.max_pool2d(x, (3, 2), 1, 1, (1, 2)),
         larger_image, (), lambda torch, x: last(
             torch.nn.functional.max_pool2d(first(x), (3, 2), 1, 1, (1, 2))),
         {"MaxPooling2d": 1}),
    Case("avg_pool2d", lambda graph, x: F.avg_pool2d(x, 2, 1, 1), image, (),
         lambda torch, x: last(torch.nn.functional.avg_pool2d(first(x), 2, 1, 1)),
         {"AvgPooling2d": 1}),
    # Normalisation
    Case("softmax", lambda graph, x: F.softmax(x), matrix, (),
         lambda torch, x: torch.softmax(x, -1), {"Softmax": 1}),
    Case("softmax over tokens", lambda graph, x: F.softmax(x, dim=0), matrix, (),
         lambda torch, x: torch.softmax(x, 0), {"Softmax": 1}),
    Case("log_softmax", lambda graph, x: F.log_softmax(x), matrix, (),
         lambda torch, x: torch.log_softmax(x, -1), {"LogSoftmax": 1}),
    Case("sparsemax", lambda graph, x: F.sparsemax(x), matrix, (),
         lambda torch, x: torch_sparsemax(torch, x), {"Sparsemax": 1}),
    Case("sparsemax over tokens", lambda graph, x: F.sparsemax(x, dim=0), matrix, (),
         lambda torch, x: torch_sparsemax(torch, x.T).T, {"Sparsemax": 1}),
    Case("layer_norm", lambda graph, x, w, b: F.layer_norm(x, w, b), matrix, [(4,), (4,)],
         lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (4,), w, b),
         {"LayerNormalization": 1}),
    Case("rms_norm", lambda graph, x, w: F.rms_norm(x, w), matrix, [(4,)],
         lambda torch, x, w: torch.nn.functional.rms_norm(x, (4,), w, 1e-6),
         {"RmsNormalization": 1}),
    Case("rms_norm of heads", lambda graph, x, w: F.rms_norm(x, w, heads=2), matrix, [(2,)],
         lambda torch, x, w: torch.nn.functional.rms_norm(
             x.reshape(-1, 2), (2,), w, 1e-6).reshape(x.shape), {"RmsNormalization": 1}),
    *[Case(f"normalize by {p} over {over}",
           lambda graph, x, p=p, dim=dim: F.normalize(x, p, dim), at_least(1), (),
           lambda torch, x, p=p, dim=dim: torch.nn.functional.normalize(x, p, dim))
      for p in (2.0, 1.0, 3.0, 0.5, 0.0, -1.0, np.inf, -np.inf)
      for over, dim in (("tokens", 0), ("features", -1))[: 1 + (p != 3.0)]],
    Case("normalize a vector", lambda graph, x: F.normalize(x, eps=3.0), vector, (),
         lambda torch, x: torch.nn.functional.normalize(x, dim=0, eps=3.0)),
    *[Case(f"cosine_similarity over {over}",
           lambda graph, a, b, dim=dim: F.cosine_similarity(a, b, dim),
           lambda generator, length: pair(generator, max(length, 1)), (),
           lambda torch, a, b, dim=dim: (
               torch.cosine_similarity(a, b, dim).reshape((-1, 1) if dim else (-1,))))
      for over, dim in (("tokens", 0), ("features", -1))],
    Case("cosine_similarity with a vector", lambda graph, a, b: F.cosine_similarity(a, b),
         matrix_and_vector, (),
         lambda torch, a, b: torch.cosine_similarity(a, b[None], -1).reshape(-1, 1)),
    # Gated units
    *[Case(f"{name} of two", lambda graph, a, b, unit=unit: unit(a, b), pair, (),
           lambda torch, a, b, f=f: f(torch.nn.functional, a) * b, {"GatedUnit": 1})
      for name, (unit, f) in GATED.items()],
    *[Case(f"{name} of halves", lambda graph, x, unit=unit: unit(x), matrix, (),
           lambda torch, x, f=f: f(torch.nn.functional, x[:, :2]) * x[:, 2:], {"GatedHalves": 1})
      for name, (unit, f) in GATED.items()],
    Case("glu", lambda graph, x: F.glu(x), matrix, (),
         lambda torch, x: torch.nn.functional.glu(x, -1), {"GatedHalves": 1}),
    # Positions
    Case("rotary", lambda graph, x: F.rotary(x, heads=2), matrix, (), torch_rotary, {"Rotary": 1}),
    Case("rotary, interleaved", lambda graph, x: F.rotary(
            x, layout="interleaved", rotary_dim=2, offset=3 * x.rows), matrix, (), None,
         {"Rotary": 1}),
    Case("rotary of positions", lambda graph, x, ids: F.rotary(x, 2, positions=ids % 50),
         matrix_and_ids, (), None, {"Rotary": 1}),
    Case("positions", lambda graph, x, table: F.positions(x, table, offset=2), matrix, [(13, 3)],
         lambda torch, x, table: table[2 : 2 + len(x)], {"PositionRows": 1}),
    Case("sinusoidal", lambda graph, x: F.sinusoidal(x, layout="halves", offset=x.rows), matrix,
         (), None, {"Sinusoids": 1}),
    Case("sinusoidal of positions", lambda graph, x, ids: F.sinusoidal(x, positions=ids % 50),
         matrix_and_ids, (), None, {"Sinusoids": 1}),
    Case("dropout", lambda graph, x: F.dropout(x, 0.1 + 0.05 * x.rows), matrix, (), None,
         {"InvertedDropout": 1}),
    # Attention
    Case("attention", lambda graph, q, k, v: F.attention(q, k, v), query_and_memory, (), None,
         {"DotProductAttention": 1}),
    Case("attention of some", lambda graph, q, k, v: F.attention(q, k, v, heads=2), some_memory, (),
         lambda torch, q, k, v: torch.cat(
             [torch.nn.functional.scaled_dot_product_attention(a[None], b[None], c[None])[0]
              for a, b, c in zip(q.chunk(2, -1), k.chunk(2, -1), v.chunk(2, -1), strict=True)], -1),
         {"DotProductAttention": 1}),
    Case("attention, causal", lambda graph, x: F.attention(x, x, causal=True), matrix, (),
         lambda torch, x: torch.nn.functional.scaled_dot_product_attention(
             x[None], x[None], x[None], is_causal=True)[0], {"DotProductAttention": 1}),
    Case("attention, grouped queries",
         lambda graph, q, k, v: F.attention(q, k, v, heads=4, kv_heads=2, window=2),
         grouped_memory, (), None, {"DotProductAttention": 1}),
    Case("attention, relative bias",
         lambda graph, q, k, v, table: F.attention(
             q, k, v, heads=2, bias=F.relative_bias(table), causal=True),
         query_and_memory, [(5, 2)], None, {"DotProductAttention": 1}),
    Case("attention, T5's bias",
         lambda graph, q, k, v, table: F.attention(
             q, k, v, heads=4, kv_heads=2, bias=F.t5_bias(table, 9), scale=1.0),
         grouped_memory, [(8, 4)], None, {"DotProductAttention": 1}),
    Case("attention, ALiBi", lambda graph, x: F.attention(x, x, heads=2, bias=F.alibi(2)), matrix,
         (), None, {"DotProductAttention": 1}),
    Case("attention, softcap",
         lambda graph, q, k, v, table: F.attention(
             q, k, v, heads=4, kv_heads=2, bias=F.t5_bias(table, 9), softcap=0.7, window=3),
         grouped_memory, [(8, 4)], None, {"DotProductAttention": 1}),
    Case("attention, softcap of one head", lambda graph, q, k, v: F.attention(
            q, k, v, softcap=0.5), query_and_memory, (),
         lambda torch, q, k, v: (0.5 * (q @ k.T / q.shape[-1] ** 0.5 / 0.5).tanh()).softmax(-1) @ v,
         {"DotProductAttention": 1}),
    Case("attention, a matrix as bias",
         lambda graph, q, k, v, b: F.attention(q, k, v, heads=4, kv_heads=2, bias=b, window=2),
         memory_and_bias, (), None, {"BiasedAttention": 1}),
    Case("attention, a matrix and dropout",
         lambda graph, q, k, v, b: F.attention(q, k, v, heads=4, kv_heads=2, bias=b, dropout=0.3),
         memory_and_bias, (), None, {"BiasedDropoutAttention": 1}),
    Case("attention, a bias of features",
         lambda graph, q, k, v, features, table: F.attention(
             q, k, v, heads=4, kv_heads=2, bias=F.feature_bias(table, features), causal=True),
         memory_and_features, [(5, 4)], None, {"DotProductAttention": 1}),
    Case("attention, one bias of features for all heads",
         lambda graph, q, k, v, features, table: F.attention(
             q, k, v, heads=4, kv_heads=2, bias=F.feature_bias(table, features)),
         memory_and_features, [(5,)], None, {"DotProductAttention": 1}),
    Case("attention, dropout",
         lambda graph, q, k, v: F.attention(q, k, v, heads=4, kv_heads=2, dropout=0.3),
         grouped_memory, (), None, {"DropoutAttention": 1}),
    Case("attention, general", lambda graph, q, k, v, w: F.general_attention(q, k, v, w),
         query_and_memory, [(4, 4)]),
    Case("attention, additive", lambda graph, q, k, v, w: F.additive_attention(q, k, v, w),
         query_and_memory, [(4,)], None, {"BahdanauAttention": 1}),
    Case("attention, additive of some",
         lambda graph, q, k, v, w: F.additive_attention(q, k, v, w), some_memory, [(4,)],
         lambda torch, q, k, v, w: ((q[:, None] + k[None]).tanh() @ w).softmax(-1) @ v),
    Case("gated_delta_rule", lambda graph, *xs: F.gated_delta_rule(*xs), gated_rows, (),
         torch_gated_delta_rule, {"GatedDeltaRule": 1}),
    Case("gated_delta_rule, without b", lambda graph, *xs: F.gated_delta_rule(*xs[:4]),
         gated_rows, (), lambda torch, *xs: torch_gated_delta_rule(torch, *xs[:4]),
         {"GatedLinearAttention": 1}),
    # Losses
    Case("cross_entropy", lambda graph, x, ids: F.cross_entropy(x, ids, label_smoothing=0.1),
         matrix_and_ids, (), None, {"CrossEntropy": 1}),
    Case("cross_entropy, summed", lambda graph, x, ids: F.cross_entropy(x, ids, reduction="sum"),
         matrix_and_ids, (),
         lambda torch, x, ids: torch.nn.functional.cross_entropy(x, ids, reduction="sum"),
         {"CrossEntropy": 1}),
    Case("cross_entropy with probabilities",
         lambda graph, x, ids: F.cross_entropy(
             x, chances(ids, x.width), label_smoothing=0.1, reduction="sum"),
         matrix_and_ids, (),
         lambda torch, x, ids: torch.nn.functional.cross_entropy(
             x, torch.tensor(chances(ids, x.shape[1]), dtype=x.dtype), label_smoothing=0.1,
             reduction="sum"),
         {"CrossEntropy": 1}),
    Case("cross_entropy with probabilities and projection",
         lambda graph, x, ids, w, b: F.cross_entropy(
             F.linear(x, w, b), chances(ids, 6), reduction="sum"),
         matrix_and_ids, [(6, 4), (6,)],
         lambda torch, x, ids, w, b: torch.nn.functional.cross_entropy(
             x @ w.T + b, torch.tensor(chances(ids, 6), dtype=x.dtype), reduction="sum"),
         {"LinearCrossEntropy": 1}),
    Case("cross_entropy of one prediction", lambda graph, x, ids: F.cross_entropy(x, ids),
         vector_and_ids, (),
         lambda torch, x, ids: torch.nn.functional.cross_entropy(x[None], ids)),
    Case("cross_entropy with projection",
         lambda graph, x, ids, w, b: F.cross_entropy(
             F.linear(x, w, b), ids, reduction="sum", label_smoothing=0.2),
         matrix_and_ids, [(6, 4), (6,)],
         lambda torch, x, ids, w, b: torch.nn.functional.cross_entropy(
             x @ w.T + b, ids, reduction="sum", label_smoothing=0.2),
         {"LinearCrossEntropy": 1}),
    Case("nll_loss",
         lambda graph, x, ids: F.nll_loss(F.log_softmax(x), ids, reduction="sum"),
         matrix_and_ids, (),
         lambda torch, x, ids: torch.nn.functional.nll_loss(
             x.log_softmax(-1), ids, reduction="sum"), {"NllLoss": 1}),
    Case("mse_loss", lambda graph, x, y: F.mse_loss(x, y, reduction="sum"), pair, (),
         lambda torch, x, y: torch.nn.functional.mse_loss(x, y, reduction="sum"),
         {"SquaredError": 1}),
    Case("kl_div", lambda graph, x, y: F.kl_div(x, y, reduction="sum"), pair_of_positives, (),
         lambda torch, x, y: torch.nn.functional.kl_div(x, y, reduction="sum"),
         {"KlDivergence": 1}),
    Case("kl_div of targets 0 and 1", lambda graph, x, y: F.kl_div(x, y, reduction="sum"),
         matrix_and_labels, (),
         lambda torch, x, y: torch.nn.functional.kl_div(x, y.to(x.dtype), reduction="sum")),
    Case("kl_div of log targets",
         lambda graph, x, y: F.kl_div(x, y, reduction="sum", log_target=True), pair, (),
         lambda torch, x, y: torch.nn.functional.kl_div(x, y, reduction="sum", log_target=True),
         {"LogKlDivergence": 1}),
    Case("soft_margin_loss", lambda graph, x, y: F.soft_margin_loss(x, y, "sum"), pair, (),
         lambda torch, x, y: -torch.nn.functional.logsigmoid(x * y).sum(),
         {"SoftMargin": 1}),
    Case("poisson_nll_loss", lambda graph, x, y: F.poisson_nll_loss(x, y, reduction="sum"), pair,
         (), lambda torch, x, y: torch.nn.functional.poisson_nll_loss(x, y, reduction="sum"),
         {"PoissonLoss": 1}),
    Case("poisson_nll_loss of rates", lambda graph, x, y: F.poisson_nll_loss(y, x, False, "sum"),
         pair_of_positives, (), lambda torch, x, y: torch.nn.functional.poisson_nll_loss(
             y, x, log_input=False, reduction="sum"), {"PoissonRateLoss": 1}),
    Case("binary_cross_entropy_with_logits",
         lambda graph, x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum"),
         matrix_and_labels, (),
         lambda torch, x, y: torch.nn.functional.binary_cross_entropy_with_logits(
             x, y.to(x.dtype), reduction="sum"), {"BinaryCrossEntropy": 1}),
    Case("binary_cross_entropy_with_logits of soft targets",
         lambda graph, x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum"),
         pair, (),
         lambda torch, x, y: torch.nn.functional.binary_cross_entropy_with_logits(
             x, y, reduction="sum"), {"BinaryCrossEntropy": 1}),
    Case("pointer_loss", lambda graph, q, k, ids: F.pointer_loss(q, k, ids, reduction="sum"),
         choices, (), lambda torch, q, k, ids: torch.nn.functional.cross_entropy(
             q @ k.T, ids, reduction="sum"), {"PointerLoss": 1}),
    Case("crf", lambda graph, x, tags, w, b, e: F.crf(x, tags, w, b, e), emissions_and_tags,
         [(4, 4), (4,), (4,)], torch_crf, {"Crf": 1}),
    Case("viterbi", lambda graph, x, w, b, e: F.viterbi(x, w, b, e), matrix,
         [(4, 4), (4,), (4,)], None, {"Viterbi": 1}),
    Case("ctc_loss", lambda graph, x, ids: F.ctc_loss(F.log_softmax(x), ids), frames_and_labels, (),
         torch_ctc, {"Ctc": 1}),
    Case("semi_crf", lambda graph, x, each, w, b, e: F.semi_crf(x, each, 2, w, b, e),
         emissions_and_segments, [(2, 2), (2,), (2,)], torch_semi_crf, {"SemiCrf": 1}),
    Case("semi_viterbi", lambda graph, x, w, b, e: F.semi_viterbi(x, 2, w, b, e), matrix,
         [(2, 2), (2,), (2,)], None, {"SemiViterbi": 1}),
    Case("probe", lambda graph, x: probe([x, x], [np.ones(x.shape), np.full(x.shape, 2.0)]), matrix,
         (), lambda torch, x: 3 * x.sum(), {"Probe": 1}),
    Case("loss_sum", lambda graph, x: seed([x, x], [np.ones(x.shape), np.full(x.shape, 2.0)], True),
         matrix, (), lambda torch, x: 3 * x.sum(), {"LossSum": 1}),
    Case("seed", lambda graph, x: seed(  # has a gradient and no value, and the other a value alone
             [x, x], [np.ones(x.shape), np.full(x.shape, 2.0)], False) + F.detach(3 * F.sum(x)),
         matrix, (), lambda torch, x: 3 * x.sum(), {"Seed": 1}),
    # Cells
    Case("scan", scan_elman, matrix, [(3, 4), (3, 3), (3,)], torch_elman, {"Scan": 1, "Port": 1}),
    Case("scan backwards", scan_backwards, matrix_and_vector, [(4, 4), (4, 4), (4,)], None,
         {"Scan": 1}),
    Case("scan of two states", scan_gated, matrix, [(4, 8)], None, {"Scan": 1, "Port": 1}),
    Case("scan with memory", scan_attending, pair, [(4, 4)], None, {"Scan": 1}),
    Case("scan with dropout", scan_dropping, matrix),
    Case("calls", calls_elman, matrix, [(3, 4), (3, 3), (3,)], torch_calls_elman,
         {"RegionNode": 1, "StackCalls": 1, "Tanh": 1}),
    # Blocks
    Case("block", block_of_two_results, pair, [(4, 4)], torch_two_results,
         {"BlockResult": 1, "two_results": 1}),
]  # fmt: skip
