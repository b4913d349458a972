"""Arguments that are not nodes where nodes belong: one message for every function and thing."""

import inspect
import sys
from functools import partial
from itertools import product

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, EmptyBatchError, ShapeError
from dynbatch.nodes.arguments import as_ids

SQUARE = db.Parameter(np.ones((3, 3), np.float32), "square")
VECTOR = db.Parameter(np.ones(3, np.float32), "vector")

COMPARISONS = ["equal", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum"]
COMPARISONS += ["not_equal"]
OF_TARGETS = [
    name
    for name in F.__all__
    if list(inspect.signature(getattr(F, name)).parameters)[:2] == ["x", "target"]
]
# Each function, with the place of a node left open; every other argument fits.
FUNCTIONS = {
    **{name: [lambda x, it, name=name: getattr(F, name)(it, x)] for name in OF_TARGETS},
    "add": [lambda x, it: F.add(it, x), lambda x, it: F.add(x, it)],
    "additive_attention": [
        lambda x, it: F.additive_attention(it, x, x, VECTOR),
        lambda x, it: F.additive_attention(x, it, x, VECTOR),
    ],
    "affine": [lambda x, it: F.affine(VECTOR, (SQUARE, it))],
    "attention": [lambda x, it: F.attention(it, x, x), lambda x, it: F.attention(x, it, x)],
    "avg_pool2d": [lambda x, it: F.avg_pool2d(it, 1)],
    "chunk": [lambda x, it: F.chunk(it, 1)],
    "concat": [lambda x, it: F.concat([x, it]), lambda x, it: F.concat([it, x])],
    "conv1d": [lambda x, it: F.conv1d(it, SQUARE)],
    "conv2d": [lambda x, it: F.conv2d(it, SQUARE)],
    "conv_transpose2d": [lambda x, it: F.conv_transpose2d(it, SQUARE)],
    "crf": [lambda x, it: F.crf(it, [0, 1], SQUARE, VECTOR, VECTOR)],
    "cosine_similarity": [
        lambda x, it: F.cosine_similarity(it, x),
        lambda x, it: F.cosine_similarity(x, it),
    ],
    "cross_entropy": [lambda x, it: F.cross_entropy(it, [0, 1])],
    "ctc_loss": [lambda x, it: F.ctc_loss(it, [1])],
    "cumsum": [lambda x, it: F.cumsum(it, 0)],
    "divide": [lambda x, it: F.divide(it, x), lambda x, it: F.divide(x, it)],
    "dot": [lambda x, it: F.dot(it, x[0]), lambda x, it: F.dot(x[0], it)],
    "dropout": [lambda x, it: F.dropout(it), lambda x, it: F.dropout(it, 0.5, False)],
    "expand": [lambda x, it: F.expand(it, (2, 3))],
    "gated_delta_rule": [
        lambda x, it: F.gated_delta_rule(it, x, x, x),
        lambda x, it: F.gated_delta_rule(x, x, x, it),
    ],
    "gather_rows": [lambda x, it: F.gather_rows(it, [0])],
    "gaussian_nll_loss": [lambda x, it: F.gaussian_nll_loss(it, SQUARE, 1.0)],
    "general_attention": [lambda x, it: F.general_attention(it, x, x, SQUARE)],
    "kmax_pool": [lambda x, it: F.kmax_pool(it, 2)],
    "linear": [lambda x, it: F.linear(it, SQUARE)],
    "matmul": [lambda x, it: F.matmul(it, x), lambda x, it: F.matmul(x, it)],
    "matvec": [lambda x, it: F.matvec(it, x[0]), lambda x, it: F.matvec(x, it)],
    "max_pool": [lambda x, it: F.max_pool(it, 1)],
    "max_pool2d": [lambda x, it: F.max_pool2d(it, 1)],
    "mean_pool": [lambda x, it: F.mean_pool(it, 1)],
    "multi_margin_loss": [lambda x, it: F.multi_margin_loss(it, [0, 1])],
    "multiply": [lambda x, it: F.multiply(it, x), lambda x, it: F.multiply(x, it)],
    "normalize": [lambda x, it: F.normalize(it)],
    "nll_loss": [lambda x, it: F.nll_loss(it, [0, 1])],
    "outer": [lambda x, it: F.outer(it, x), lambda x, it: F.outer(x, it)],
    "pick": [lambda x, it: F.pick(it, 0)],
    "pointer_loss": [
        lambda x, it: F.pointer_loss(it, x, [0, 1]),
        lambda x, it: F.pointer_loss(x, it, [0, 1]),
    ],
    "pow": [lambda x, it: F.pow(it, 2)],
    "repeat": [lambda x, it: F.repeat(it, 2)],
    "permute": [lambda x, it: F.permute(it, (1, 0))],
    "reshape": [lambda x, it: F.reshape(it, (3,))],
    "segment_mean": [lambda x, it: F.segment_mean(it, [3])],
    "segment_sum": [lambda x, it: F.segment_sum(it, [3])],
    "slice": [lambda x, it: F.slice(it, 0, 1)],
    "split": [lambda x, it: F.split(it, 1)],
    "positions": [lambda x, it: F.positions(it, SQUARE)],
    "stack": [lambda x, it: F.stack([x[0], it]), lambda x, it: F.stack([it, x[0]])],
    **{
        name: [
            lambda x, it, name=name: getattr(F, name)(it, x),
            lambda x, it, name=name: getattr(F, name)(x, it),
        ]
        for name in COMPARISONS
    },
    "where": [lambda x, it: F.where(x, it, x), lambda x, it: F.where(x, x, it)],
    "subtract": [lambda x, it: F.subtract(it, x), lambda x, it: F.subtract(x, it)],
    "vecmat": [lambda x, it: F.vecmat(it, x), lambda x, it: F.vecmat(x[0], it)],
    "viterbi": [lambda x, it: F.viterbi(it, SQUARE, VECTOR, VECTOR)],
    "semi_crf": [lambda x, it: F.semi_crf(it, [(1, 0), (1, 1)], 1, SQUARE, VECTOR, VECTOR)],
    "semi_viterbi": [lambda x, it: F.semi_viterbi(it, 1, SQUARE, VECTOR, VECTOR)],
    "topk": [lambda x, it: F.topk(it, 1)],
    "windows": [lambda x, it: F.windows(it, 1)],
}
BIASES = {"alibi", "feature_bias", "relative_bias", "t5_bias"}  # of attention; none takes a node
SOURCES = {"constant", "input", "lookup", "parameter"}  # a graph stands first
TAKE_NUMBERS = {"add", "divide", "multiply", "pow", "subtract", "where", *COMPARISONS}
TAKE_PARAMETERS = TAKE_NUMBERS
TAKE_LISTS = {"mean", "sum"}

GIVEN = {
    "None": lambda x: None,
    "a list of numbers": lambda x: [1.0, 2.0],
    "a list of nodes": lambda x: [x],
    "a parameter": lambda x: SQUARE,
    "an array": lambda x: np.ones((2, 3)),
    "text": lambda x: "text",
    "True": lambda x: True,
    "a number": lambda x: 3.0,
    "a graph": lambda x: x.graph,
}
FIXES = {
    "None": "a function may have forgotten to return its node",
    "a list of nodes": "F.stack and F.concat join several",
    "a parameter": "F.parameter(graph, p) makes a parameter a node",
    "True": "x * number and x + number",
    "a number": "x * number and x + number",
    "a graph": "F.input(graph, array)",
}


def refused_by(name):
    """Names of the things that a function refuses, since they are no nodes."""
    taken = ("a number", "True") if name in TAKE_NUMBERS else ()
    taken += ("a parameter",) if name in TAKE_PARAMETERS else ()
    taken += ("a list of numbers", "a list of nodes") if name in TAKE_LISTS else ()
    return [thing for thing in GIVEN if thing not in taken]


@pytest.mark.parametrize("name", sorted(set(F.__all__) - SOURCES - BIASES))
def test_what_is_no_node_is_told_so_wherever_it_is_given(name):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 3)))
        calls = FUNCTIONS.get(name, [lambda x, it: getattr(F, name)(it)])
        for call, thing in product(calls, refused_by(name)):
            try:
                call(x, GIVEN[thing](x))
            except DtypeError as error:
                message = str(error)
            else:
                pytest.fail(f"{thing} was taken")
            assert "node" in message and "expected, got" in message, (thing, message)
            assert "fix:" in message and "test_arguments.py" in message, (thing, message)
            if name not in TAKE_NUMBERS and name not in ("concat", "stack"):
                assert FIXES.get(thing, "F.input(graph, array)") in message, (thing, message)


