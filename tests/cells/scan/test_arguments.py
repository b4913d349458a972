"""The arguments of a scan, above all sentences side by side; and the errors of wrong ones."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.scan.scan import Scan
from dynbatch.errors import ArgumentError, DtypeError, DynbatchError, GraphError, ShapeError
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.operation import signature_type
from dynbatch.nodes.shape.join import Concat
from dynbatch.testing.precision import dense_gradient
from tests.cells.calls.test_calls import called
from tests.cells.cell_cases import CASES
from tests.cells.step_by_step import Batch, assert_equal_outcomes, outcome, sentences, step_by_step

H = 4
WIDTHS = (3, 2, 5)

# Sentences side by side ---------------------------------------------------------------------------


@db.cell
def gated(tokens, state, p):
    x, z, u = tokens
    h, c = state
    f = F.sigmoid(F.linear(x, p.W, p.b) + F.linear(z, p.V) + F.linear(h, p.U))
    c = f * c + (1 - f) * F.tanh(F.linear(u, p.K))
    return F.concat([c, z]), (F.tanh(c), c)


@db.cell
def attending(tokens, h, p, memory):
    x, z, u = tokens
    h = F.tanh(F.linear(x, p.W) * F.sum(z) + F.attention(F.linear(u, p.K) + h, memory))
    return h, h


@db.cell
def plain(tokens, h, p):
    x, _, _ = tokens
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    return F.dropout(h, 0.0), h


CELLS = {"gated": (gated, (H, H)), "attending": (attending, (H,)), "plain": (plain, (H,))}
every_cell = pytest.mark.parametrize("name", CELLS)


def side_by_side(name, lengths=(3, 1, 5, 0, 2)):
    """Three sentences at each step, with their parameters."""
    cell, states = CELLS[name]
    rng = np.random.default_rng(0)
    shapes = {"W": (H, 3), "V": (H, 2), "K": (H, 5), "U": (H, H), "b": (H,)}
    p = SimpleNamespace(**{k: db.Parameter(rng.normal(size=s), k) for k, s in shapes.items()})
    given = sentences(3, states, lengths, memories=(H,) if name == "attending" else ())
    for sentence in given:
        rows = len(sentence.xs)
        sentence.xs = tuple([rng.standard_normal((rows, width)) for width in WIDTHS])
    return cell, Batch(given, p, list(vars(p).values()), single=len(states) == 1)


@every_cell
@pytest.mark.parametrize("recompute", [None, 2])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_step_gets_a_token_of_each_sentence(name, reverse, recompute):
    cell, batch = side_by_side(name)
    batch.reverse = reverse

    def run(*given):
        return db.scan(*given, recompute=recompute)

    assert_equal_outcomes(outcome(run, cell, batch), outcome(step_by_step, cell, batch), 1e-11)


@every_cell
def test_side_by_side_on_a_gpu(cuda, name):
    cell, batch = side_by_side(name, (2, 0, 3))
    found = outcome(db.scan, cell, batch, device="cuda")
    assert_equal_outcomes(found, outcome(step_by_step, cell, batch), 1e-11)


def test_calls_of_the_same_cell_take_a_tuple_of_tokens():
    cell, batch = side_by_side("gated", (3, 1, 2))

    def run(cell, xs, init, params, memory, reverse):
        state, outputs = init, []
        for t in range(xs[0].rows):
            y, state = cell(tuple([x[t] for x in xs]), state, params)
            outputs.append(y)
        return F.stack(outputs), state

    assert_equal_outcomes(outcome(run, cell, batch), outcome(step_by_step, cell, batch), 1e-11)


def test_each_sentence_is_mapped_once_for_all_tokens_and_none_is_joined():
    cell, batch = side_by_side("gated")
    with db.Graph(dtype="float64") as graph:
        for sentence in batch.sentences:
            xs = tuple([F.input(graph, x) for x in sentence.xs])
            db.scan(cell, xs, (H, H), batch.params)
        graph.forward()
        kinds = [signature_type(step.signature) for step in graph.plans[0].steps]
    assert kinds.count(LinearMap) == 3  # of all tokens of all sentences, ahead of the loop
    assert [op.is_linear for op in cell.programs[-1].program.ops].count(True) == 1
    assert kinds.count(Scan) == 1
    assert kinds.count(Concat) == 1  # the outputs: nothing is copied to bring sentences together


def test_sentences_side_by_side_have_one_length():
    cell, batch = side_by_side("gated")
    with db.Graph(dtype="float64") as graph:
        xs = [F.constant(graph, 1.0, (rows, width)) for rows, width in zip((4, 4, 3), WIDTHS)]  # noqa: B905
        with pytest.raises(ShapeError) as error:
            db.scan(cell, tuple(xs), (H, H), batch.params)
    assert "xs[0] has 4 rows, xs[1] has 4 rows, xs[2] has 3 rows" in str(error.value)
    assert "test_arguments.py" in str(error.value)


@pytest.mark.parametrize("wrong", ["a list", "nothing", "a vector", "an array", "another graph"])
def test_what_is_no_tuple_of_sentences_is_refused(wrong):
    cell, batch = side_by_side("gated")
    with db.Graph(dtype="float64") as graph, db.Graph(dtype="float64") as other:
        xs = [F.constant(graph, 1.0, (4, width)) for width in WIDTHS]
        given, error, match = {
            "a list": (xs, DtypeError, r"xs: a node expected.*\n.*a tuple"),
            "nothing": ((), ShapeError, "there is no sentence"),
            "a vector": ((*xs[:2], xs[2][0]), ShapeError, r"xs\[2\] has shape \(5,\)"),
            "an array": ((xs[0], np.ones((4, 2))), DtypeError, r"xs\[1\]: a node expected"),
            "another graph": (
                (*xs[:2], F.constant(other, 1.0, (4, 5))), GraphError, "different graphs",
            ),
        }[wrong]  # fmt: skip
        with pytest.raises(error, match=match):
            db.scan(cell, given, (H, H), batch.params)


# The first state ----------------------------------------------------------------------------------


def test_what_a_call_returned_is_a_first_state_of_as_many_parts():
    case = CASES["lstm"]
    batch = case.batch((2, 3))
    found = []
    for run in (called, db.scan):
        with db.Graph(dtype="float64") as graph:
            xs = F.input(graph, batch.sentences[1].xs)
            _, state = case.cell(xs[0], (H, H), batch.params)
            _, (h, c) = run(case.cell, xs, state, batch.params)
            found.append([h.value, c.value])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("init", "fix"),
    [
        (None, "init=64 for a state of 64 zeros"),
        ([3, 3], r"make the list a tuple, init=\(3, 3\)"),
        ((3, [3]), r"make the list a tuple"),
        ((), "rule: a vector"),
        (np.zeros(3), r"F\.input\(graph, array\)"),
        (True, "a width is 1 or more"),
        ((3, None), r"init=\(64, 64\) for two parts"),
        ((3, 0), "take one row of a matrix"),
    ],
)
def test_what_is_no_first_state_is_told_its_fix(init, fix):
    with db.Graph() as graph, pytest.raises(ShapeError, match=fix) as error:
        db.scan(CASES["lstm"].cell, F.constant(graph, 1.0, (2, 3)), init)
    assert "test_arguments.py" in str(error.value)


@pytest.mark.parametrize(
    ("init", "pieces"),
    [
        (5, ("`init` has width 5, the cell's next state width 4", "fix:  init=4 for")),
        ((4, 5), ("part 1 of `init` has width 5, the cell's next state width 4", "init=(4, 4)")),
    ],
)
def test_a_first_state_of_another_width_is_told_the_right_one(init, pieces):
    @db.cell
    def narrow(x, state, p):
        h = F.sum(state) if p == "scalar" else F.linear(x, p)
        return h, h if not isinstance(state, tuple) else (h, h)

    W = db.Parameter(np.ones((4, 3), np.float32))
    with db.Graph() as graph, pytest.raises(ShapeError) as error:
        db.scan(narrow, F.constant(graph, 1.0, (2, 3)), init, W)
    for piece in pieces:
        assert piece in str(error.value)


@pytest.mark.parametrize(
    ("name", "init", "piece"),
    [
        ("gru", 5, "init: 5 is given; with init=4 the cell's next state has its widths"),
        ("lstm", (5, 4), "init: (5, 4) is given; with init=(4, 4) the cell's next"),
        ("attending", 3, "with init=4 the cell's next"),
    ],
)
def test_a_first_state_that_fails_inside_of_the_cell_is_told_the_right_one(name, init, piece):
    with db.Graph(dtype="float64") as graph, pytest.raises(ShapeError) as error:
        if name in CELLS:
            cell, batch = side_by_side(name)
            xs = tuple([F.constant(graph, 1.0, (2, width)) for width in WIDTHS])
            db.scan(cell, xs, init, batch.params, F.constant(graph, 1.0, (2, H)))
        else:
            case = CASES[name]
            db.scan(case.cell, F.constant(graph, 1.0, (2, 3)), init, case.batch().params)
    assert piece in str(error.value)
    assert "made at" in str(error.value)


@pytest.mark.parametrize(
    ("init", "piece"),
    [
        (5, "init: 5 is given; with init=4 the cell's next"),
        ((4, 4), "init: (4, 4) is given; with init=4 the cell's next"),
    ],
)
def test_a_first_state_beside_the_token_is_told_the_right_one(init, piece):
    @db.cell
    def beside(x, h, W):
        h = F.tanh(F.linear(F.concat([x, h]), W))
        return h, h

    W = db.Parameter(np.ones((4, 7), np.float32))
    with db.Graph() as graph, pytest.raises(DynbatchError) as error:
        db.scan(beside, F.constant(graph, 1.0, (2, 3)), init, W)
    assert piece in str(error.value)
    last = str(error.value).splitlines()[-1]
    assert last.startswith(f"  made at {__file__}:")
    assert last.endswith("in test_a_first_state_beside_the_token_is_told_the_right_one")


@pytest.mark.parametrize(
    ("function", "memory", "pieces"),
    [
        (lambda x, h: (h, h), None, ("it takes (x, h)", "cell(x, state, params);")),
        (lambda x, h, p: (h, h), [[1.0]], ("gives it 4 arguments", "params, memory);")),
    ],
)
def test_a_cell_with_too_few_arguments_is_told_those_of_a_scan(function, memory, pieces):
    with db.Graph() as graph, pytest.raises(ArgumentError) as error:
        keys = None if memory is None else F.input(graph, memory)
        db.scan(db.cell(function), F.constant(graph, 1.0, (2, 3)), 3, memory=keys)
    for piece in pieces:
        assert piece in str(error.value)


def test_a_next_state_that_is_a_number_is_told_so():
    @db.cell
    def summed(x, h, p):
        return h, F.sum(h + x)

    with db.Graph() as graph, pytest.raises(ShapeError, match="return a vector of 3 features"):
        db.scan(summed, F.constant(graph, 1.0, (2, 3)), 3)


# Loops that run no step ---------------------------------------------------------------------------


@db.cell
def two_parts(x, state, p):
    h, c = state
    c = F.tanh(F.linear(x, p.W) + F.linear(h, p.U)) + c
    return c, (F.sigmoid(c), c)


def loop_loss(graph, run, length, p, init):
    """A loss over outputs and last state, as a user writes it, for sentences of any length."""
    xs = F.input(graph, np.sin(np.arange(length * 3)).reshape(length, 3))
    if run == "scan":
        ys, (h, c) = db.scan(two_parts, xs, init, p)
    else:
        state, outputs = db.initial_state(graph, init), []
        for t in range(xs.rows):
            y, state = two_parts(xs[t], state, p)
            outputs.append(y)
        h, c = state
        ys = db.stack(outputs, like=c)
    classes = F.cross_entropy(F.linear(ys, p.V), np.arange(length) % 2)
    return classes + F.sum(F.concat([h, F.tanh(c)]) ** 2) + F.cross_entropy(F.linear(c, p.V), 1)


@pytest.mark.parametrize("lengths", [(0,), (2, 0, 3), (0, 0)])
@pytest.mark.parametrize("name", ["widths", "parameters", "both"])
def test_a_loop_of_calls_needs_no_special_case_for_empty_sentences(name, lengths, device):
    rng, found = np.random.default_rng(0), []
    shapes = {"W": (H, 3), "U": (H, H), "V": (2, H), "start": (H,), "other": (H,)}
    p = SimpleNamespace(**{k: db.Parameter(rng.normal(size=s), k) for k, s in shapes.items()})
    inits = {"widths": (H, H), "parameters": (p.start, p.other), "both": (H, p.other)}
    for run in ("scan", "calls"):
        for parameter in vars(p).values():
            parameter.to(device).zero_grad()
        with db.Graph(dtype="float64", device=device) as graph:
            loss = F.sum([loop_loss(graph, run, n, p, inits[name]) for n in lengths])
            graph.backward(loss)
            found.append([loss.value, *map(dense_gradient, vars(p).values())])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("use", [F.tanh, lambda h: F.linear(h, db.Parameter(np.ones((2, 4))))])
@pytest.mark.parametrize("init", [4, (4, 4)])
def test_a_width_that_no_step_has_replaced_is_told_of_initial_state(use, init):
    with pytest.raises(DtypeError, match=r"db\.initial_state\(graph, width\)"):
        use(init)


def test_what_stack_cannot_be_like():
    with db.Graph() as graph:
        for wrong in (4, F.constant(graph, 1.0), F.constant(graph, 1.0, (2, 3))):
            with pytest.raises(ShapeError, match=r"like=.* is not a vector"):
                db.stack([], like=wrong)
        h, c = db.stack([], like=(F.constant(graph, 1.0, (3,)), F.constant(graph, 1.0, (2,))))
        assert (h.shape, c.value.shape) == ((0, 3), (0, 2))
