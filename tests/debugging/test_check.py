"""`Graph(check=True)` finds planted faults, names them, and leaves everything usable."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution import stage_runner
from dynbatch.errors import CheckError
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.queue import Queue
from dynbatch.testing.probe import backward, outputs_of, probe, random_like
from tests.marks import quick
from tests.messages import raised
from tests.node_cases import CASES
from tests.nodes.test_contract import as_nodes, over, parameters_of, sentences_of
from tests.reference_models import Tagger, gradients, sentences, train

LENGTHS = [3, 1, 7, 0, 2]
PAIRS = [([3, 4, 5, 6], [7, 3]), ([5], [4, 4, 4, 8, 3]), ([6, 3, 3, 3, 3, 3, 4], [])]


def tagger(device, dtype="float32"):
    model = Tagger(dtype)
    for parameter in model.parameters():
        parameter.to(device)
    return model


@pytest.fixture
def spoil(monkeypatch, cuda):
    """spoil(kernel, argument, element, of=…): its launches (for a node) leave one element wrong."""

    def plant(kernel, argument, element, of=""):
        launch = Queue.launch

        def wrong(self, dtype, name, grid, block, args, shared=0):
            launch(self, dtype, name, grid, block, args, shared)
            if name == kernel and of in self.label and 0 not in grid:
                out = args[argument]
                place = int(element(args)) if callable(element) else element
                address = (out if isinstance(out, int) else out.data.ptr) + place * dtype.itemsize
                stream = cuda.cuda.get_current_stream().ptr
                change = lambda: cuda.cuda.runtime.memsetAsync(  # noqa: E731
                    address, 0x41, dtype.itemsize, stream
                )
                self.call(change)

        monkeypatch.setattr(Queue, "launch", wrong)

    return plant


def caught(action, *pieces):
    """The message of the CheckError that `action` raises; it has these pieces, in order."""
    return raised(CheckError, action, *pieces)


# A clean model passes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tagger_passes_and_computes_the_same(device, dtype):
    batch = sentences(LENGTHS)
    plain, checked = tagger(device, dtype), tagger(device, dtype)
    for _ in range(2):  # gradients add up
        losses = [train(plain, batch, device=device),
                  train(checked, batch, device=device, check=True)]  # fmt: skip
        assert losses[0] == losses[1]
    for parameter in [*plain.parameters(), *checked.parameters()]:
        parameter.to("cpu")
    for found, expected in zip(gradients(checked), gradients(plain), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("attention", ["additive", "general"])
def test_a_seq2seq_model_passes(device, attention):
    model = models.Seq2Seq(8, 9, 5, 6, attention=attention, dropout=0.3, rng=0).to(device)
    for reads in (False, True):
        with db.Graph(device, check=True, seed=0) as graph:
            losses = [model.loss(graph, *pair) for pair in PAIRS]
            if reads:
                graph.forward()
            graph.backward(F.mean(losses))


@over(quick(CASES[::3], CASES))
def test_every_node_type_passes(case, device):
    parameters = parameters_of(case)
    for parameter in parameters:
        parameter.to(device)
    with db.Graph(device, "float64", check=True, seed=0) as graph:
        outputs = []
        for arguments in sentences_of(case):
            outputs += outputs_of(case.build, graph, [*as_nodes(graph, arguments), *parameters])
        backward(graph, probe(outputs, random_like(outputs, 3)))


def test_counters_are_those_of_an_unchecked_run(device):
    found, launches = [], []
    for check in (False, True):
        model = tagger(device)
        with db.Graph(device, check=check) as graph:
            graph.backward(F.mean(model.losses(graph, sentences(LENGTHS))))
        s = graph.statistics
        found.append((s.nodes, s.batches, s.copied_bytes, s.activation_bytes, s.peak_bytes))
        launches.append(s.launches)
    assert found[0] == found[1]
    # On a GPU a bias and the tanh behind it are one kernel, unless each step is looked at.
    assert launches[1] - launches[0] == (device == "cuda")


# A wrong kernel -----------------------------------------------------------------------------------


def test_a_wrong_value_names_node_sentence_element_and_kernel(spoil):
    model = tagger("cuda")
    spoil("elementwise_tanh", 1, 5 * 6 + 2)  # row 5 of the batch is row 1 of sentence 2
    with db.Graph("cuda", check=True) as graph:
        losses = model.losses(graph, sentences(LENGTHS))
        message = caught(
            graph.forward,
            "Tanh #12, sentence 2: its value is wrong",
            "a  LinearMap #11    float32 (7, 6)",
            "element (1, 2) of shape (7, 6) is 12.07",
            "on cuda, ", " by NumPy; 1 of 42 elements differ",
            "in forward of a batch of 5 nodes, Tanh, first Tanh #2; ",
            "launched: kernel elementwise_tanh",
            "report it", "graph.dump(",
        )  # fmt: skip
        assert len(message.splitlines()) == 6
        assert len(losses) == 5


@pytest.mark.parametrize(
    ("kernel", "argument", "element", "of", "pieces"),
    [
        (
            "elementwise_tanh_backward",
            2,
            0,
            "",
            ("Tanh #2, sentence 0", "gradient for LinearMap #1"),
        ),
        ("add_bias", 0, 18, "", ("LinearMap #6, sentence 1", "value", "(0, 0)")),
        ("gather_rows", 2, 0, "", ("Lookup #0, sentence 0", "value", "element (0, 0)")),
        ("add_rows", 4, 3, "", ("Lookup #0", "gradient for parameter 'table'")),
        ("sum_segments", 1, 4, "LinearMap #1,", ("gradient for parameter 'bias'", "(4,)")),
        ("spread_segments", 1, 2, "", ("Total #25", "gradient for CrossEntropy #14")),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_wrong_kernels_of_a_training_step_are_found(spoil, kernel, argument, element, of, pieces):
    model = tagger("cuda")
    spoil(kernel, argument, element, of)
    caught(lambda: train(model, sentences(LENGTHS), device="cuda", check=True), *pieces)
    assert all(parameter.grad is None for parameter in model.parameters())


def first_copied(args):
    """The target of the first rectangle that is copied."""
    return args[2][0][3]


def first_added(args):
    return args[2][0][1]


@pytest.mark.parametrize(
    ("kernel", "argument", "element", "of", "pieces"),
    [
        ("copy_rectangles", 1, first_copied, "Concat", ("its value is wrong", "moves")),
        ("copy_rectangles", 1, first_copied, "Sigmoid",
         ("its value, copied for Sigmoid #", "is wrong", "packing")),
        ("add_rectangles", 1, first_added, "",
         ("its gradient, after ", "added to it, is wrong", "in add of")),
        ("fill", 0, 0, "", ("the block of its gradient is not all zeros",)),
    ],
    ids=["moves", "packing", "adds", "cleared"],
)  # fmt: skip
def test_wrong_copies_and_sums_are_found(spoil, kernel, argument, element, of, pieces):
    with db.Graph("cuda", check=True) as graph:
        outputs = []
        for length in LENGTHS:
            x = F.input(graph, np.full((length, 2), 0.5)).keep()
            y, z = F.tanh(x), F.exp(x)
            outputs += [F.sum(F.sum(F.sigmoid(v), dim=0)) for v in (y, z, F.concat([z, y * y]))]
        spoil(kernel, argument, element, of)
        caught(lambda: graph.backward(F.sum(outputs)), *pieces)


def test_a_wrong_gradient_of_a_scan_is_found(spoil):
    @db.cell
    def cell(x, h, p):
        h = F.tanh(F.linear(x, p["w"]) + F.linear(h, p["u"]))
        return h, h

    weights = {
        name: db.Parameter(np.random.default_rng(0).standard_normal((4, 4)), name).to("cuda")
        for name in "wu"
    }
    with db.Graph("cuda", "float64", check=True) as graph:
        losses = []
        for length in LENGTHS:
            ys, last = db.scan(cell, F.input(graph, np.ones((length, 4))), 4, weights)
            losses.append(F.sum(F.sum(ys, dim=0)) + F.sum(last))
        graph.forward()
        spoil("gather_many", 0, lambda args: args[1][0, 6], "Scan")  # what its first gather writes
        caught(lambda: graph.backward(F.sum(losses)), "Scan #", "in backward of a batch of 5 nodes")


# A wrong twin, and node types of users ------------------------------------------------------------


class Double(db.Node):
    """2 x, with faults to choose from."""

    any_shape = True
    fault = ""

    def infer_shape(self, *shapes):
        return shapes[0]

    @classmethod
    def forward_batch(cls, batch, y, x):
        arrays.copy(x.values, y.values)
        arrays.accumulate(x.values, y.values)
        if cls.fault == "NaN by NumPy" and batch.xp is np:
            y.flat[-1] = np.nan
        if cls.fault == "neighbours" and len(batch.nodes) > 2:
            y.flat[-1] += x.flat[0]

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        if dx is not None:
            cls.forward_batch(batch, dx, dy)
            if cls.fault == "neighbours' gradients" and len(batch.nodes) > 2:
                dx.flat[-1] += dy.flat[0]


def doubled(graph):
    outputs = [
        F.sum(F.sum(Double(F.input(graph, np.ones((n, 2))).keep()), dim=0)) for n in (3, 1, 2)
    ]
    return F.sum(outputs)


def test_a_twin_that_writes_nan_is_a_difference(cuda, monkeypatch):
    monkeypatch.setattr(Double, "fault", "NaN by NumPy")
    with db.Graph("cuda", check=True) as graph:
        doubled(graph)
        caught(
            graph.forward, "Double #9, sentence 2: its value is wrong",
            "(1, 1) of shape (2, 2) is 2 on cuda, nan by NumPy; 1 of 4",
            "compute the same with NumPy and CuPy",
        )  # fmt: skip


def test_a_forward_that_reads_its_neighbours(monkeypatch):
    monkeypatch.setattr(Double, "fault", "neighbours")
    with db.Graph(check=True) as graph:
        doubled(graph)
        caught(
            graph.forward, "Double #9, sentence 2: its value is wrong",
            "(1, 1) of shape (2, 2) is 3 batched, 2 one by one; 1 of 4 elements differ",
            "in forward of a batch of 3 nodes, Double", "each node's own rows only",
        )  # fmt: skip


def test_a_backward_that_reads_its_neighbours(monkeypatch):
    monkeypatch.setattr(Double, "fault", "neighbours' gradients")
    with db.Graph(check=True) as graph:
        loss = doubled(graph)
        caught(
            lambda: graph.backward(loss),
            "Double #9, sentence 2: its gradient for Input #8 is wrong",
            "(1, 1) of shape (2, 2) is 3 batched, 2 one by one",
        )  # fmt: skip


def test_nan_equals_nan_and_rounding_is_no_difference(device):
    rows = np.array([[np.nan, np.inf], [1e-3, 1e4]])
    with db.Graph(device, check=True) as graph:
        values = [F.sum(F.tanh(F.input(graph, rows) * 3.0), dim=0).value for _ in range(3)]
    assert np.isnan(values[0][0])


# Afterwards ---------------------------------------------------------------------------------------


def test_after_a_difference_the_graph_can_be_run_again(monkeypatch):
    monkeypatch.setattr(Double, "fault", "neighbours")
    pool = db.memory.Pool()
    with db.Graph(check=True, pool=pool) as graph:
        loss = doubled(graph)
        caught(lambda: graph.backward(loss), "Double")
        monkeypatch.setattr(Double, "fault", "")
        graph.backward(loss)
        assert loss.value == 24
    assert pool.used_bytes == 0


def test_a_gradient_that_is_lost_when_they_are_added_up(monkeypatch, device):
    model, batch = tagger(device), sentences(LENGTHS)
    train(model, batch, device=device)
    before = [db.testing.precision.dense_gradient(p) for p in model.parameters()]
    commit = stage_runner.commit
    monkeypatch.setattr(stage_runner, "commit", lambda steps, room: commit(steps[:-1], room))
    caught(
        lambda: train(model, batch, device=device, check=True), "the gradient of parameter 'table'"
    )
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert np.array_equal(db.testing.precision.dense_gradient(parameter), gradient)
