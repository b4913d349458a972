"""The duties of every node type, for every row of `tests/node_cases.py`."""

import importlib
import pkgutil

import numpy as np
import pytest

import dynbatch as db
from dynbatch.blocks.call import BlockCall
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation, signature_type
from dynbatch.nodes.sources import Input
from dynbatch.testing import check_batching, check_device, check_gradient
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import backward, gradient_of, outputs_of, probe, random_like
from tests.marks import exhaustive, quick
from tests.node_cases import CASES, LENGTHS, Case
from tests.poison import poisoned_memory

# Node types that no graph of a user holds, and why.
WITHOUT_A_CASE = {
    "BlockArgument": "stands for a block's argument while the block is traced; it is never run",
    "Placeholder": "stands for a cell's input while the cell is traced; it is never run",
    **dict.fromkeys(
        ("CachedAttention", "LastRow", "MemoryAttention", "ResumedScan"),
        "is in programs that generate alone: tests/generation/test_model.py",
    ),
}


def over(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


every_case = over(CASES)
in_both_precisions = pytest.mark.parametrize("matmul", ["float32", "bfloat16"])
# Mini-batches of the others are compared with PyTorch's numbers, below.
BATCHED = [case for k, case in enumerate(CASES) if case.torch is None or k % 6 == 0]
FEW = (11, 0, 1)
"""Lengths of sentences where it is not them that matters; PyTorch's numbers are of all."""
few_or_all = pytest.mark.parametrize("lengths", [FEW, exhaustive(LENGTHS)], ids=str)


def parameters_of(case: Case, dtype: str = "float64") -> list[db.Parameter]:
    generator = np.random.default_rng(1)
    return [
        db.Parameter(generator.standard_normal(shape).astype(dtype), f"parameter {k}")
        for k, shape in enumerate(case.parameters)
    ]


def sentences_of(case: Case, lengths=LENGTHS) -> list[tuple]:
    generator = np.random.default_rng(2)
    return [case.arguments(generator, length) for length in lengths]


def as_nodes(graph: db.Graph, arguments: tuple) -> list:
    """Floating-point arrays as kept inputs, the rest as it is."""
    return [db.nodes.input(graph, x).keep() if is_float_array(x) else x for x in arguments]


def is_float_array(x) -> bool:
    return isinstance(x, np.ndarray | np.floating) and x.dtype.kind == "f"


WEIGHTS_OF_BACKWARD = ("LossSum", "Probe", "Seed")
"""Node types whose arrays are no sentence's."""


@every_case
def test_a_block_is_told_every_array_that_a_node_type_takes(case):
    with db.Graph(dtype="float64") as graph:
        for arguments in sentences_of(case, (3,)):
            case.build(graph, *as_nodes(graph, arguments), *parameters_of(case))
        for node in graph.nodes:
            if not isinstance(node, Operation) or type(node).__name__ in WEIGHTS_OF_BACKWARD:
                continue
            for name, value in node.attributes().items():
                parts = value if isinstance(value, tuple) else (value,)
                is_array = any(isinstance(part, np.ndarray) for part in parts)
                assert not is_array or name in node.given_attributes, node


@over(quick(BATCHED, CASES))
@pytest.mark.parametrize("lengths", [(3, 0, 11), exhaustive(LENGTHS)], ids=str)
def test_batched_equals_one_by_one_under_every_policy(case, lengths):
    parameters = parameters_of(case)
    with poisoned_memory():
        check_batching(
            lambda graph, *arguments: case.build(graph, *arguments, *parameters),
            sentences_of(case, lengths),
            parameters=parameters,
        )


@every_case
@pytest.mark.parametrize(
    ("length", "most"), [(3, 5), exhaustive(3, 100), exhaustive(1, 100), exhaustive(0, 100)]
)
def test_backward_equals_central_differences(case, length, most):
    parameters = parameters_of(case)
    (arguments,) = sentences_of(case, [length])
    varied = [k for k, x in enumerate(arguments) if is_float_array(x)]

    def build(graph, *nodes):
        given = list(arguments)
        for k, node in zip(varied, nodes, strict=True):
            given[k] = node
        return case.build(graph, *given, *parameters)

    inputs = [arguments[k] for k in varied]
    check_gradient(build, inputs=inputs, parameters=parameters, most=most)


# A single row of an input is no node before it is read.
@over([case for case in CASES if case.name != "pick"])
@in_both_precisions
@few_or_all
def test_a_repeated_run_gives_what_a_new_graph_gives(case, matmul, lengths):
    parameters, sentences = parameters_of(case, "float32"), sentences_of(case, lengths)

    def built(graph):
        nodes = [as_nodes(graph, arguments) for arguments in sentences]
        found = [x for each in nodes for x in outputs_of(case.build, graph, [*each, *parameters])]
        return found, [x for each in nodes for x in each if isinstance(x, Input)]

    with db.Graph(grad=False, seed=0, matmul=matmul) as graph:
        outputs, inputs = built(graph)
        graph.forward()
        again = graph.repeated()
        for factor in (0.5, 1.5, 0.75):
            for parameter in parameters:
                parameter.value = parameter.value * np.float32(factor)
            with db.Graph(grad=False, seed=0, matmul=matmul) as fresh:
                expected, theirs = built(fresh)  # whose random streams follow from what was given
                for x, y in zip(inputs, theirs, strict=True):
                    x.array[...] = x.array * factor
                    y.array[...] = x.array
                again.run()
                for one, other in zip(outputs, expected, strict=True):
                    assert one.value.tobytes() == other.value.tobytes()


@every_case
@few_or_all
def test_a_gpu_gives_what_the_cpu_gives(case, lengths, cuda):
    parameters = parameters_of(case)
    check_device(
        lambda graph, *arguments: case.build(graph, *arguments, *parameters),
        sentences_of(case, lengths),
        parameters=parameters,
    )


@over([case for case in CASES if case.torch is not None])
def test_values_and_gradients_equal_pytorch(case):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    parameters = parameters_of(case, "float32")
    twins = [torch.tensor(p.value, requires_grad=True) for p in parameters]
    expected, found, leaves = [], [], []
    with db.Graph(seed=0) as graph:
        for arguments in sentences_of(case):
            nodes = as_nodes(graph, arguments)
            found += outputs_of(case.build, graph, [*nodes, *parameters])
            tensors = [as_tensor(torch, x) for x in arguments]
            result = case.torch(torch, *tensors, *twins)
            expected += list(result) if isinstance(result, list | tuple) else [result]
            leaves += [pair for pair in zip(nodes, tensors, strict=True) if is_leaf(pair[0])]
        weights = [w.astype(np.float32) for w in random_like(found, 3)]
        graph.forward()
        for node, tensor in zip(found, expected, strict=True):
            assert_close(node.value, tensor.detach())
        backward(graph, probe(found, weights))
        gradients = [gradient_of(node) for node, _ in leaves]
    loss = sum((t * torch.tensor(w)).sum() for t, w in zip(expected, weights, strict=True))
    if loss.requires_grad:
        loss.backward()
    for gradient, (_, tensor) in zip(gradients, leaves, strict=True):
        assert_close(gradient, torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)
    for parameter, twin in zip(parameters, twins, strict=True):
        assert_close(dense_gradient(parameter), twin.grad)


@pytest.mark.skipif(bool(reason()), reason="NumPy's products round by their size")
@over(quick(CASES[::3], CASES))
@in_both_precisions
def test_a_sentence_has_the_same_bits_alone_and_in_a_company_of_thirty(case, matmul):
    parameters, generator = parameters_of(case, "float32"), np.random.default_rng(2)
    lengths = [*LENGTHS, *generator.integers(0, 12, 30 - len(LENGTHS))]
    sentences = [case.arguments(generator, length) for length in lengths]

    def bits_of(some):
        with db.Graph(seed=0, matmul=matmul) as graph:
            nodes = [as_nodes(graph, sentences[k]) for k in some]
            built = [outputs_of(case.build, graph, [*each, *parameters]) for each in nodes]
            outputs = [y.keep() for each in built for y in each]
            weights = [w for k, each in zip(some, built, strict=True) for w in random_like(each, k)]
            backward(graph, probe(outputs, weights))
            gradients = [[gradient_of(x) for x in each if is_leaf(x)] for each in nodes]
            return [
                [x.tobytes() for x in [*[y.value for y in ys], *dxs]]
                for ys, dxs in zip(built, gradients, strict=True)
            ]

    order = generator.permutation(len(sentences)).tolist()
    together = bits_of(order)
    for k in range(len(LENGTHS)):
        assert together[order.index(k)] == bits_of([k])[0]


@every_case
@few_or_all
def test_each_batch_in_bfloat16_is_its_nodes_one_by_one(case, lengths):
    parameters = parameters_of(case, "float32")
    with db.Graph(seed=0, precision="bfloat16", check=True) as graph:
        nodes = [as_nodes(graph, arguments) for arguments in sentences_of(case, lengths)]
        outputs = [y for each in nodes for y in outputs_of(case.build, graph, [*each, *parameters])]
        backward(graph, probe(outputs, random_like(outputs, 3)))


def as_tensor(torch, x):
    if is_float_array(x):
        return torch.tensor(x, dtype=torch.float32, requires_grad=True)
    return torch.tensor(x)


def is_leaf(x) -> bool:
    return isinstance(x, Node)


def assert_close(found, expected) -> None:
    scale = max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5 * scale)


