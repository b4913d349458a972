"""Each function's rule gives its kernel's derivative, also at the borders of the numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.differentiation.table import RULES
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.unary import FUNCTIONS
from dynbatch.nodes import arithmetic as arithmetic_nodes
from dynbatch.nodes import gated, selection
from dynbatch.nodes.inner_product import seed
from dynbatch.nodes.losses.elementwise import ElementwiseLoss
from dynbatch.nodes.reductions.reduce import Reduction
from dynbatch.nodes.softmax import LogSoftmax, Softmax, Sparsemax
from dynbatch.nodes.unary import activations
from dynbatch.nodes.unary.node_types import NODE_TYPES
from dynbatch.testing.probe import backward, gradient_of
from tests.kernels.unary.cases import EVERY_CHOICE
from tests.node_cases import CASES

Array = np.ndarray
TOLERANCE = {"f": 3e-5, "d": 1e-12}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def borders(dtype: str) -> Array:
    """±0, ±1 and its neighbours, subnormal, least, largest, infinite numbers, NaN, some between."""
    of = np.finfo(dtype)
    sizes = [0, 1, 1 - of.eps / 2, 1 + of.eps, of.smallest_subnormal, of.tiny / 2, of.tiny, of.max]
    # Where exp, erfc or a square overflows or vanishes, or a kernel goes over to another formula.
    sizes += [0.5, 3, 12, 40, 41, 88.8, 104, 710, 746, 1e10, 1e20, 2 * float(np.sqrt(of.max))]
    both = np.array([*sizes, np.inf, *[-size for size in sizes], -np.inf, np.nan])
    return both.astype(dtype)


OF_ONE: dict[str, Callable[[db.Node], db.Node]] = {
    f"{kernel.name} {arguments or ''}".strip(): partial(
        NODE_TYPES[kernel], **dict(zip(kernel.arguments, arguments, strict=True))
    )
    for kernel, arguments in EVERY_CHOICE
    if NODE_TYPES[kernel] in RULES
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
    "maximum": F.maximum,
    "minimum": F.minimum,
}
OF_ONE |= {
    f"x {name} {number}": partial(lambda apply, number, x: apply(x, number), apply, number)
    for name, apply in OPERATORS.items()
    for number in (3.0, 0.0, -1.5)
}
OF_ONE |= {
    f"{number} {name} x": partial(apply, number)
    for name, apply in OPERATORS.items()
    for number in (3.0, 0.0, -1.5)
}
OF_TWO: dict[str, Callable[[db.Node, db.Node], db.Node]] = {
    **OPERATORS,
    "where": lambda a, b: F.where(a > b, a, b),
    "swiglu": F.swiglu,
    "geglu": F.geglu,
    "geglu by tanh": partial(F.geglu, approximate="tanh"),
    "reglu": F.reglu,
    "halves": lambda a, b: F.glu(F.concat([F.unsqueeze(a, -1), F.unsqueeze(b, -1)])),
    **{kind.__name__: partial(kind, scale=1.0) for kind in ElementwiseLoss.__subclasses__()},
    "huber_loss": partial(F.huber_loss, reduction="sum"),
    "l1_loss": partial(F.l1_loss, reduction="sum"),
}
OF_ROWS: dict[str, Callable[[db.Node], db.Node]] = {
    f"{name} over {dim}": partial(getattr(F, name), dim=dim)
    for name in ("sum", "mean", "max", "min", "logsumexp", "var", "std")
    for dim in (0, -1, None)
}
OF_ROWS |= {
    f"{name} over {dim}": partial(getattr(F, name), dim=dim)
    for name in ("softmax", "log_softmax", "sparsemax", "cumsum")
    for dim in (0, -1)
}
OF_ROWS |= {
    "layer_norm": F.layer_norm,
    "rms_norm": F.rms_norm,
    "cross_entropy": lambda x: F.cross_entropy(x, [1, 2], reduction="sum", label_smoothing=0.2),
    "nll_loss": lambda x: F.nll_loss(x, [1, 2], reduction="sum"),
    "segment_sum": lambda x: F.segment_sum(x, [1, 0, 1]),
    "segment_mean": lambda x: F.segment_mean(x, [1, 0, 1]),
    "kmax_pool": lambda x: F.kmax_pool(x, 1),
    "topk": lambda x: F.topk(x, 2)[0],
    "topk over tokens": lambda x: F.topk(x, 1, 0)[0],
    "max_pool": lambda x: F.max_pool(x, 2, 1),
    "mean_pool": lambda x: F.mean_pool(x, 2, 1),
    "max_pool2d": lambda x: F.max_pool2d(F.reshape(x, (2, 3, 1)), 2, 1, 1),
}


Sentences = list[tuple[Array, ...]]


def weights_of(y: db.Node, number: int) -> Array:
    """Whole numbers, which tell elements apart; 1 where the sentence has no number."""
    if number < 0:
        return np.ones(y.shape, y.graph.dtype)
    return np.random.default_rng(number).integers(1, 4, y.shape).astype(y.graph.dtype)


def by_backward(function: Callable[..., db.Node], sentences: Sentences, first: int) -> list[Array]:
    with db.Graph(dtype=sentences[0][0].dtype) as graph:
        xs = [[F.input(graph, array).keep() for array in arrays] for arrays in sentences]
        ys = [function(*each) for each in xs]
        weights = [weights_of(y, k) for k, y in enumerate(ys, first)]
        backward(graph, seed(ys, weights, False))
        return [gradient_of(x) for each in xs for x in each]


def by_rule(function: Callable[..., db.Node], sentences: Sentences, first: int) -> list[Array]:
    with db.Graph(dtype=sentences[0][0].dtype) as graph:
        found = []
        for number, arrays in enumerate(sentences, first):

            def loss(*xs: db.Node, number: int = number) -> db.Node:
                y = function(*xs)
                return F.sum(y * F.input(graph, weights_of(y, number)))

            xs = [F.input(graph, array) for array in arrays]
            found += db.grad(loss, list(range(len(xs))))(*xs)
        return [x.value for x in found]


def assert_same(
    function: Callable[..., db.Node],
    sentences: Sentences,
    first: int = -1,
    size: float = 0.0,
    terms: float = 0.0,
) -> None:
    """Assert that rule and kernel give the same: NaN, infinity, or within rounding.

    Args:
        first: number of the first sentence's weights; -1 for a sentence of numbers, all 1.
        size:  of the terms that a derivative is the sum of, where they cancel each other, relative
            to the largest derivative of the sentence.
        terms: of the same terms, as a number, where derivatives of other elements are far larger.
    """
    dtype = sentences[0][0].dtype
    of, relative = np.finfo(dtype), TOLERANCE[dtype.char]
    pairs = by_rule(function, sentences, first), by_backward(function, sentences, first)
    for found, expected in zip(*pairs, strict=True):
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        absolute = of.tiny * 100 + min((size * largest + terms) * of.eps, of.max)
        np.testing.assert_allclose(found, expected, relative, absolute)


@pytest.fixture(params=["C", "NumPy"], autouse=True)
def kernels(request):
    if request.param == "C":
        yield
    else:
        with library.reference_only():
            yield


def over(functions: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", functions)


every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@every_dtype
@over(OF_ONE)
def test_the_rule_of_a_function_gives_the_kernels_derivative(name, dtype):
    cancelling = 1.0 if name == "tanh" else 0.0  # 1 - y²
    assert_same(OF_ONE[name], [(borders(dtype),)], terms=cancelling)


@every_dtype
@over(OF_TWO)
def test_the_rule_of_a_function_of_two_gives_the_kernels_derivatives(name, dtype):
    a, b = np.meshgrid(borders(dtype), borders(dtype))
    cancelling = 1.0 if name == "KlDivergence" else 0.0  # log t - x + 1
    assert_same(OF_TWO[name], [(a.reshape(-1), b.reshape(-1))], terms=cancelling)


@every_dtype
@over(OF_ROWS)
def test_the_rule_of_a_function_of_rows_gives_the_kernels_derivatives(name, dtype):
    single = [np.array([[1, x, -2], [0.5, 0.25, 3]], dtype) for x in borders(dtype)]
    alike = [np.full((2, 3), x, dtype) for x in borders(dtype)]
    assert_same(OF_ROWS[name], [(rows,) for rows in single + alike], 0, 1000.0)


def test_every_function_of_these_families_has_a_row() -> None:
    seen: set[type[db.Node]] = set()
    with db.Graph() as graph:
        x, y = [F.input(graph, np.ones((2, 3))) for _ in range(2)]
        made = [f(x) for f in (*OF_ONE.values(), *OF_ROWS.values())]
        made += [f(x[0], y[0]) for f in OF_TWO.values()]
        while made:
            node = made.pop()
            if type(node) not in seen:
                seen.add(type(node))
            made += [each for each in getattr(node, "inputs", ()) if type(each) not in seen]
    families = (
        NODE_TYPES[FUNCTIONS["exp"]].__bases__[0], ElementwiseLoss, Reduction, gated.Gated,
        Softmax, LogSoftmax, Sparsemax, selection.Maximum, selection.Where,
    )  # fmt: skip
    homes = (arithmetic_nodes.__name__, selection.__name__)
    left = [
        kind.__name__
        for kind in RULES
        if (issubclass(kind, families) or kind.__module__ in homes) and kind not in seen
    ]
    assert left == []


def second_derivative(function: Callable[..., db.Node], x: Array) -> Array:
    with db.Graph(dtype=x.dtype) as graph:
        node = F.input(graph, x).keep()
        y, slope = function(node), db.grad(lambda x: F.sum(function(x)))(node)
        backward(graph, seed([slope, y], [np.ones(x.shape), np.zeros(x.shape)], False))
        return gradient_of(node)


@every_dtype
@over(OF_ONE)
def test_a_second_derivative_is_a_number_where_the_first_is(name, dtype):
    x = borders(dtype)
    second = second_derivative(OF_ONE[name], x)
    (first,) = by_rule(OF_ONE[name], [(x,)], -1)
    is_normal = (x == 0) | (np.abs(x) >= np.finfo(dtype).tiny)  # not 0 / x, whose square is 0
    assert not np.isnan(second[np.isfinite(x) & is_normal & np.isfinite(first)]).any()


@pytest.mark.parametrize("name", activations.__all__)
def test_an_activation_is_pytorchs_at_the_borders_with_two_derivatives(name):
    torch = pytest.importorskip("torch")
    (case,) = [case for case in CASES if case.name == name]
    x = borders("float64")
    leaf = torch.tensor(x, requires_grad=True)
    y = case.torch(torch, leaf)
    (slope,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    second = torch.autograd.grad(slope.sum(), leaf)[0] if slope.requires_grad else 0 * leaf

    def function(x: db.Node) -> db.Node:
        return case.build(x.graph, x)

    with db.Graph(dtype="float64") as graph:
        value = function(F.input(graph, x)).value
    found = value, by_backward(function, [(x,)], -1)[0], second_derivative(function, x)
    for order, (ours, leaf) in enumerate(zip(found, (y, slope, second), strict=True)):
        theirs = leaf.detach().numpy()
        is_number = ~np.isnan(theirs) & ~np.isnan(x)  # theirs may be NaN where ours is a limit
        is_number &= (x != 0) | (order < 2)  # where a slope has a bend
        # In tails theirs are worse; tests/kernels/test_elementwise.py has ours.
        np.testing.assert_allclose(ours[is_number], theirs[is_number], 1e-11, 1e-12)