@pytest.mark.parametrize("join", [F.concat, F.stack])
def test_what_is_joined_is_a_list(join):
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        with pytest.raises(DtypeError, match="a list of nodes expected, got Input"):
            join(x)
        with pytest.raises(DtypeError, match="a list of nodes expected, got NoneType"):
            join(None)
        with pytest.raises(EmptyBatchError):
            join(iter([]))
        assert join(x for _ in range(2)).value.size == 4


def test_a_list_is_reduced_if_it_holds_scalars():
    with db.Graph() as graph:
        scalar, vector = F.input(graph, 1.0), F.input(graph, [1.0, 2.0])
        for bad, error in (
            ([vector], ShapeError),
            ([1.0], DtypeError),
            ([scalar, None], DtypeError),
        ):
            with pytest.raises(error, match="fix:"):
                F.sum(bad)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (2,), r"inner dimensions of \(2, 3\) @ \(2,\) differ \(3 != 2\)"),
        ((3,), (2,), r"inner dimensions of \(3,\) @ \(2,\) differ \(3 != 2\)"),
        ((2, 3), (2, 3), r"a \(2, 3\) and b \(2, 3\) differ in I \(3 != 2\)"),
        ((2, 3), (), "b has shape"),
        ((), (3,), "a has shape"),
    ],
)
def test_a_product_says_which_dimensions_differ(a, b, message):
    with db.Graph() as graph:
        left, right = F.input(graph, np.ones(a)), F.input(graph, np.ones(b))
        with pytest.raises(ShapeError, match=message):
            _ = left @ right


