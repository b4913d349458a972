"""Gradients that are equal share one place as long as nobody adds to one and reads another."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.execution.executor import Executor
from dynbatch.batcher.planning.run_plan import RunPlanner
from tests.marks import quick
from tests.poison import poisoned_memory

WIDTH = 4


def parameter(*shape):
    return db.Parameter(np.random.default_rng(len(shape)).uniform(0.2, 1, shape).astype("f4"))


def random_network(x, weight, bias, seed):
    """Sums of earlier values, and functions of them, in a random order."""
    generator = np.random.default_rng(seed)
    made = [x]
    for _ in range(12):
        a, b = [made[k] for k in generator.integers(max(0, len(made) - 4), len(made), 2)]
        functions = (
            lambda a, b: a + b,
            lambda a, b: a + F.tanh(b),
            lambda a, b: F.layer_norm(a, bias, bias) + b,
            lambda a, b: F.linear(a, weight) - b,
        )
        made.append(functions[generator.integers(len(functions))](a, b))
    return F.sum(F.sum(made[-1] * made[-2] + made[-3]))


def gradients(seed, device, block):
    """Gradients of inputs and parameters."""
    parameters = [parameter(WIDTH, WIDTH).to(device), parameter(WIDTH).to(device)]
    function = db.block(random_network) if block else random_network
    with db.Graph(device) as graph:
        xs = [F.input(graph, np.full((n, WIDTH), 0.1 * n)).keep() for n in (2, 1, 3)]
        graph.backward(F.mean([function(x, *parameters, seed) for x in xs]))
        peak = graph.statistics.peak_bytes
        found = [p.grad for p in parameters if p.grad is not None]
        of_host = [array.get() if device == "cuda" else array for array in found]
        return [*[x.gradient for x in xs], *of_host], peak


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("seed", quick(range(2), range(8)))
def test_sums_have_the_gradients_that_they_have_apart(seed, block, device, monkeypatch):
    found, peak = gradients(seed, device, block)
    with monkeypatch.context() as patch:
        init = RunPlanner.__init__
        patch.setattr(RunPlanner, "__init__", lambda self, *args: init(self, *args[:2], False))
        expected, apart = gradients(seed, device, block)
    assert peak <= apart
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=2e-5, atol=1e-6)


def test_a_row_that_is_all_of_a_step_adds_its_gradient_to_zeros():
    with poisoned_memory(), db.Graph() as graph:
        empty, one = [F.input(graph, np.ones((n, 1))).keep() for n in (0, 1)]
        unused, y = empty + empty, one + one
        graph.backward(F.sum([F.sum(y[0].keep()), F.sum(F.sum(F.detach(unused)))]))
        assert one.gradient == 2


def residual(x, norm, weight):
    return x + F.linear(F.layer_norm(x, norm, norm), weight)


def places(monkeypatch, build):
    """First elements of all gradients of a graph, by the type of their nodes."""
    found = {}
    allocate = Executor._allocate

    def note(self, plan):
        for block, place in plan.memory.gradients.items():
            found.setdefault(type(block.nodes[0]).__name__, []).append(place.offset)
        return allocate(self, plan)

    monkeypatch.setattr(Executor, "_allocate", note)
    build()
    return found


def test_a_residual_sum_and_both_its_terms_have_one_gradient(monkeypatch):
    norm, weight = parameter(WIDTH), parameter(WIDTH, WIDTH)

    def build():
        with db.Graph() as graph:
            x = F.tanh(F.input(graph, np.ones((3, WIDTH))).keep())
            graph.backward(F.sum(F.sum(residual(x, norm, weight))))

    found = places(monkeypatch, build)
    assert found["Add"] == found["LinearMap"] == found["Tanh"]
    assert found["LayerNormalization"] != found["Tanh"]


def test_what_is_added_to_before_the_other_term_is_read_lies_apart(monkeypatch):
    weight = parameter(WIDTH, WIDTH)

    def build():
        with db.Graph() as graph:
            a = F.tanh(F.input(graph, np.ones((3, WIDTH))).keep())
            b = F.relu(a)  # read after a is added to: its own gradient is what adds to a
            c = F.linear(b, weight)
            graph.backward(F.sum(F.sum((b + a) * c)))

    found = places(monkeypatch, build)
    assert found["Relu"] != found["Tanh"]


def test_a_gpu_adds_the_gradient_of_a_norm_and_of_a_product_in_place(cuda):
    norm, weight = parameter(WIDTH).to("cuda"), parameter(WIDTH, WIDTH).to("cuda")

    def launches(function):
        """Launches of backward alone."""
        for p in (norm, weight):
            p.zero_grad()
        with db.Graph("cuda") as graph:
            x = F.tanh(F.input(graph, np.ones((3, WIDTH))).keep())
            loss = F.sum(F.sum(function(x)))
            graph.forward()
            before = graph.statistics.launches
            graph.backward(loss)
            return graph.statistics.launches - before

    # The gradients of the sum cost nothing, nor does adding to that of x.
    alone = launches(lambda x: F.linear(F.layer_norm(x, norm, norm), weight))
    assert launches(lambda x: residual(x, norm, weight)) == alone
    alone = launches(lambda x: F.layer_norm(F.tanh(F.linear(x, weight)), norm, norm))
    post_norm = launches(lambda x: F.layer_norm(x + F.tanh(F.linear(x, weight)), norm, norm))
    assert post_norm == alone
