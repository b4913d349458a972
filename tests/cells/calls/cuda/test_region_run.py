"""Regions of calls on a GPU: what they compute, launch, upload and take of scratch."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import strategies as st

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.calls import region_run
from dynbatch.cells.calls.cuda.region_run import DeviceRegionRun
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.cuda import fused_product
from dynbatch.errors import CheckError, NumericError
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.testing.precision import dense_gradient
from tests.cells.calls.test_calls import (
    D,
    H,
    binary,
    branching,
    called,
    compose,
    leaf,
    tree_parameters,
    trees,
)
from tests.cells.calls.test_memory_calls import (
    Sentences,
    a_memory_without_rows_that_is_read_late,
    cells_that_read_each_other,
    memories_that_several_chains_share,
    parameters,
    trees_that_attend_to_their_words,
)
from tests.cells.recipe_writer import recipe
from tests.cells.step_by_step import assert_equal_outcomes, outcome, tame_outcome
from tests.cuda import devices
from tests.marks import exhaustive
from tests.random_examples import examples

every_tree = pytest.mark.parametrize("make", [binary, branching])


def on_device(p):
    for parameter in vars(p).values():
        parameter.to("cuda")
    return p


def tree_values(make, device, **options):
    """Loss and gradients of random trees, and the graph."""
    with pytest.MonkeyPatch.context() as patch:
        if device == "cuda":
            made = tree_parameters
            patch.setitem(trees.__globals__, "tree_parameters", lambda: on_device(made()))
        return trees(make, device=device, **options)


@every_tree
def test_trees_are_those_of_the_cpu_in_two_runs_bit_by_bit(cuda, make):
    expected, _ = tree_values(make, "cpu")
    found, again = [tree_values(make, "cuda")[0] for _ in range(2)]
    for a, b, c in zip(found, again, expected, strict=True):
        assert np.array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("few", [0, 128])
@every_tree
def test_no_thread_reads_what_another_writes(monkeypatch, make, few):
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    expected, _ = tree_values(make, "cpu")
    with devices.device("gpu" if devices.has_gpu() else "checked"):
        found, _ = tree_values(make, "cuda")
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def run(program, device, **options):
    """Values and gradients of calls with memories."""
    p = parameters() if device == "cpu" else on_device(parameters())
    with db.Graph(**{"dtype": "float64", "device": device} | options) as graph:
        sentences = Sentences(graph)
        matrices = [F.stack(some) for some in program(sentences, p, lambda cell: cell)]
        loss = F.sum([F.sum((m + 1) * m) for m in matrices])
        graph.backward(loss)
        found = [loss.value, *[node.gradient for node in sentences.kept if node.rows]]
    return found + [dense_gradient(parameter) for parameter in vars(p).values()]


@pytest.mark.parametrize(
    "program",
    [
        trees_that_attend_to_their_words,
        exhaustive(a_memory_without_rows_that_is_read_late),
        exhaustive(memories_that_several_chains_share),
        exhaustive(cells_that_read_each_other),
    ],
)
def test_memories_are_read_and_given_gradients_by_one_thread_each(program):
    expected = run(program, "cpu")
    with devices.device("gpu" if devices.has_gpu() else "checked"):
        found = run(program, "cuda")
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@examples(
    6,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_random_cells(cuda, data):
    chosen = recipe(lambda options: data.draw(st.sampled_from(options)))
    cell, batch = chosen.cell(), chosen.batch()
    expected = tame_outcome(called, cell, batch)
    assume(expected is not None)
    assert_equal_outcomes(outcome(called, cell, batch, device="cuda"), expected, 1e-9)


@pytest.mark.parametrize("seed", [1028])  # a product was added twice to a sum in its place
def test_cells_that_once_failed(cuda, seed):
    chosen = recipe(random.Random(seed).choice)
    cell, batch = chosen.cell(), chosen.batch()
    expected = outcome(called, cell, batch)
    assert_equal_outcomes(outcome(called, cell, batch, device="cuda"), expected, 1e-9)


# What a run costs ---------------------------------------------------------------------------------


def launches_of(height, grad=True):
    """Launches and uploads of a run of trees that are chains, so that each level is a batch."""
    p = on_device(tree_parameters())
    with db.Graph(device="cuda", dtype="float64", grad=grad) as graph:
        losses = []
        for words in (height + 1, 3):
            xs = F.input(graph, np.ones((words, D)))
            states = [leaf(xs[k], p) for k in range(words)]
            state = states[0]
            for other in states[1:]:
                state = compose(state, other, p)
            losses.append(F.sum(state[0]))
        if grad:
            graph.backward(F.sum(losses))
        else:
            graph.forward()
    return graph.statistics.launches, graph.statistics.uploads


@pytest.mark.parametrize(("few", "forward", "both"), [(0, 4, 8), (128, 2, 5)])
def test_launches_of_a_level(cuda, monkeypatch, few, forward, both):
    """Forward: a gather, two products, a kernel. Back: a gather from readers, a kernel, products.

    Of few rows one kernel makes the products and what follows, and one those of backward.
    """
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    for grad, expected in ((False, forward), (True, both)):
        (one, uploads), (two, _) = launches_of(4, grad), launches_of(5, grad)
        assert (two - one, uploads) == (expected, 1)


def test_gathers_and_products_around_the_levels(cuda):
    """Gathers: the words, the outputs; back all arguments, the leaves' readers, the words' readers.

    Products: the words' map; back its gradient, and those of three weights.
    """
    started = queue().kernels("float64").launches
    counts = []
    for height in (4, 7):
        before, kernels, total = started["sum_terms"], started.total(), queue().launches
        launches_of(height)
        products = queue().launches - total - (started.total() - kernels)
        counts.append((started["sum_terms"] - before - 2 * height, products))
    assert counts == [(5, 5), (5, 5)]


def test_a_region_takes_the_scratch_that_it_says(cuda, monkeypatch):
    used = []

    class Watched(Scratch):
        def __init__(self, array):
            super().__init__(array)
            used.append((self, array.size))

    monkeypatch.setattr(region_run, "Scratch", Watched)
    for make in (binary, branching):
        tree_values(make, "cuda")
    with db.Graph("cuda", "float64", grad=False) as graph:
        xs, p = F.input(graph, np.ones((2, D))), on_device(tree_parameters())
        compose(leaf(xs[0], p), leaf(xs[1], p), p)[0].value  # noqa: B018
    assert len(used) == 2 * 2 + 1
    assert [scratch._used for scratch, _ in used] == [size for _, size in used]


def test_two_losses_of_one_forward(cuda):
    found = []
    for device in ("cpu", "cuda"):
        p = tree_parameters() if device == "cpu" else on_device(tree_parameters())
        with db.Graph(device, "float64") as graph:
            xs = F.input(graph, np.linspace(-1, 1, 2 * D).reshape(2, D)).keep()
            h, c = compose(leaf(xs[0], p), leaf(xs[1], p), p)
            losses = [F.sum(h * h), F.sum(c)]
            graph.forward()
            for loss in losses:
                graph.backward(loss)
            found.append([xs.gradient, dense_gradient(p.L), dense_gradient(p.b)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


# What computes by itself --------------------------------------------------------------------------


class Cubed(db.Operation):
    """A user's type, which computes at once."""

    retains = db.Retain(inputs=True)

    def infer_shape(self, x):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        write(y.values, read(x.values) ** 3)

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        write(dx.values, 3 * read(batch.input(0).values) ** 2 * read(dy.values))


