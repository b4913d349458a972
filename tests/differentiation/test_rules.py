"""Every rule, on every row of `tests/node_cases.py`: against backward, PyTorch, and one by one."""

import importlib
import pkgutil

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.blocks.call import BlockCall
from dynbatch.differentiation.rules.expressions import on_nodes
from dynbatch.differentiation.table import PARAMETER_RULES, RULES
from dynbatch.differentiation.without import WITHOUT_A_RULE
from dynbatch.errors import GraphError, NoGradientError
from dynbatch.kernels.scalar.expressions import argument, variable, where
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.sources import Input
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import Probe, outputs_of
from tests.marks import quick
from tests.node_cases import CASES, LENGTHS, Case
from tests.nodes.test_contract import few_or_all

NO_RULE = {
    "attention, a matrix and dropout", "attention, dropout", "crf", "ctc_loss", "gated_delta_rule",
    "gated_delta_rule, without b", "semi_crf",
}  # fmt: skip
"""Rows whose types have no rule."""

DRAWS_ANEW = {"scan with dropout"}
"""Rows whose masks are others in `grad`, where a scan is the steps of its cell."""

MADE_BY_BACKWARD = {"input", "input, scalar", "variable", "probe", "loss_sum", "seed"}
"""Rows of nodes that only tests and backward make, or that are the inputs themselves."""

WITH_RULES = [case for case in CASES if case.name not in NO_RULE | MADE_BY_BACKWARD]


def over(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def parameters_of(case: Case) -> list[db.Parameter]:
    generator = np.random.default_rng(1)
    return [
        db.Parameter(generator.standard_normal(shape), f"parameter {k}")
        for k, shape in enumerate(case.parameters)
    ]


def sentences_of(case: Case, lengths=LENGTHS) -> list[tuple]:
    generator = np.random.default_rng(2)
    return [case.arguments(generator, length) for length in lengths]


def is_float_array(x) -> bool:
    return isinstance(x, np.ndarray | np.floating) and x.dtype.kind == "f"


def weights_of(shapes, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for shape in shapes]


def weighted(nodes, seed: int) -> Node:
    """Σ ⟨w_i, x_i⟩ by plain nodes, with random w_i."""
    graph = nodes[0].graph
    weights = weights_of([x.shape for x in nodes], seed)
    pairs = [(x, w) for x, w in zip(nodes, weights, strict=True) if w.size]
    return F.sum([F.constant(graph, 0.0), *[F.sum(x * F.input(graph, w)) for x, w in pairs]])


class Derivatives:
    """The first and second derivatives of a row's function at one sentence, as nodes.

    y = Σ ⟨w, outputs⟩, first = ∂y/∂x, z = Σ ⟨u, first⟩, second = ∂z/∂x; x are nodes and parameters.
    A graph makes one of them, since dropout has another mask in each call.
    """

    def __init__(self, case: Case, graph, arguments, parameters) -> None:
        self.case = case
        inputs = [F.input(graph, x).keep() if is_float_array(x) else x for x in arguments]
        wrt = [k for k, x in enumerate(inputs) if isinstance(x, Node)]
        self.places = [*wrt, *range(len(arguments), len(arguments) + len(parameters))]
        self.given = [*inputs, *parameters]
        self.graph = graph
        self.leaves = [inputs[k] for k in wrt]

    def y_of(self, *given) -> Node:
        return weighted(outputs_of(self.case.build, self.graph, given), 3)

    def z_of(self, *given) -> Node:
        return weighted(db.grad(self.y_of, self.places)(*given), 4)

    def made(self, what: str):
        """y, first, z or second."""
        of = {"y": self.y_of, "z": self.z_of}
        if what in of:
            return of[what](*self.given)
        function = self.y_of if what == "first" else self.z_of
        return db.grad(function, self.places)(*self.given)


def by_backward(case: Case, arguments, of: str) -> list[np.ndarray]:
    """Gradients by `graph.backward` of y or z, with respect to nodes and parameters."""
    parameters = parameters_of(case)
    with db.Graph(dtype="float64", seed=0) as graph:
        derivatives = Derivatives(case, graph, arguments, parameters)
        try:
            graph.backward(derivatives.made(of))
        except NoGradientError:
            return [np.zeros(x.shape) for x in (*derivatives.leaves, *parameters)]
        found = [x.gradient for x in derivatives.leaves]
    return found + [dense_gradient(p) for p in parameters]


def by_rules(case: Case, arguments, what: str) -> list[np.ndarray]:
    with db.Graph(dtype="float64", seed=0) as graph:
        found = Derivatives(case, graph, arguments, parameters_of(case)).made(what)
        return [x.value for x in found]


def assert_close(found, expected, within=1e-8) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=within, atol=within * scale)


# Derivatives of the others are compared with PyTorch's numbers, below.
BY_BACKWARD = [case for case in WITH_RULES if case.name not in DRAWS_ANEW]
FEW_BY_BACKWARD = [case for k, case in enumerate(BY_BACKWARD) if case.torch is None or k % 3 == 0]