# Masks follow from the bytes of the inputs, and so from their dtype.
@over([case for case in CASES if "dropout" not in case.name])
@few_or_all
def test_float32_equals_float64_within_rounding(case, lengths):
    values = {}
    for dtype in ("float32", "float64"):
        parameters = parameters_of(case, dtype)
        with db.Graph(dtype=dtype, seed=0) as graph:
            nodes = [
                node
                for arguments in sentences_of(case, lengths)
                for node in outputs_of(
                    case.build, graph, [*as_nodes(graph, arguments), *parameters]
                )
            ]
            values[dtype] = [node.value for node in nodes]
            assert all(value.dtype == dtype for value in values[dtype])
    for single, double in zip(*values.values(), strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4)


@every_case
def test_non_contiguous_arrays_give_the_same(case):
    arguments = sentences_of(case)[0]
    strided = tuple(
        np.repeat(x, 2, axis=0)[::2] if is_float_array(x) and x.ndim else x for x in arguments
    )
    values = []
    for given in (arguments, strided):
        with db.Graph(dtype="float64", seed=0) as graph:
            nodes = [*as_nodes(graph, given), *parameters_of(case)]
            values.append([node.value for node in outputs_of(case.build, graph, nodes)])
    for plain, other in zip(*values, strict=True):
        assert np.array_equal(plain, other, equal_nan=True)