def read(array):
    return array if isinstance(array, np.ndarray) else array.get()


def write(array, values):
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        array.set(np.ascontiguousarray(values))


@db.cell
def cubing(h, x, p):
    return F.tanh(F.linear(Cubed(h), p.U) + x)


@db.cell
def adding(h, x, p):
    return F.tanh(F.linear(h, p.U)) * x


@pytest.mark.parametrize("other", [cubing, adding])
def test_a_user_s_own_type_in_a_cell(cuda, other):
    found = []
    for device in ("cpu", "cuda"):
        rng = np.random.default_rng(0)
        p = SimpleNamespace(U=db.Parameter(rng.normal(size=(H, H))).to(device))
        with db.Graph(device, "float64") as graph:
            losses, inputs = [], []
            for length in (5, 2, 9):
                xs = F.input(graph, rng.normal(size=(length, H))).keep()
                h = xs[0]
                for k in range(1, length):
                    h = (cubing, other)[k % 2](h, xs[k], p)
                losses.append(F.sum(h))
                inputs.append(xs)
            graph.backward(F.sum(losses))
            found.append([*[xs.gradient for xs in inputs], dense_gradient(p.U)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


# Found faults -------------------------------------------------------------------------------------


def test_check_names_the_call_whose_gradient_is_wrong(cuda, monkeypatch):
    inside = DeviceRegionRun._inside

    def without_the_last_reader(self, *args):
        for each in inside(self, *args):
            table = each.table
            starts = np.minimum(table.starts, table.rows.size - 1)
            yield each._replace(table=table._replace(starts=starts))

    monkeypatch.setattr(DeviceRegionRun, "_inside", without_the_last_reader)
    with pytest.raises(CheckError, match=r"leaf #.*gradient of result [01], the sum over"):
        tree_values(binary, "cuda", check=True)


@db.cell
def overflowing(h, x):
    return F.exp(1000.0 * h) * x


def test_guard_names_the_call_that_is_not_finite(cuda):
    with db.Graph("cuda", "float64", guard=True) as graph:
        xs = F.input(graph, np.ones((2, D)))
        h = overflowing(overflowing(D, xs[0]), xs[1])
        with pytest.raises(NumericError, match=r"overflowing #[\s\S]*its result has 3 of 3"):
            h.value  # noqa: B018
