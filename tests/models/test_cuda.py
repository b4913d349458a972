"""Models on a GPU: the numbers of the CPU, step after step, and how the device is used."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.compiler.cuda import fused_product
from dynbatch.kernels.cuda.runtime import queue as cuda_queue
from dynbatch.kernels.cuda.runtime import streams
from tests.marks import quick
from tests.reference_models import sentences

LENGTHS = (3, 1, 7, 0, 2)
PAIRS = [([3, 4, 5, 6], [7, 3]), ([5], [4, 4, 4, 8, 3]), ([6, 3, 3], []), ([7, 7], [5])]


class Tagger(models.Module):
    def __init__(self, dropout=0.0):
        self.embed = models.Embedding(20, 5, rng=0)
        self.lstm = models.LSTM(5, 4, layers=2, bidirectional=True, dropout=dropout, rng=1)
        self.norm = models.LayerNorm(8)
        self.project = models.Linear(8, 5, rng=2)

    def loss(self, graph, words, tags):
        hidden = self.norm(self.lstm(self.embed(graph, words)))
        return F.cross_entropy(self.project(hidden), tags)

    def losses(self, graph):
        return [self.loss(graph, *pair) for pair in sentences(LENGTHS)]


class Translator(models.Module):
    def __init__(self, attention="additive", **options):
        self.model = models.Seq2Seq(8, 9, embed=5, hidden=6, attention=attention, rng=0, **options)

    def losses(self, graph):
        return [self.model.loss(graph, *pair) for pair in PAIRS]


class Gated(models.Module):
    """A GRU each way, with the dot product's attention over its values, and 1/sqrt(D)."""

    def __init__(self):
        self.embed = models.Embedding(20, 5, rng=0)
        self.gru = models.GRU(5, 4, bidirectional=True, rng=1)
        self.attention = models.DotAttention(scale=None)
        self.project = models.Linear(8, 5, rng=2)

    def losses(self, graph):
        found = []
        for words, tags in sentences(LENGTHS):
            x = self.gru(self.embed(graph, words))
            found.append(F.cross_entropy(self.project(x + self.attention(x, x)), tags))
        return found


class SelfAttention(models.Module):
    """A Transformer of an encoder and a decoder, with dropout."""

    def __init__(self, **options):
        self.source, self.target = models.Embedding(8, 8, rng=0), models.Embedding(9, 8, rng=1)
        self.transformer = models.Transformer(
            8, 2, 12, encoder_layers=2, decoder_layers=1, dropout=0.2, rng=2, **options
        )
        self.project = models.Linear(8, 9, rng=3)

    def losses(self, graph):
        found = []
        for source, target in PAIRS:
            x = self.target(graph, [1, *target])
            x = self.transformer(self.source(graph, source), x)
            found.append(F.cross_entropy(self.project(x), [*target, 2]))
        return found


class Trees(models.Module):
    """One kind of Tree-LSTM; `trees` are its trees by number of tokens."""

    def __init__(self, kind, trees):
        self.embed = models.Embedding(20, 5, rng=0)
        self.tree_lstm = kind(5, 4, rng=1)
        self.project = models.Linear(4, 5, rng=2)
        self._trees = trees

    def losses(self, graph):
        found = []
        for words, tags in sentences(self._trees):
            hs, root = self.tree_lstm(self.embed(graph, words), self._trees[len(words)])
            found.append(F.cross_entropy(self.project(hs[: len(words)]), tags) + F.sum(root))
        return found


class Heads(models.Module):
    """A CRF, a biaffine parser and a text CNN on the same words."""

    def __init__(self):
        self.embed = models.Embedding(20, 5, rng=0)
        self.project, self.crf = models.Linear(5, 5, rng=1), models.CRF(5, rng=2)
        self.parser = models.BiaffineParser(5, num_labels=5, arcs=4, labels=3, rng=3)
        self.classify = models.TextCNN(5, num_classes=3, sizes=(2, 3), filters=4, rng=4)

    def losses(self, graph):
        found = []
        for words, tags in sentences(LENGTHS):
            x = self.embed(graph, words)
            heads = np.arange(len(words))  # the word before, the root for the first
            found.append(
                self.crf.loss(self.project(x), tags)
                + self.parser.loss(x, heads, tags)
                + F.cross_entropy(self.classify(x), len(words) % 3)
            )
        return found