@every_case
def test_one_batch_whatever_the_lengths(case):
    parameters = parameters_of(case)
    with db.Graph(dtype="float64", seed=0) as graph:
        outputs = []
        for arguments in sentences_of(case):
            outputs += outputs_of(case.build, graph, [*as_nodes(graph, arguments), *parameters])
        graph.values(outputs)
        (plan,) = graph.plans
    kinds = [signature_type(step.signature).__name__ for step in plan.steps]
    for kind, batches in case.batches.items():
        assert kinds.count(kind) == batches, kinds


def test_every_node_type_has_a_case():
    covered = {kind for case in CASES for kind in kinds_in(case)}
    for module in pkgutil.walk_packages(db.__path__, "dynbatch."):
        if not module.name.startswith("dynbatch.torch"):  # has none, and needs PyTorch
            importlib.import_module(module.name)
    missing = sorted(
        kind.__name__
        for kind in concrete_subclasses(Node)
        if kind not in covered and kind.__name__ not in WITHOUT_A_CASE
    )
    assert not missing, f"add rows to tests/node_cases.py for {missing}"


def kinds_in(case: Case) -> set[type[Node]]:
    with db.Graph(dtype="float64") as graph:
        for arguments in sentences_of(case, FEW):
            case.build(graph, *as_nodes(graph, arguments), *parameters_of(case))
        graph.forward()
        ran = [signature_type(step.signature) for plan in graph.plans for step in plan.steps]
        kinds = {type(node) for node in graph._nodes} | set(ran)
        return {BlockCall if issubclass(kind, BlockCall) else kind for kind in kinds}


def concrete_subclasses(kind: type[Node]) -> set[type[Node]]:
    """Node types of dynbatch below `kind` that are not mere bases of others."""
    found: set[type[Node]] = set()
    for below in kind.__subclasses__():
        if below.__module__.startswith("dynbatch."):
            if below is not BlockCall:  # each block has a type of its own
                found |= concrete_subclasses(below)
            if below in (Input, BlockCall) or not below.__subclasses__():
                found.add(below)
    return found