@over(quick(FEW_BY_BACKWARD, BY_BACKWARD))
@pytest.mark.parametrize("length", quick([3], [0, 1, 3]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # var of one element is 0 / 0
def test_first_and_second_derivatives_equal_those_of_backward(case, length):
    (arguments,) = sentences_of(case, [length])
    for what, of in (("first", "y"), ("second", "z")):
        pairs = zip(by_rules(case, arguments, what), by_backward(case, arguments, of), strict=True)
        for found, expected in pairs:
            assert_close(found, expected)


@pytest.fixture
def torch():
    """PyTorch, whose new tensors are in float64."""
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


@over([case for case in WITH_RULES if case.torch is not None])
def test_second_derivatives_equal_those_of_pytorch(case, torch):
    (arguments,) = sentences_of(case, [3])
    tensors = [
        torch.tensor(x, requires_grad=True) if is_float_array(x) else torch.tensor(x)
        for x in arguments
    ]
    twins = [torch.tensor(p.value, requires_grad=True) for p in parameters_of(case)]
    leaves = [x for x in tensors if x.requires_grad] + twins
    result = case.torch(torch, *tensors, *twins)
    outputs = list(result) if isinstance(result, list | tuple) else [result]
    first = gradients_of(torch, outputs, leaves, 3)
    second = gradients_of(torch, first, leaves, 4)
    for what, tensors in (("first", first), ("second", second)):
        for found, expected in zip(by_rules(case, arguments, what), tensors, strict=True):
            assert_close(found, expected.detach().numpy(force=True))


def gradients_of(torch, outputs, leaves, seed: int):
    """Gradients of Σ ⟨w_i, outputs_i⟩, with the weights of `weighted`."""
    weights = weights_of([tuple(x.shape) for x in outputs], seed)
    total = sum((x * torch.tensor(w)).sum() for x, w in zip(outputs, weights, strict=True))
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    return torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)


@over(quick(WITH_RULES[::6], WITH_RULES))
@few_or_all
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_batched_equals_one_by_one(case, lengths):
    sentences = sentences_of(case, lengths)
    parameters = parameters_of(case)
    with db.Graph(dtype="float64", seed=0) as graph:
        together = []
        for k, arguments in enumerate(sentences):
            with graph.example(k):
                found = Derivatives(case, graph, arguments, parameters)
                together.append(found.made("second"))
        graph.forward()
        batched = [[x.value for x in found] for found in together]
    for k, arguments in enumerate(sentences):
        with db.Graph(dtype="float64", seed=0) as graph:
            with graph.example(k):
                alone = Derivatives(case, graph, arguments, parameters).made("second")
            for found, x in zip(batched[k], alone, strict=True):
                assert_close(found, x.value, 1e-12)


@over([case for case in CASES if case.name in NO_RULE])
def test_a_row_without_a_rule_is_an_error_by_name(case):
    (arguments,) = sentences_of(case, [3])
    with db.Graph(dtype="float64") as graph, pytest.raises(GraphError) as error:
        Derivatives(case, graph, arguments, parameters_of(case)).made("first")
    name = str(error.value).split(" #")[0]
    assert WITHOUT_A_RULE[name] in str(error.value)


def node_types() -> list[type[Operation]]:
    """All of dynbatch's own types of nodes."""
    for module in pkgutil.walk_packages(db.__path__, "dynbatch."):
        # The last has none, and needs PyTorch.
        if not module.name.endswith("__main__") and not module.name.startswith("dynbatch.torch"):
            importlib.import_module(module.name)
    found, stack = [], [Operation]
    while stack:
        for node_type in stack.pop().__subclasses__():
            stack.append(node_type)
            if node_type.__module__.startswith("dynbatch."):
                found.append(node_type)
    return found


@pytest.mark.parametrize(("dim", "shape"), [(0, (1, 3, 4)), (-1, (2, 3, 2))])
def test_images_are_joined_with_the_gradients_of_their_parts(dim, shape):
    arrays = [np.random.default_rng(0).standard_normal(one) for one in ((2, 3, 4), shape)]
    with db.Graph(dtype="float64") as graph:
        xs = [F.input(graph, x) for x in arrays]
        gradients = db.grad(lambda a, b: F.sum(F.concat([a, b], dim) ** 2.0), [0, 1])(*xs)
        for x, gradient in zip(arrays, gradients, strict=True):
            np.testing.assert_allclose(gradient.value, 2 * x)


def test_what_a_number_decides_is_the_branch_that_it_decides_for():
    x, chosen = variable("x"), argument("chosen")
    root = where(chosen > 0.0, 2.0 * x, 3.0 * x)
    with db.Graph(dtype="float64") as graph:
        node = F.input(graph, [1.0])
        found = [on_nodes(root, {"x": node, "chosen": number}).value for number in (1.0, -1.0)]
    assert found == [[2.0], [3.0]]


def test_every_node_type_has_a_rule_or_a_reason():
    types = {t.__name__: t for t in node_types()}
    known = {t.__name__ for t in RULES} | {t.__name__ for t in PARAMETER_RULES}
    missing = [
        name
        for name, node_type in types.items()
        if node_type.differentiable
        and not node_type.__subclasses__()
        and name not in known
        and name not in WITHOUT_A_RULE
        and not issubclass(node_type, Input | Probe | BlockCall)
    ]
    assert not missing, f"give these a rule, or a reason in WITHOUT_A_RULE: {missing}"
    assert not set(WITHOUT_A_RULE) - set(types), "reasons for types that do not exist"
