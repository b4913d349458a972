"""Loops in C: what NumPy's compute, in float32 and float64, whatever other rows are there."""

import random
import weakref
from unittest.mock import patch

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.compiler.c import native
from dynbatch.kernels.c.runtime import library
from tests.cells import cell_cases
from tests.cells.recipe_writer import recipe
from tests.cells.step_by_step import assert_equal_outcomes, outcome, tame_outcome
from tests.marks import exhaustive
from tests.poison import poisoned_memory

pytestmark = pytest.mark.skipif(bool(library.reason()), reason="no C here")


@pytest.fixture(autouse=True)
def compile_small_loops_too():
    with patch.object(native, "WORTH_COMPILING", 0):
        yield


def assert_c_equals_numpy(cell, batch, tolerance=1e-12, **graph):
    """Values and every gradient of a scan in C are those of NumPy's."""
    with np.errstate(all="ignore"), poisoned_memory():
        found = outcome(db.scan, cell, batch, **graph)
        assert cell.programs[-1].in_c.functions(np.dtype(graph.get("dtype", "float64"))) is not None
        with library.reference_only():
            expected = outcome(db.scan, cell, batch, **graph)
    assert_equal_outcomes(found, expected, tolerance)


LSTM = cell_cases.Case(
    cell_cases.lstm, {"W": (16, 3), "U": (16, 4), "b": (16,), "d": (16,)}, (4, 4), single=False
)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_lstm_in_c_equals_numpys(zeros, dtype, threads, same_threads):
    db.set_num_threads(threads)
    batch = LSTM.batch([5, 0, 1, 3, 3, 2, 7, 1, 4], zeros, dtype)
    assert_c_equals_numpy(LSTM.cell, batch, 1e-12 if dtype == "float64" else 1e-5, dtype=dtype)


def test_a_task_of_steps_holds_the_arrays_that_c_reads():
    outcome(db.scan, LSTM.cell, LSTM.batch([2, 1]))
    functions, bias = LSTM.cell.programs[-1].in_c.functions(np.dtype("float64")), np.ones(16)
    alive = weakref.ref(bias)
    task = functions.steps(0, {"b0": bias}, [])
    del bias
    assert task.alive and alive() is not None


@pytest.mark.parametrize("recompute", [1, 2, "sqrt"])
def test_chunks_that_are_made_again_in_c_equal_numpys(recompute):
    def scan(*args, **named):
        return db.scan(*args, **named, recompute=recompute)

    batch = LSTM.batch([5, 0, 1, 3, 3, 2, 7, 1, 4])
    with poisoned_memory():
        found = outcome(scan, LSTM.cell, batch)
    with library.reference_only():
        assert_equal_outcomes(found, outcome(db.scan, LSTM.cell, batch), 1e-12)


ATTENDING = [name for name in cell_cases.CASES if "attention" in name or name == "keys_and_values"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ATTENDING)
def test_a_loop_calls_attention_to_a_memory(name, threads, dtype, same_threads):
    db.set_num_threads(threads)
    case = cell_cases.CASES[name]
    batch = case.batch([5, 0, 1, 3, 3, 2, 7, 1, 4], dtype=dtype)
    assert_c_equals_numpy(case.cell, batch, 1e-12 if dtype == "float64" else 1e-5, dtype=dtype)
    assert case.cell.programs[-1].in_c.attends


@pytest.mark.parametrize("recompute", [1, "sqrt"])
def test_attention_in_chunks_that_are_made_again(recompute):
    def scan(*args, **named):
        return db.scan(*args, **named, recompute=recompute)

    case = cell_cases.CASES["additive_attention_in_the_recurrence"]
    batch = case.batch([5, 0, 1, 3, 3, 2, 7, 1, 4])
    with poisoned_memory():
        found = outcome(scan, case.cell, batch)
    with library.reference_only():
        assert_equal_outcomes(found, outcome(db.scan, case.cell, batch), 1e-12)


def test_a_row_has_the_same_bits_alone_and_in_company():
    rng = np.random.default_rng(0)
    layer = db.models.LSTM(21, 37)
    tokens = [rng.standard_normal((n, 21)).astype(np.float32) for n in (6, 9, 1, 40, 3, 0, 17)]

    def outputs(sentences):
        with db.Graph(grad=False) as graph:
            return graph.values([layer(F.input(graph, x)) for x in sentences])

    first = [outputs([x])[0] for x in tokens]
    for count in (2, 7, 5 * 7):
        together = outputs([tokens[k % 7] for k in range(count)])
        for k, mine in enumerate(together):
            np.testing.assert_array_equal(mine, first[k % 7])


def test_calls_of_trees_in_c_equal_numpys():
    rng = np.random.default_rng(0)
    w, u, b = [db.Parameter(rng.standard_normal(shape)) for shape in ((5, 5), (5, 5), (5,))]

    @db.cell
    def join(left, right, params):
        return F.tanh(F.linear(left, w) + F.linear(right, u, b)) * F.sigmoid(left)

    def outcome_of_trees():
        for parameter in (w, u, b):
            parameter.zero_grad()
        with db.Graph(dtype="float64") as graph:
            leaves = [F.input(graph, x).keep() for x in np.sin(np.arange(45.0)).reshape(9, 5)]
            pairs = [join(a, c, None) for a, c in zip(leaves[:-1:2], leaves[1::2], strict=True)]
            root = join(join(pairs[0], pairs[1], None), join(pairs[2], leaves[8], None), None)
            loss = F.sum(root) + F.sum(pairs[3])
            graph.backward(loss)
            return [loss.value, w.grad, u.grad, b.grad, *[leaf.gradient for leaf in leaves]]

    found = outcome_of_trees()
    with library.reference_only():
        expected = outcome_of_trees()
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, reference, 1e-12, 1e-12)


def random_cells(seeds):
    """Cells with sentences whose values and gradients are tame."""
    for seed in seeds:
        made = recipe(random.Random(seed).choice, 14, side_by_side=True)
        cell, batch = made.cell(), made.batch()
        with library.reference_only():
            expected = tame_outcome(db.scan, cell, batch)
        if expected is not None:
            yield cell, batch


@pytest.mark.parametrize(
    ("first", "count"), [(0, 12), *[exhaustive(first, 25) for first in range(100, 400, 25)]]
)
def test_random_cells_in_c_equal_numpys(first, count):
    for cell, batch in random_cells(range(first, first + count)):
        assert_c_equals_numpy(cell, batch)
