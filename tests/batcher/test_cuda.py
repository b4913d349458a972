"""The costs of a mini-batch on a GPU, as exact counters: launches, and one upload a run."""

from collections import Counter
from threading import Thread

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.reference_models import Tagger, sentences

LENGTHS = (3, 0, 1, 7, 2)


def cost(build, grad=False, lengths=LENGTHS):
    """Launches and uploads of a graph with what `build` makes of each sentence."""
    with db.Graph("cuda", grad=grad, seed=0) as graph:
        built = [build(graph, length) for length in lengths]
        if grad:
            graph.backward(F.sum([F.sum(F.sum(node)) for node in built]))
        else:
            graph.forward()
    return graph.statistics.launches, graph.statistics.uploads


def matrix(graph, rows, width):
    return F.input(graph, np.ones((rows, width)))


OPERATIONS = {
    # Inputs of different widths and lengths: brought up by one launch, joined by one.
    "concat of features": (
        lambda graph, n: F.concat([matrix(graph, n, w) for w in (1, 4, 2)]),
        1 + 1,
    ),
    "concat of tokens": (
        lambda graph, n: F.concat([matrix(graph, rows, 3) for rows in (n, 1, 2 * n)], dim=0),
        1 + 1,
    ),
    "split": (lambda graph, n: F.split(matrix(graph, n, 6), [1, 3, 2])[1], 1 + 1),
    "tanh": (lambda graph, n: F.tanh(matrix(graph, n, 3)), 1 + 1),
    "sum of tokens": (lambda graph, n: F.sum(matrix(graph, n, 3), dim=0), 1 + 1),
    "softmax": (lambda graph, n: F.softmax(matrix(graph, n, 3)), 1 + 1),
    "layer_norm": (lambda graph, n: F.layer_norm(matrix(graph, n, 3)), 1 + 1),
    "rotary": (lambda graph, n: F.rotary(matrix(graph, n, 4), heads=2, offset=n), 1 + 1),
    "swiglu": (lambda graph, n: F.swiglu(matrix(graph, n, 4)), 1 + 1),
    "rms_norm": (lambda graph, n: F.rms_norm(matrix(graph, n, 3)), 1 + 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (40, 2, 5, 5, 0, 9, 17)], ids=len)
def test_an_operation_of_a_mini_batch_is_one_launch(cuda, name, lengths):
    build, launches = OPERATIONS[name]
    assert cost(build, lengths=lengths) == (launches, 1)


def test_a_concat_passes_its_gradient_back_in_one_launch(cuda):
    tables = [db.Parameter(np.ones((2, w), np.float32)).to("cuda") for w in (1, 4, 2)]

    def build(graph, n):
        return F.concat([F.lookup(graph, table, np.zeros(n, int)) for table in tables])

    # The loss's gradient is zeros and a one. Forward 3 lookups, the concat, sums of features, of
    # tokens and of losses, each with the gradient that it spreads, and the loss's two scales; back
    # the concat and a sum by row for each table. The loss is brought down by a copy, no launch.
    assert cost(build, grad=True) == (2 + 3 + 1 + 3 + 3 + 2 + 1 + 3, 1)


def test_a_training_step_of_a_tagger(cuda):
    """Every kernel of it, by name."""
    model = Tagger()
    for parameter in model.parameters():
        parameter.to("cuda")
    kernels = queue().kernels("float32")
    before = Counter(kernels.launches)
    with db.Graph("cuda", seed=0) as graph:
        graph.backward(F.mean(model.losses(graph, sentences(LENGTHS))))
    launched = Counter(kernels.launches) - before
    (chain,) = [name for name in launched if "_then_" in name]
    launched["add_then_tanh"] = launched.pop(chain)
    assert launched == {
        "fill": 2,  # the gradient of the loss: zeros, and a one
        "scale_segments": 2,  # the mean of the losses, and back
        "spread_segments": 1,
        "gather_rows": 1,  # the lookup
        "add_then_tanh": 1,  # the bias, and the activation
        "token_scales": 1,  # the loss, fused with its projection
        "softmax_loss": 1,
        "sum_segments": 3,  # losses of a sentence, losses of all, the bias's gradient
        "elementwise_tanh_backward": 1,
        "add_rows": 1,  # the table's gradient
    }
    # Products: the layer, the projection, and two back for each of them.
    assert graph.statistics.launches == sum(launched.values()) + 6
    assert graph.statistics.uploads == 1


@pytest.mark.parametrize("count", [1, 3])
def test_lookups_of_a_table_are_one_launch_and_one_sum_back(cuda, count):
    table = db.Parameter(np.ones((9, 4), np.float32)).to("cuda")

    def build(graph, n):
        return F.lookup(graph, table, np.arange(n) % 9)

    launches, uploads = cost(build, grad=True, lengths=LENGTHS[:count])
    table.zero_grad()
    longer, _ = cost(build, grad=True, lengths=(9, 2, 5)[:count])
    assert launches == longer and uploads == 1


def test_a_graph_may_be_run_by_another_thread_than_its_values_are_read_by(cuda):
    with db.Graph("cuda", grad=False) as graph:
        node = F.sum(matrix(graph, 5, 3))
        thread = Thread(target=graph.forward)
        thread.start()
        thread.join()
        assert node.value == 15
    assert graph.statistics.uploads == 1


MODELS = {
    "scans": (lambda: models.LSTM(8, 8, layers=3, rng=0), lambda model, x: model(x)[0]),
    "blocks": (
        lambda: models.TransformerEncoder(2, 8, 2, 16, activation="gelu", norm_first=True, rng=0),
        lambda model, x: model(x, causal=True),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_within_a_limit_a_gpu_makes_values_again_and_finds_the_same_gradients(cuda, name):
    make, apply = MODELS[name]
    model = make().to("cuda")

    def run(limit):
        """The estimate, and the gradients of the parameters."""
        with db.Graph("cuda", seed=3) as graph:
            inputs = [np.linspace(-1, 1, 8 * n).reshape(n, 8) for n in LENGTHS if n]
            xs = [F.tanh(F.input(graph, x)) for x in inputs]
            loss = F.sum([F.sum(F.sum(apply(model, x))) for x in xs])
            use = graph.estimate(loss, memory_limit=limit)
            graph.backward(loss, memory_limit=limit)
            assert graph.statistics.peak_bytes == use.peak_bytes
        found = [parameter.grad.get() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.zero_grad()
        return use, found

    whole, expected = run(None)
    part, found = run(int(0.8 * whole.peak_bytes))
    assert part.peak_bytes <= 0.8 * whole.peak_bytes and "recompute" in part.saving
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, reference)  # to the bit: the batches are the same
