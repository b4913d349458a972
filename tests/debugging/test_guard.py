"""`Graph(guard=True)` names the first node with NaN or infinity, forward and backward."""

import inspect

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import NumericError
from dynbatch.testing.probe import backward, outputs_of, probe, random_like
from tests.marks import quick
from tests.messages import raised
from tests.nodes.test_contract import CASES, as_nodes, over, parameters_of, sentences_of
from tests.reference_models import Tagger, gradients, sentences, train


def refused(action, *pieces):
    """The message of the NumericError that `action` raises; it has these pieces, in order."""
    return raised(NumericError, action, *pieces)


def rows(graph, *numbers):
    return [F.input(graph, [[1.0, 2.0]] * n) for n in numbers]


def test_a_healthy_graph_gives_the_same(device):
    plain, guarded = Tagger(), Tagger()
    for parameter in [*plain.parameters(), *guarded.parameters()]:
        parameter.to(device)
    batch = sentences([3, 1, 7, 0, 2])
    losses = [train(plain, batch, device=device), train(guarded, batch, device=device, guard=True)]
    assert losses[0] == losses[1]
    for parameter in [*plain.parameters(), *guarded.parameters()]:
        parameter.to("cpu")
    for found, expected in zip(gradients(guarded), gradients(plain), strict=True):
        assert np.array_equal(found, expected)


@over(quick(CASES[::3], CASES))
def test_every_node_type_passes(case):
    with db.Graph(dtype="float64", guard=True, seed=0) as graph:
        outputs = []
        for arguments in sentences_of(case):
            given = [*as_nodes(graph, arguments), *parameters_of(case)]
            outputs += outputs_of(case.build, graph, given)
        backward(graph, probe(outputs, random_like(outputs, 3)))


@pytest.mark.parametrize("policy", ["by_agenda", "one_by_one"])
def test_a_value_names_node_sentence_line_and_what_it_read(device, policy):
    with db.Graph(device, guard=True, policy=policy) as graph:
        xs = rows(graph, 2, 3, 1)
        zeros = F.input(graph, [[1.0, 0.0], [0.5, 0.0]])
        ys = [F.tanh(F.log(x)) for x in xs]
        logs, line = F.log(zeros), inspect.currentframe().f_lineno
        worse = F.sum(F.exp(-logs) * 0.0)
        message = refused(
            lambda: worse.value,
            f"{logs.label()}, sentence 3: its value has 2 of 4 numbers that are not finite, "
            "the first -inf at (0, 1).",
            f"a  {zeros.label()}",
            f"{zeros.label()} is from 0 to 1",
            "in forward of a batch of",
            "rule:",
            f"made at {__file__}:{line} in test_a_value_names",
        )
        assert "Exp" not in message
        assert ys[0].shape == (2, 2)


def test_a_gradient_names_the_node_whose_backward_made_it(device):
    with db.Graph(device, guard=True) as graph:
        x = F.input(graph, [[1.0, 0.0]]).keep()
        root = F.sqrt(x * x)
        loss = F.sum(F.tanh(root))
        refused(
            lambda: graph.backward(loss),
            f"{root.label()}, sentence 0: its gradient for {root.inputs[0].label()} has 1 of 2",
            "the first inf at (0, 1)",
            f"the gradient of {root.label()} is from",
            "in backward of a batch of 1 Sqrt",
            "made at",
        )
        assert loss.value == pytest.approx(np.tanh(1))  # the graph is as it was


def test_what_was_given_is_named(device):
    weight = db.Parameter(np.array([[1.0, np.nan]], "float32"), "spoilt")
    weight.to(device)
    with db.Graph(device, guard=True) as graph:
        good, bad = F.input(graph, [1.0]), F.input(graph, [np.inf, 0.0])
        message = refused(
            lambda: bad.value, f"{bad.label()}, sentence 1", "a given array is finite"
        )
        assert good.label() not in message.split("\n")[0]
    with db.Graph(device, guard=True) as graph:
        y = F.linear(F.input(graph, [1.0, 1.0]), weight)
        refused(lambda: y.value, y.label(), "parameter 'spoilt' (1, 2) has 1 of 2 numbers", "nan")


def test_a_gradient_of_a_parameter_is_named():
    weight = db.Parameter(np.array([[1e-300, 1.0]]), "large")
    with db.Graph(dtype="float64", guard=True) as graph:
        y = F.linear(F.input(graph, [1e300, 1.0]), weight)
        loss = F.sum(y * 1e10)
        refused(
            lambda: graph.backward(loss), "gradient for parameter 'large' has 1 of 2", "in backward"
        )
    assert weight.grad is None