def test_a_dot_product_is_of_two_vectors():
    with db.Graph() as graph:
        m = F.input(graph, np.ones((2, 3)))
        with pytest.raises(ShapeError, match=r"dot of shapes \(2, 3\) and \(3,\)"):
            F.dot(m, m[0])


def test_a_matrix_times_a_vector_is_one_batch_whatever_the_lengths():
    with db.Graph() as graph:
        outputs = [
            F.input(graph, np.ones((length, 3))) @ F.input(graph, [1.0, 2.0, 3.0])
            for length in (4, 0, 1)
        ]
        assert [node.shape for node in outputs] == [(4,), (0,), (1,)]
        assert outputs[0].value.tolist() == [6] * 4
        (plan,) = graph.plans
        assert (
            len(plan.steps) == 4
        )  # inputs, the vectors as columns, products, and those as vectors


def test_ids_are_copied_to_int64():
    ids = np.array([1, 2], np.uint8)
    array = as_ids("test", ids)
    ids[0] = 9
    assert array.dtype == np.int64 and array.tolist() == [1, 2]
    assert as_ids("test", []).dtype == np.int64
    assert as_ids("test", range(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("ids", [[0.5], [[1]], 3, [True], ["a"], [None]])
def test_other_ids_raise(ids):
    with pytest.raises(db.errors.ShapeError, match="one-dimensional sequence of integers"):
        as_ids("test", ids)


def python_calls(function):
    """The functions of Python that a call of `function` runs."""
    ran = []
    sys.setprofile(
        lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None
    )
    try:
        function()
    finally:
        sys.setprofile(None)
    return ran[1:]


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda x, p: F.linear(x, p.weight, p.bias), 5),
        (lambda x, p: F.concat([x, x]), 6),
        (lambda x, p: F.cross_entropy(x, [0, 1]), 13),
    ],
)
def test_checks_of_arguments_take_few_calls_of_python(make, calls):
    layer = models.Linear(4, 3)
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 4), np.float32))
        make(x, layer)  # of a signature that is known from then on
        ran = python_calls(partial(make, x, layer))
    assert len(ran) <= calls, ran
