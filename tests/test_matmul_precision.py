"""`Graph(matmul=...)`: every product with weights has rounded factors, forward and back."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.compiler.cuda import fused_product, persistent
from dynbatch.errors import ArgumentError
from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.kernels.cuda.runtime.cublas import Cublas
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import multiplying, rounded
from dynbatch.testing.precision import dense_gradient
from tests.cuda import devices, fake_cupy
from tests.cuda.rounding import CUBLAS_MAY, error_share
from tests.marks import quick
from tests.models.test_cuda import MODELS, PAIRS, Trees
from tests.reference_models import sentences

ROUNDED = ["tf32", "bfloat16"]
WIDTH = 40  # enough for a loop of its own in C


def normal(*shape, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def weights():
    """A map of the tokens, one of the state, and one of the outputs."""
    shapes = {"U": (WIDTH, 8), "W": (WIDTH, WIDTH), "V": (5, WIDTH)}
    return SimpleNamespace(**{
        name: db.Parameter(normal(*shape, seed=seed, scale=0.3), name)
        for seed, (name, shape) in enumerate(shapes.items())
    })  # fmt: skip


@db.cell
def recurrent(x, h, p):
    h = F.linear(x, p.U) + F.linear(h, p.W)
    return h, h


def by_hand(matmul, p, xs, dys):
    """The product in float64, of factors rounded to float32 and then as asked."""

    def factor(x):
        with multiplying(matmul):
            return rounded(np.asarray(x, np.float32)).astype(np.float64)

    U, W, V = [each.value for each in vars(p).values()]
    values, slopes, gradients = [], [], [np.zeros(each.shape) for each in (U, W, V)]
    for x, dy in zip(xs, dys, strict=True):
        hs = [np.zeros(WIDTH)]
        for row in x:
            hs.append(factor(U) @ factor(row) + factor(W) @ factor(hs[-1]))
        values.append(factor(hs[1:]) @ factor(V).T)
        gradients[2] += factor(dy).T @ factor(hs[1:])
        dhs = factor(dy) @ factor(V)
        for t in range(len(x) - 1, 0, -1):
            dhs[t - 1] += factor(dhs[t]) @ factor(W)
        gradients[0] += factor(dhs).T @ factor(x)
        gradients[1] += factor(dhs).T @ factor(hs[:-1])
        slopes.append(factor(dhs) @ factor(U))
    return values + slopes + gradients


def distance(found, expected):
    """The largest difference, as a share of the largest element, of several arrays."""
    pairs = zip(found, expected, strict=True)
    return max([np.abs(a - b).max() / max(1e-6, np.abs(b).max()) for a, b in pairs])


def magnitudes(p, xs, dys):
    """`by_hand` of the magnitudes: no product of a chain has larger terms."""
    values = SimpleNamespace(**{
        name: SimpleNamespace(value=np.abs(each.value)) for name, each in vars(p).items()
    })  # fmt: skip
    return by_hand("float32", values, *[[np.abs(x) for x in given] for given in (xs, dys)])


def trained_scan(device, matmul):
    """The weights and what they are given, and what makes values and gradients of them."""
    xs, dys = [[normal(n, w, seed=n + w) for n in (3, 1, 4)] for w in (8, 5)]
    p = weights()

    def run():
        with db.Graph(device, matmul=matmul) as graph:
            inputs = [F.input(graph, x).keep() for x in xs]
            outputs = [F.linear(db.scan(recurrent, x, WIDTH, p)[0], p.V).keep() for x in inputs]
            graph.backward(outputs, gradient=dys)
            found = [y.value for y in outputs] + [x.gradient for x in inputs]
        found += [dense_gradient(each) for each in vars(p).values()]
        for each in vars(p).values():
            each.zero_grad()
        return found

    return (p, xs, dys), run


def keeps_to_its_bound(found, exact, largest, matmul):
    """Whether no element is further off than a chain of rounded products may be: U, W, W, W, V."""
    share, triples = error_share(matmul, products=5), zip(found, exact, largest, strict=True)
    return all([(np.abs(a - b) <= share * c + 1e-5).all() for a, b, c in triples])


@pytest.mark.parametrize("matmul", ROUNDED)
@pytest.mark.parametrize(("tail_rows", "few_rows"), [(0, 0), (0, 128), (2, 0)])
def test_scans_and_linear_maps_multiply_rounded_factors(
    device, monkeypatch, matmul, tail_rows, few_rows
):
    """By cuBLAS step by step, by our own kernels of a product and a group, or of all last steps."""
    monkeypatch.setattr(persistent, "TAIL_ROWS", tail_rows)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few_rows)
    given, run = trained_scan(device, matmul)
    exact, expected, largest = (
        by_hand("float32", *given),
        by_hand(matmul, *given),
        magnitudes(*given),
    )
    for each in vars(given[0]).values():
        each.to(device)
    found, effect = run(), distance(exact, expected)
    assert 1e-3 < effect
    assert keeps_to_its_bound(found, exact, largest, matmul)
    if device == "cuda":  # it adds in another order: a state at a boundary goes to its other side
        assert devices.has_gpu() or distance(found, expected) < effect / 5
        return
    assert distance(found, expected) < 1e-6
    with reference_only():
        assert distance(run(), expected) < 1e-6


@pytest.mark.parametrize("how", quick(["cut"], CUBLAS_MAY))
@pytest.mark.parametrize("matmul", ROUNDED)
def test_a_scan_keeps_to_its_bound_however_cublas_rounds(cuda, monkeypatch, matmul, how):
    monkeypatch.setattr(persistent, "TAIL_ROWS", 0)
    monkeypatch.setattr(fused_product, "FEW_ROWS", 0)
    monkeypatch.setattr(fake_cupy.cublas, "round_to", CUBLAS_MAY[how])
    given, run = trained_scan("cuda", matmul)
    exact, largest = by_hand("float32", *given), magnitudes(*given)
    for each in vars(given[0]).values():
        each.to("cuda")
    found = run()
    assert keeps_to_its_bound(found, exact, largest, matmul)
    assert not keeps_to_its_bound([-x for x in found], exact, largest, matmul)


# Models: their parameters, and a function graph -> losses -----------------------------------------


def wide_tagger():
    embed, wide = models.Embedding(20, 8, rng=0), models.Linear(16, 45, rng=2)
    lstm = models.LSTM(8, 8, layers=2, bidirectional=True, rng=1)
    narrow, project = models.Linear(45, 16, rng=3), models.Linear(16, 5, rng=4)
    parts = (embed, lstm, wide, narrow, project)
    parameters = [p for part in parts for p in part.parameters()]

    def losses(graph):
        return [
            F.cross_entropy(project(narrow(F.tanh(wide(lstm(embed(graph, ids)))))), tags)
            for ids, tags in sentences((3, 1, 7, 0, 2))
        ]

    return parameters, losses


def wide_seq2seq():
    model = models.Seq2Seq(8, 9, embed=8, hidden=12, rng=0)
    return model.parameters(), lambda graph: [model.loss(graph, *pair) for pair in PAIRS]


def wide_tree():
    model = Trees(models.ChildSumTreeLSTM, {3: [-1, 0, 0], 2: [1, -1]})
    model.embed, model.project = models.Embedding(20, 8, rng=0), models.Linear(12, 5, rng=2)
    model.tree_lstm = models.ChildSumTreeLSTM(8, 12, rng=1)
    return model.parameters(), model.losses


def transformer():
    model = models.TransformerEncoder(2, 16, 4, 32, rng=0)
    embed, project = models.Embedding(20, 16, rng=0), models.Linear(16, 5, rng=2)
    parameters = [p for part in (embed, model, project) for p in part.parameters()]

    def losses(graph):
        return [
            F.cross_entropy(project(model(embed(graph, words))), tags)
            for words, tags in sentences((3, 1, 7, 2))
        ]

    return parameters, losses


def made(name):
    model = MODELS[name]()
    return model.parameters(), model.losses


# Features of these fill rows of 16 bytes; tags, words and one layer's do not.
WIDE = {
    "wide tagger": wide_tagger, "wide seq2seq": wide_seq2seq, "wide trees": wide_tree,
    "transformer": transformer,
}  # fmt: skip
MAKERS = {name: partial(made, name) for name in MODELS} | WIDE


def differentiated(name, device, matmul, check=False):
    """The loss of a model, and the gradients of all its parameters."""
    parameters, losses = MAKERS[name]()
    for each in parameters:
        each.to(device)
    with db.Graph(device, seed=1, matmul=matmul, check=check) as graph:
        loss = F.mean(losses(graph))
        graph.backward(loss)
    return [loss.value, *[dense_gradient(each) for each in parameters]]


@pytest.mark.parametrize("matmul", ROUNDED)
@pytest.mark.parametrize(
    "name",
    quick(["CRF, biaffine, text CNN", "binary trees", "wide seq2seq", "transformer"], MAKERS),
)
def test_gradients_are_those_of_rounded_factors_in_c_by_numpy_and_on_a_gpu(cuda, name, matmul):
    """A product that one of them does not round moves a gradient as far as rounding does.

    So the mean distance tells, parameter by parameter: a state that falls to the other side of a
    rounding boundary moves single elements as far, and few of them. On a card cuBLAS may round as
    it likes: there each product keeps to its bound, as the check holds it to.
    """
    expected, whole = [differentiated(name, "cpu", each) for each in (matmul, "float32")]
    with reference_only():
        by_numpy = differentiated(name, "cpu", matmul)
    on_device = differentiated(name, "cuda", matmul, check=devices.has_gpu())
    for gradients in (by_numpy, *([] if devices.has_gpu() else [on_device])):
        for a, b, unrounded in zip(gradients, expected, whole, strict=True):
            effect = np.abs(unrounded - b).mean()
            assert np.abs(a - b).mean() <= effect / 4 + 1e-6 * np.abs(b).mean()


def after_training(name, device, matmul, **settings):
    """The losses of some steps with Adam."""
    model = MODELS[name]().to(device)
    optimizer, losses = optim.Adam(model.parameters(), lr=0.01), []
    for seed in range(2):
        with db.Graph(device, seed=seed, matmul=matmul, **settings) as graph:
            loss = F.mean(model.losses(graph))
            graph.backward(loss)
        optimizer.step()
        losses.append(float(loss.value))
    return losses


@pytest.mark.parametrize("name", quick(["tagger"], ["tagger", "seq2seq", "binary trees"]))
def test_rounding_takes_no_product_from_our_own_kernels(cuda, name):
    counts = []
    for matmul in ("float32", *ROUNDED):
        launches = queue().kernels("float32").launches
        before = sum(launches.values())
        after_training(name, "cuda", matmul)
        counts.append(sum(launches.values()) - before)
    assert len(set(counts)) == 1


@pytest.mark.parametrize("matmul", ROUNDED)
def test_cublas_multiplies_nothing_in_float32(cuda, monkeypatch, matmul):
    queue()._cublas.clear()
    with monkeypatch.context() as patch:
        patch.setattr(cuda.cuda.cublas, "sgemm", None)
        patch.setattr(persistent, "TAIL_ROWS", 0)
        patch.setattr(fused_product, "FEW_ROWS", 0)
        after_training("seq2seq", "cuda", matmul)
    queue()._cublas.clear()


@pytest.mark.parametrize("how", quick(["cut"], CUBLAS_MAY))
@pytest.mark.parametrize("matmul", ROUNDED)
@pytest.mark.parametrize("name", quick(["transformer"], WIDE))
def test_the_check_finds_nothing_wrong_however_cublas_rounds(cuda, monkeypatch, name, matmul, how):
    monkeypatch.setattr(persistent, "TAIL_ROWS", 0)
    monkeypatch.setattr(fused_product, "FEW_ROWS", 0)
    monkeypatch.setattr(fake_cupy.cublas, "round_to", CUBLAS_MAY[how])
    differentiated(name, "cuda", matmul, check=True)


@pytest.mark.parametrize("matmul", ROUNDED)
@pytest.mark.parametrize("name", ["tagger", "binary trees"])
def test_the_check_finds_nothing_wrong_in_rounded_products(device, name, matmul):
    plain = after_training(name, device, matmul)
    found = after_training(name, device, matmul, check=True)
    np.testing.assert_allclose(found, plain, rtol=1e-3)


def test_products_of_two_nodes_and_attention_are_not_rounded():
    x = normal(6, 8)
    found = []
    for matmul in ("float32", "bfloat16"):
        with db.Graph(matmul=matmul) as graph:
            a = F.input(graph, x)
            attended = F.attention(a, a, a)
            found.append(graph.values([a @ F.transpose(a), attended, F.log_softmax(a)]))
    for whole, also in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, also)


def test_a_graph_says_its_precision_and_refuses_what_it_has_not():
    with db.Graph(matmul="tf32") as graph:
        assert graph.matmul == "tf32"
    with pytest.raises(ArgumentError, match="graph of float64"):
        db.Graph(dtype="float64", matmul="bfloat16")


@pytest.mark.parametrize("name", WIDE)
def test_rows_of_whole_16_bytes_lie_where_tensor_cores_load_them(cuda, monkeypatch, name):
    """A matrix whose rows are a multiple of 16 bytes apart begins at one, too."""
    monkeypatch.setattr(persistent, "TAIL_ROWS", 0)
    monkeypatch.setattr(fused_product, "FEW_ROWS", 0)
    gemm, seen = Cublas.gemm, []

    def watched(self, *args):
        seen.extend([args[5:7], args[7:9], args[10:]])
        gemm(self, *args)

    monkeypatch.setattr(Cublas, "gemm", watched)
    parameters, losses = WIDE[name]()
    for each in parameters:
        each.to("cuda")
    with db.Graph("cuda", matmul="tf32") as graph:
        graph.backward(F.mean(losses(graph)))
    matrices = [(address, ld) for address, ld in seen if ld % 4 == 0]
    assert len(matrices) > 20 and not [m for m in matrices if m[0] % 16]