def test_a_sum_of_gradients_that_overflows_is_named(device):
    with db.Graph(device, guard=True) as graph:
        x = F.tanh(F.input(graph, [0.5]).keep())
        y = F.sum(x * 3e38) + F.sum(F.tanh(x) * 3e38) * 1e-30
        y = F.sum(x * 3e38) + y
        refused(lambda: graph.backward(y), f"{x.label()}, sentence 0: ", "gradient", "not finite")


def test_a_parameter_whose_gradients_add_up_to_infinity_is_named():
    weight = db.Parameter(np.array([1.0], "float32"), "sum")
    for attempt in range(2):
        with db.Graph(guard=True) as graph:
            loss = F.sum(F.parameter(graph, weight) * 3e38)
            if attempt:
                refused(lambda: graph.backward(loss), "parameter 'sum'", "1 of 1")  # noqa: B023
            else:
                graph.backward(loss)


def test_a_scan_is_named_with_the_step():
    @db.cell
    def doubling(x, h, p):
        h = h * 1e30
        return h + x, h

    with db.Graph(guard=True) as graph:
        ys, _ = db.scan(doubling, F.input(graph, [[1.0]] * 3), init=F.constant(graph, 1.0, (1,)))
        refused(lambda: ys.value, "Scan #", "the first inf at (1, 0)")


def test_a_loss_that_is_not_finite_tells_about_the_guard():
    with db.Graph() as graph:
        loss = F.sum(F.log(F.input(graph, [0.0]).keep()))
        refused(lambda: graph.backward(loss), "db.Graph(guard=True)")


# Calls of cells ----------------------------------------------------------------------------------


@db.cell
def root_of_sum(left, right):
    """Not differentiable at 0; NaN below it."""
    total = F.sqrt(left + right)
    return total, total * 2.0


def sentences_of_calls(graph, number, at=2):
    """Three sentences of three calls each; the second call of sentence `at` gets a number."""
    found = []
    for sentence in range(3):
        xs = F.input(graph, [[1.0, 1.0], [1.0, number if sentence == at else 1.0]]).keep()
        first = root_of_sum(xs[0], 2)
        second, line = root_of_sum(first[0], xs[1]), inspect.currentframe().f_lineno
        found.append((second, root_of_sum(second[0], db.total([first[1], second[1]]))))
    return found, line


def test_a_value_of_a_call_names_the_call_and_its_line():
    with db.Graph(guard=True) as graph:
        found, line = sentences_of_calls(graph, -5.0)
        call = found[2][0]
        message = refused(
            graph.forward,
            f"{call.label()}, sentence 2: its result 0 has 1 of 2 numbers that are not finite, "
            "the first nan at (1,).",
            "a  root_of_sum #", "b  Row #",
            "argument 0 is from 1 to 1", "argument 1 is from -5 to 1",
            "in forward of 3 batches of 9 calls of root_of_sum",
            f"made at {__file__}:{line} in sentences_of_calls",
        )  # fmt: skip
        assert "infinite" not in message
        graph.values([found[0][0][0]])  # what the wrong sentence does not need


def test_a_gradient_inside_a_region_names_the_call():
    with db.Graph(guard=True) as graph:
        found, line = sentences_of_calls(graph, -1.0, at=1)
        call = found[1][0]
        loss = F.sum([F.sum(F.tanh(last[0])) for _, last in found])
        refused(
            lambda: graph.backward(loss),
            f"{call.label()}, sentence 1: its gradient for argument 0 has 1 of 2",
            "the first inf at (1,)",
            "argument 1 is from -1 to 1", "the gradient of what it returned is from",
            "in backward of 3 batches of 9 calls",
            f"made at {__file__}:{line} in sentences_of_calls",
        )  # fmt: skip


@pytest.mark.parametrize("stacked", [True, False])
def test_a_sum_of_gradients_that_overflows_behind_calls(stacked):
    with db.Graph(guard=True) as graph:
        calls = [root_of_sum(F.input(graph, [k]).keep(), 1) for k in (1.0, 0.25)]
        large = [F.input(graph, [number]) for number in (0.0, 3e38)]
        roots = db.stack(calls)[0] if stacked else [call[0] for call in calls]
        products = [roots[k] * large[k] for k in range(2) for _ in range(2)]
        owner = roots if stacked else calls[1]
        refused(
            lambda: graph.backward(F.sum([F.sum(product * 1e-38) * 1e38 for product in products])),
            f"{owner.label()}", "its gradient, after", "added to it, has 1 of 2",
            "inf at", f"made at {__file__}",
        )  # fmt: skip


def test_an_error_of_a_second_call_is_at_the_line_of_the_user():
    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        root_of_sum(x, 1)
        with pytest.raises(db.errors.ShapeError) as error:
            root_of_sum(x, 0)
        assert f"made at {__file__}:" in str(error.value)
