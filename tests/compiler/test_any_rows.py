"""Cells whose operators, or shapes, follow the rows of a memory."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from tests.cells.calls.test_calls import called
from tests.cells.step_by_step import Batch, assert_equal_outcomes, outcome, sentences, step_by_step

D = 3
ROWS = (2, 3, 0, 4, 2)


def vector(x, p):
    return F.parameter(x.graph, p.v)


# Each gives a vector (D,) of the sum of token and state, and the memory. Those of the first group
# are one program for memories of any number of rows.
ANY_ROWS = {
    "values beside a repeated vector": lambda v, p, m: F.attention(
        v, m, m + F.expand(vector(v, p), m.shape)
    ),
    "a repeated vector mapped": lambda v, p, m: F.attention(
        v, F.linear(F.expand(vector(v, p), m.shape), p.W) * m
    ),
    "a repeated summary": lambda v, p, m: F.attention(
        v, F.expand(F.sum(m, dim=0), m.shape) + m
    ),
    "all but the ends": lambda v, p, m: F.attention(v, m[1:], m[:-1]),
    "a choice between rows and a number": lambda v, p, m: F.attention(v, F.where(m > 0, m, 0.5)),
    "a choice between rows and a vector": lambda v, p, m: F.attention(
        v, F.where(vector(v, p) > 0, m, F.expand(vector(v, p), m.shape))
    ),
    "a number of each row": lambda v, p, m: v + F.sum(m * F.expand(vector(v, p), m.shape)),
}  # fmt: skip
BY_ROWS = {
    "values that are a repeated vector": lambda v, p, m: F.attention(
        v, m, F.expand(vector(v, p), m.shape)
    ),
    "a repeated vector squashed and summed": lambda v, p, m: v
    + F.sum(F.tanh(F.expand(vector(v, p), m.shape)), dim=0),
    "a product of repeated vectors": lambda v, p, m: F.attention(
        v, F.expand(F.sum(m, dim=0), m.shape) * F.expand(vector(v, p), m.shape)
    ),
    "a repeated vector joined to rows": lambda v, p, m: F.linear(
        F.sum(F.concat([m, F.expand(vector(v, p), m.shape)]), dim=0), p.K
    ),
    "a repeated vector without a memory": lambda v, p, m: F.attention(
        v, F.expand(vector(v, p), (5, D))
    ),
    "the last row": lambda v, p, m: v + m[-1] if m.rows else v,
    "the first row": lambda v, p, m: v + m[0] if m.rows else v,
    "row by row": lambda v, p, m: sum([m[k] for k in range(m.rows)], start=v),
    "as often as there are rows": lambda v, p, m: v * float(m.rows),
    "the mean": lambda v, p, m: v + F.sum(m, dim=0) / (m.rows + 1),
    "twice where there are two": lambda v, p, m: v + F.sum(m, dim=0) * (1 + (m.rows > 1)),
    "a constant for each row": lambda v, p, m: v
    + F.sum(F.constant(v.graph, 1.0, (m.rows, D)), dim=0),
    "rows twice": lambda v, p, m: v + F.sum(F.repeat(m, 2), dim=0),
}  # fmt: skip
every_body = pytest.mark.parametrize("name", [*ANY_ROWS, *BY_ROWS])


def made(name, lengths=(3, 1, 2, 4, 0)):
    """A cell, and sentences with memories of different rows."""
    body = (ANY_ROWS | BY_ROWS)[name]

    @db.cell
    def step(x, h, p, memory):
        h = F.tanh(body(x + h, p, memory))
        return h, h

    rng = np.random.default_rng(0)
    p = SimpleNamespace(
        v=db.Parameter(rng.normal(size=D), "v"),
        W=db.Parameter(rng.normal(size=(D, D)), "W"),
        K=db.Parameter(rng.normal(size=(D, 2 * D)), "K"),
    )
    given = sentences(D, (D,), lengths)
    for sentence, rows in zip(given, ROWS, strict=False):
        sentence.memories = (rng.standard_normal((rows, D)),)
    return step, Batch(given, p, list(vars(p).values()))


@every_body
@pytest.mark.parametrize("run", [db.scan, called], ids=["scan", "calls"])
def test_what_follows_the_rows_of_a_memory_does_so_in_each_sentence(run, name):
    cell, batch = made(name)
    expected = outcome(step_by_step, cell, batch)
    assert_equal_outcomes(outcome(run, cell, batch), expected, 1e-11)


@pytest.mark.parametrize("name", ["values that are a repeated vector"])
def test_on_a_gpu_too(cuda, name):
    cell, batch = made(name, (2, 1, 0))
    expected = outcome(step_by_step, cell, batch)
    assert_equal_outcomes(outcome(db.scan, cell, batch, device="cuda"), expected, 1e-11)


@every_body
def test_programs_are_as_many_as_the_rows_ask_for(name):
    cell, batch = made(name)
    outcome(db.scan, cell, batch)
    assert len(cell.programs) == (1 if name in ANY_ROWS else len(set(ROWS)))


@pytest.mark.parametrize("read", ["the token", "the state"])
def test_a_token_or_state_repeated_over_rows_is_a_program_by_rows(read):
    @db.cell
    def step(x, h, p, memory):
        rows = F.expand(x if read == "the token" else h, memory.shape)
        return h, h + x + F.sum(rows, dim=0)

    with db.Graph() as graph:
        for rows in (4, 2):
            memory = F.constant(graph, 1.0, (rows, D))
            _, last = db.scan(step, F.constant(graph, 1.0, (2, D)), D, None, memory)
            expected = 2 * (1 + rows) if read == "the token" else 2 + rows
            assert last.value.tolist() == [expected] * D


def test_an_error_of_a_cell_does_not_part_its_sentences():
    cell, batch = made("values beside a repeated vector")
    with db.Graph(dtype="float64") as graph:
        memory = F.constant(graph, 1.0, (4, D + 1))
        with pytest.raises(ShapeError):
            db.scan(cell, F.constant(graph, 1.0, (2, D)), D, batch.params, memory)
    outcome(db.scan, cell, batch)
    assert len(cell.programs) == 1


def test_a_cell_that_follows_the_rows_of_one_memory_takes_any_rows_of_another():
    @db.cell
    def last_of_narrow(x, h, params, memory):
        seen = memory[-1] if memory.width == D else F.attention(h, memory, memory)
        h = F.tanh(h + F.sum(seen))
        return h, h

    with db.Graph() as graph:
        for width in (D, D + 1):
            for rows in (2, 5):
                memory = F.constant(graph, 1.0, (rows, width))
                db.scan(last_of_narrow, F.constant(graph, 1.0, (3, D)), width, memory=memory)
    assert len(last_of_narrow.programs) == 2 + 1


def test_what_is_returned_may_follow_the_rows_of_a_memory():
    def both(x, memory):
        return F.tanh(x), F.sigmoid(x + F.sum(memory, dim=0))

    @db.cell
    def step(x, h, params, memory):
        a, b = both(x, memory)
        return (a if memory.rows > 5 else b), b

    @db.cell
    def pair(x, memory):
        a, b = both(x, memory)
        return (a, b) if memory.rows > 5 else (b, a)

    with db.Graph() as graph:
        for rows in (2, 9):
            xs, memory = F.constant(graph, 1.0, (1, D)), F.constant(graph, 1.0, (rows, D))
            expected = both(xs[0], memory)[rows <= 5]
            outputs, _ = db.scan(step, xs, D, None, memory)
            assert np.array_equal(outputs.value[0], expected.value)
            assert np.array_equal(pair(xs[0], memory)[0].value, expected.value)


@pytest.mark.parametrize("run", [db.scan, called], ids=["scan", "calls"])
def test_rows_of_several_memories_may_decide_together(run):
    @db.cell
    def step(x, h, p, memory):
        a, b = memory
        h = F.tanh(x + h + F.sum(a, dim=0) - F.sum(b, dim=0) * float(a.rows - b.rows))
        return h, h

    batched = sentences(D, (D,), (3, 1, 2))
    for sentence, rows in zip(batched, ((2, 2), (5, 2), (1, 4)), strict=True):
        sentence.memories = tuple([np.ones((count, D)) for count in rows])
    batch = Batch(batched, None, [])
    assert_equal_outcomes(outcome(run, step, batch), outcome(step_by_step, step, batch), 1e-11)


def test_a_cell_may_divide_by_the_rows_of_its_memory():
    @db.cell
    def mean(x, h, p, memory):
        h = h + x * (1 / memory.rows)
        return h, h

    with db.Graph() as graph:
        memory = F.constant(graph, 1.0, (4, D))
        _, last = db.scan(mean, F.constant(graph, 1.0, (2, D)), D, None, memory)
        assert last.value.tolist() == [0.5] * D


def test_a_cell_may_decide_by_more_rows_than_are_few():
    @db.cell
    def step(x, h, p, memory):
        y = F.tanh(x) if len(memory) > 50 else F.sigmoid(x)
        return y, h + y

    with db.Graph() as graph:
        for rows in (3, 60, 3):
            xs, memory = F.constant(graph, 1.0, (1, D)), F.constant(graph, 1.0, (rows, D))
            expected = (F.tanh if rows > 50 else F.sigmoid)(xs[0]).value
            _, last = db.scan(step, xs, D, None, memory)
            assert np.array_equal(last.value, expected)
            assert np.array_equal(step(xs[0], D, None, memory)[0].value, expected)
