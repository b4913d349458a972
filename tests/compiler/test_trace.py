"""Tracing: what a cell may not do."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import GraphError, MissingParameterError, ShapeError


def weight(shape):
    return db.Parameter(np.ones(shape, np.float32))


def run(function, init=3, memory=False, params=None):
    with db.Graph() as graph:
        xs = F.constant(graph, 1.0, (2, 3))
        rows = F.constant(graph, 1.0, (4, 3)) if memory else None
        db.scan(db.cell(function), xs, init, params, rows)


def here(function):
    """The place in this file that an error message should name."""
    return rf"made at .*test_trace\.py:\d+ in {function}"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, h, p: h,
        lambda x, h, p: (h, h, h),
        lambda x, h, p: [h, h],
        lambda x, h, p: (1.0, h),
        lambda x, h, p: (h, (h, h)),
        lambda x, h, p: (h, 1.0),
        lambda x, h, p: None,
    ],
    ids=["one node", "three", "list", "number", "too many parts", "no state", "nothing"],
)
def test_a_cell_returns_output_and_next_state(wrong):
    with pytest.raises(ShapeError) as error:
        run(wrong)
    text = str(error.value)
    assert "must return (output, next state); the state has 1 part(s)" in text
    assert "fix:  `return h, h`, or `return h, (h, c)`" in text


def test_a_state_of_two_parts_is_returned_as_two():
    with pytest.raises(ShapeError, match=r"the state has 2 part\(s\)"):
        run(lambda x, state, p: (state[0], state[0]), init=(3, 3))


def test_a_state_keeps_its_shape():
    def growing(x, h, p):
        return h, F.concat([h, x])

    with pytest.raises(ShapeError) as error:
        run(growing)
    text = str(error.value)
    assert "cell 'growing': `init` has width 3, the cell's next state width 6" in text
    assert "rule: a state keeps its width from step to step" in text
    assert "fix:  init=6 for a state of that width, else project it to 3 features" in text


@pytest.mark.parametrize("place", ["in the recurrence", "as the output"])
def test_a_step_has_no_matrix(place):
    def spread(x, h, p, memory):
        rows = memory * h
        return (h, h + F.sum(rows, dim=0)) if place == "in the recurrence" else (rows, h)

    with pytest.raises(ShapeError) as error:
        run(spread, memory=True)
    text = str(error.value)
    assert "is a matrix (rows, 3), in a step of one sentence" in text
    assert "rule: what a step makes of the rows of a memory is a vector" in text
    assert "F.attention" in text


@pytest.mark.parametrize("read", ["value", "gradient"])
def test_a_value_is_not_read_in_a_cell(read):
    def peeking(x, h, p):
        return h, h * float(getattr(F.tanh(h), read).sum())

    with pytest.raises(GraphError) as error:
        run(peeking)
    assert "a cell is traced once, before there are values to read" in str(error.value)
    assert "fix:  write the cell with operations only; decide outside it" in str(error.value)


def test_nothing_is_kept_in_a_cell():
    def keeping(x, h, p):
        return h.keep(), h

    with pytest.raises(GraphError, match="keep the scan's outputs instead"):
        run(keeping)


def test_a_loss_is_no_part_of_a_cell():
    def judging(x, h, p):
        return F.cross_entropy(F.linear(h, p), [0]), h

    with pytest.raises(GraphError, match="compute it from the scan's outputs"):
        run(judging, params=weight((5, 3)))


@pytest.mark.parametrize("use", ["in an operation", "as the output"])
def test_a_node_from_outside_is_given_as_memory(use):
    with db.Graph() as graph:
        xs = F.constant(graph, 1.0, (2, 3))
        outside = F.constant(graph, 1.0, (3,))

        @db.cell
        def closing(x, h, p):
            return (outside, h) if use == "as the output" else (h, h + outside)

        with pytest.raises(GraphError, match="as `memory`") as error:
            db.scan(closing, xs, 3)
        assert "test_trace.py" in str(error.value)


def test_an_error_inside_a_cell_names_the_line_of_the_cell():
    def misfit(x, h, p):
        return h, F.linear(F.concat([x, h]), p.W)

    with pytest.raises(ShapeError, match=here("misfit")):
        run(misfit, params=SimpleNamespace(W=weight((3, 5))))


@pytest.mark.parametrize(
    ("params", "read", "pieces"),
    [
        (SimpleNamespace(U=1), lambda p: p.W, ("p.W", "SimpleNamespace; its names: U")),
        (SimpleNamespace(W=1), lambda p: p["W"], ("p['W']", "say p.W")),
        ({"W": 1}, lambda p: p.W, ("p.W", "its keys: 'W'", "say p['W']")),
        ({"W": 1}, lambda p: p["U"], ("p['U']", "its keys: 'W'", "read an existing one")),
        ([1, 2], lambda p: p[2], ("p[2]", "a list; its items: 2", "count from 0")),
        ([1, 2], lambda p: p.W, ("p.W", "say p[0]")),
        ({"a": [{}]}, lambda p: p["a"][0]["b"], ("p['a'][0]['b']", "p['a'][0] is a dict")),
    ],
)
def test_a_parameter_that_is_not_there_is_named(params, read, pieces):
    for kind in (AttributeError, KeyError, MissingParameterError):  # as `getattr` wants it
        with pytest.raises(kind) as error:
            run(lambda x, h, p: (h, F.linear(h, read(p))), params=params)
    for piece in (*pieces, "test_trace.py"):
        assert piece in str(error.value)


@pytest.mark.parametrize("params", [None, weight((3, 3)), 2.0])
@pytest.mark.parametrize("read", [lambda p: p.W, lambda p: p["W"]])
def test_what_has_no_parts_is_named(params, read):
    with pytest.raises(GraphError, match=r"reads its parameters, and (none were|one .* was) given"):
        run(lambda x, h, p: (h, F.linear(h, read(p))), params=params)