class Matrices(models.Module):
    """States that are matrices, and biases of attention by features and of pairs."""

    def __init__(self):
        self.embed = models.Embedding(20, 8, rng=0)
        self.delta = models.GatedDeltaNet(8, 2, value_heads=4, rng=1)
        self.mamba = models.Mamba2(8, 4, state=3, groups=2, rng=2)
        self.by_distance = db.Parameter(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
        self.project = models.Linear(8, 5, rng=3)

    def losses(self, graph):
        found = []
        for words, tags in sentences(LENGTHS):
            x = self.mamba(self.delta(self.embed(graph, words)))
            positions = np.arange(len(words))
            features = np.minimum(abs(positions - positions[:, None]), 3)
            bias = F.feature_bias(self.by_distance, features)
            x = x + F.attention(x, x, heads=2, bias=bias)
            x = x + F.attention(x, x, heads=2, bias=x @ F.transpose(x))
            found.append(F.cross_entropy(self.project(x), tags))
        return found


MODELS = {
    "CRF, biaffine, text CNN": Heads,
    "tagger": Tagger,
    "tagger, dropout": lambda: Tagger(0.3),
    "binary trees": lambda: Trees(models.BinaryTreeLSTM, {3: [(1, 2), (0, 3)], 1: []}),
    "child-sum trees": lambda: Trees(models.ChildSumTreeLSTM, {3: [-1, 0, 0], 2: [1, -1]}),
    "GRU, dot product's attention": Gated,
    "Transformer": SelfAttention,
    "Transformer, normalised first": lambda: SelfAttention(norm_first=True, activation="gelu"),
    "matrix states, biases of pairs": Matrices,
    "seq2seq": Translator,
    "seq2seq, general, 2 layers": lambda: Translator("general", layers=2),
    "seq2seq, dropout, smoothing": lambda: Translator(dropout=0.2, label_smoothing=0.1),
}
each_model = pytest.mark.parametrize(
    "model",
    quick(
        ["CRF, biaffine, text CNN", "binary trees", "seq2seq, dropout, smoothing", "Transformer"],
        MODELS,
    ),
)


def train(model, device, steps=3):
    """Losses and parameters after some steps with clipping and Adam, in float64."""
    model = model.astype("float64").to(device)
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for seed in range(steps):
        with db.Graph(device, "float64", seed=seed) as graph:
            loss = F.mean(model.losses(graph))
            graph.backward(loss)
        optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss)
    values = [p.value for p in model.to("cpu").parameters()]
    return [float(loss.value) for loss in losses], values


@each_model
def test_training_is_that_of_the_cpu(cuda, model):
    losses, values = train(MODELS[model](), "cuda")
    expected, parameters = train(MODELS[model](), "cpu")
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    for found, wanted in zip(values, parameters, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-10)


@each_model
def test_independent_batches_on_streams_of_their_own(cuda, model, monkeypatch):
    together = train(MODELS[model](), "cuda", 2)
    monkeypatch.setattr(streams, "WORTH_A_STREAM", 1)
    apart = train(MODELS[model](), "cuda", 2)
    assert apart[0] == together[0]
    assert all(np.array_equal(a, b) for a, b in zip(apart[1], together[1], strict=True))


@each_model
def test_two_runs_give_the_same_bits(cuda, model):
    first, again = [train(MODELS[model](), "cuda", 2) for _ in range(2)]
    assert first[0] == again[0]
    assert all(np.array_equal(a, b) for a, b in zip(first[1], again[1], strict=True))


@each_model
def test_a_training_step_is_two_uploads(cuda, model):
    """The tables of forward and backward come up in one copy, those of the optimizer in another."""
    made = MODELS[model]().to("cuda")
    queue = cuda_queue.queue()
    optimizer = optim.SGD(made.parameters(), lr=0.1)
    before = queue.uploads
    with db.Graph("cuda") as graph:
        graph.backward(F.mean(made.losses(graph)))
    assert graph.statistics.uploads == queue.uploads - before == 1
    optimizer.step()
    assert queue.uploads - before == 2


@pytest.mark.parametrize(("rows", "expected"), [(128, [7, 0]), (0, [12, 6])])
def test_launches_of_a_step_of_the_decoder(cuda, monkeypatch, rows, expected):
    """Forward: the gates with their products, a product, attention, the tanh.

    Back: the last products of a step with the tanh of the next, attention, the gates with their
    product. Of many rows six are products of cuBLAS, three each way, beside kernels for the gates.
    """
    monkeypatch.setattr(fused_product, "FEW_ROWS", rows)
    model = models.Seq2Seq(8, 9, embed=5, hidden=6, rng=0).to("cuda")

    queue = cuda_queue.queue()

    def launches(length):
        for parameter in model.parameters():
            parameter.zero_grad()
        before, kernels = queue.launches, queue.kernels("float32").launches.total()
        with db.Graph("cuda", seed=0) as graph:
            losses = [model.loss(graph, source, [3] * length) for source in ([3, 4, 5], [7])]
            graph.backward(F.mean(losses))
        found = queue.launches - before
        return np.array([found, found - queue.kernels("float32").launches.total() + kernels])

    assert (launches(9) - launches(8)).tolist() == expected


def test_steps_leave_nothing_on_the_device(cuda):
    model = Translator().to("cuda")
    pool = db.memory.Pool(upstream=db.memory.DeviceMemory())
    optimizer = optim.Adam(model.parameters())
    used = []
    for _ in range(6):
        with db.Graph("cuda", pool=pool) as graph:
            graph.backward(F.mean(model.losses(graph)))
        optimizer.step()
        used.append((pool.used_bytes, pool.reserved_bytes))
    assert used[1:] == used[:1] * 5 and pool.used_bytes == 0


@each_model
def test_values_in_between_cost_a_run_each(cuda, model):
    made = MODELS[model]().to("cuda")
    with db.Graph("cuda") as graph:
        losses = made.losses(graph)
        values = [float(loss.value) for loss in losses]
        total = F.mean(losses)
        graph.backward(total)
    assert graph.statistics.uploads == 2
    assert float(total.value) == pytest.approx(np.mean(values))
