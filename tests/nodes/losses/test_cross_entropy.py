import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.backend import spec_of
from dynbatch.errors import NumericError, ShapeError
from dynbatch.kernels import segment
from dynbatch.kernels.losses import cross_entropy as kernels
from dynbatch.nodes.losses.cross_entropy import stored_logits
from dynbatch.testing import NanPool, check_batching, check_gradient
from tests.messages import raised
from tests.poison import poisoned_memory

VOCABULARY, WIDTH = 11, 4


def parameters(dtype="float64"):
    generator = np.random.default_rng(0)
    return (
        db.Parameter(generator.standard_normal((VOCABULARY, WIDTH)).astype(dtype), "projection"),
        db.Parameter(generator.standard_normal(VOCABULARY).astype(dtype), "bias"),
    )


def batch(lengths=(5, 0, 1, 30, 2)):
    generator = np.random.default_rng(1)
    return [
        (generator.standard_normal((n, WIDTH)), generator.integers(0, VOCABULARY, n))
        for n in lengths
    ]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_change_nothing(monkeypatch, chunk, reduction, smoothing):
    monkeypatch.setattr(kernels, "chunk_rows", lambda tokens, *rest: max(1, min(tokens, chunk)))
    weight, bias = parameters()

    def build(graph, x, ids):
        logits = F.linear(x, weight, bias)
        return F.cross_entropy(logits, ids, label_smoothing=smoothing, reduction=reduction)

    with poisoned_memory():
        check_batching(build, batch(), parameters=[weight, bias])
    x, ids = batch()[0]
    check_gradient(lambda graph, x: build(graph, x, ids), inputs=[x], parameters=[weight, bias])


@pytest.mark.parametrize("tail", [lambda loss: loss, lambda loss: loss * loss])
def test_the_gradient_made_in_forward_is_that_of_backward(tail):
    """Behind means and sums the gradient is made in the forward pass, behind a square it is not."""
    weight, bias = parameters()
    outcomes = []
    for folded in (True, False):
        with db.Graph(dtype="float64", pool=NanPool()) as graph, poisoned_memory():
            losses, inputs = [], []
            for x, ids in batch():
                inputs.append(F.input(graph, x).keep())
                logits = F.linear(inputs[-1], weight, bias)
                losses.append(F.cross_entropy(logits if folded else logits * 1.0, ids))
            graph.backward(tail(F.mean(losses)))
            assert ("+grad" in graph.explain()) == (folded and tail(2) == 2)
            outcomes.append([weight.grad, bias.grad, *[x.gradient for x in inputs]])
        weight.zero_grad(), bias.zero_grad()
        weight._buffer = bias._buffer = None
    for one, other in zip(*outcomes, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def run_large(vocabulary, tokens, width, build, pool=None):
    """One backward of sentences of 50 tokens; the graph and the gradients of the parameters."""
    generator = np.random.default_rng(3)
    weight = db.Parameter(generator.standard_normal((vocabulary, width), np.float32))
    bias = db.Parameter(np.zeros(vocabulary, np.float32))
    rows, ids = generator.standard_normal((tokens, width)), generator.integers(0, 9, tokens)
    with db.Graph(pool=pool) as graph:
        losses = [
            build(F.linear(F.input(graph, rows[at : at + 50]), weight, bias), ids[at : at + 50])
            for at in range(0, tokens, 50)
        ]
        graph.backward(F.mean(losses))
    return graph, weight.grad, bias.grad


def test_logits_of_a_mini_batch_never_exist():
    """The arena at its peak: hidden states, a chunk of logits, a loss and a scale for each token,
    for each sentence the loss and its gradient, and the gradient of their mean."""
    vocabulary, tokens, width = 5000, 2000, 8
    graph, *_ = run_large(vocabulary, tokens, width, F.cross_entropy)
    chunks = -(-tokens // (kernels.CHUNK_BYTES // (vocabulary * 4)))
    elements = tokens * width + -(-tokens // chunks) * vocabulary + 2 * tokens
    sentences = tokens // 50
    assert 0 <= graph.peak_bytes - 4 * (elements + 2 * sentences + 1) < 4 * 64  # alignment
    assert graph.peak_bytes < 0.4 * tokens * vocabulary * 4


def whole_logits(logits, ids):
    """The loss on logits that exist."""
    with stored_logits():
        return F.cross_entropy(logits, ids)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_vocabulary_takes_a_tenth_of_whole_logits(same_threads, threads):
    """20,000 words, 2,000 tokens: 8 chunks of 250, each 20 MB of 160, twice for whole logits."""
    db.set_num_threads(threads)
    chunked, *gradients = run_large(20_000, 2_000, 4, F.cross_entropy)
    whole, *expected = run_large(20_000, 2_000, 4, whole_logits)
    for found, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-3, atol=1e-7)
    assert chunked.peak_bytes < 0.1 * whole.peak_bytes


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sums_over_many_chunks_in_float32_are_those_of_float64(
    monkeypatch, same_threads, smoothing, threads
):
    """1,000 tokens in 29 chunks: 1,500 words, so that threads share words and not tokens."""
    monkeypatch.setattr(kernels, "chunk_rows", lambda tokens, *rest: min(tokens, 35))
    db.set_num_threads(threads)
    generator = np.random.default_rng(5)
    h, weight = (generator.standard_normal((n, 64), np.float32) for n in (1000, 1500))
    bias, scale = (generator.standard_normal(n, np.float32) for n in (1500, 1000))
    ids, rows = generator.integers(0, 1500, 1000), np.arange(1000)
    targets = kernels.Targets(ids, np.ones(1000, np.float32), smoothing)
    losses, dh, dw, db_ = (np.empty_like(array) for array in (scale, h, weight, bias))
    scratch = np.empty(kernels.workspace(spec_of(weight), 1000, len(weight)), np.float32)
    wanted = kernels.LossGradients(scale, dh, dw, db_)
    kernels.linear_cross_entropy(h, weight, bias, targets, losses, scratch, wanted)

    z = h.astype(np.float64) @ weight.T + bias
    log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    right = np.full_like(z, smoothing / 1500)
    right[rows, ids] += 1 - smoothing
    dz = scale[:, None] * (np.exp(log_p) - right)
    rounding = 8 * np.finfo(np.float32).eps * abs(z).max()  # of a logit in float32
    np.testing.assert_allclose(losses, -(right * log_p).sum(axis=1), rtol=1e-6, atol=rounding)
    for found, expected in ((dh, dz @ weight), (dw, dz.T @ h), (db_, dz.sum(axis=0))):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("build", [F.cross_entropy, whole_logits])
def test_nothing_is_held_outside_the_arena_that_grows_with_logits(one_thread, build):
    vocabulary, tokens = 4000, 2000
    pool = db.memory.Pool()
    run_large(vocabulary, tokens, 8, build, pool)
    tracemalloc.start()
    try:
        run_large(vocabulary, tokens, 8, build, pool)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    parameters = 2 * vocabulary * (8 + 1) * 4  # and their gradients
    assert held < parameters + 4 * segment.BLOCK + 400_000 < tokens * vocabulary * 4 / 20


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("tokens", [0, 1, 255, 256, 257, 2000, 100_000])
@pytest.mark.parametrize("vocabulary", [1, 45, 8000, 32_000, 250_000])
def test_chunks_are_even_and_bounded(vocabulary, tokens, itemsize):
    rows = kernels.chunk_rows(tokens, vocabulary, itemsize)
    most = max(kernels.LEAST_ROWS, kernels.CHUNK_BYTES // (vocabulary * itemsize))
    assert 1 <= rows <= max(1, min(tokens, most))
    chunks = -(-tokens // rows)
    assert chunks == -(-tokens // most)
    assert chunks * rows - tokens < max(1, chunks)


@pytest.mark.parametrize("chunk", [3, 1000])
def test_a_tied_weight_gets_the_gradients_of_both_uses(monkeypatch, chunk):
    monkeypatch.setattr(kernels, "chunk_rows", lambda tokens, *rest: max(1, min(tokens, chunk)))
    weight, bias = parameters()

    def build(graph, ids):
        hidden = F.tanh(F.lookup(graph, weight, ids[:-1]))
        return F.cross_entropy(F.linear(hidden, weight, bias), ids[1:])

    sentences = [(np.random.default_rng(n).integers(0, VOCABULARY, n + 1),) for n in (5, 0, 8)]
    with poisoned_memory():
        check_batching(build, sentences, parameters=[weight, bias])
    for (ids,) in sentences:
        check_gradient(
            lambda graph, ids=ids: build(graph, ids), inputs=[], parameters=[weight, bias]
        )


def test_a_frozen_projection_still_passes_gradients_on():
    weight, bias = parameters()
    weight.frozen = True
    for x, ids in batch((3, 1)):
        check_gradient(
            lambda graph, x, ids=ids: F.cross_entropy(F.linear(x, weight, bias), ids),
            inputs=[x],
            parameters=[weight, bias],
        )


def test_ignored_tokens_count_neither_in_the_loss_nor_in_the_mean():
    weight, bias = parameters()
    x, ids = batch((4,))[0]
    with db.Graph(dtype="float64") as graph:
        rows = F.input(graph, x)

        def loss(rows, ids, **options):
            return float(F.cross_entropy(F.linear(rows, weight, bias), ids, **options).value)

        ignored = [ids[0], -100, -100, ids[3]]
        assert loss(rows, ignored) == pytest.approx(loss(rows[::3], ids[::3]))
        assert loss(rows, [7, 1, 1, 7], ignore_index=7) == loss(rows[1:3], [1, 1])
        assert loss(rows, [-100] * 4) == 0
        assert loss(rows[:0], []) == 0


def test_one_prediction_takes_one_id():
    with db.Graph() as graph:
        logits = F.input(graph, [0.0, 0.0, 0.0, 0.0])
        assert F.cross_entropy(logits, 2).value == pytest.approx(np.log(4))


def test_large_logits_neither_overflow_nor_vanish():
    with db.Graph() as graph:
        x = F.input(graph, [[1e4, -1e4], [-1e4, 1e4]]).keep()
        loss = F.cross_entropy(x, [0, 0], reduction="sum")
        graph.backward(loss)
        assert loss.value == pytest.approx(2e4)
        assert x.gradient.tolist() == [[0, 0], [-1, 1]]


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_another_smoothing_raises(smoothing):
    with db.Graph() as graph, pytest.raises(ValueError, match="0 <= ε < 1"):
        F.cross_entropy(F.input(graph, [[1.0, 2.0]]), [0], label_smoothing=smoothing)


def test_stored_logits_give_the_same_loss_and_gradients():
    weight, bias = parameters()
    found = []
    for stores in (False, True):
        with db.Graph(dtype="float64") as graph, stored_logits() if stores else nullcontext():
            losses = []
            for h, y in batch():
                logits = F.linear(F.input(graph, h), weight, bias)
                losses.append(F.cross_entropy(logits, y))
            loss = F.mean(losses)
            graph.backward(loss)
            assert ("LinearCrossEntropy +grad" in graph.explain()) != stores
        found.append([float(loss.value), weight.grad, bias.grad])
        weight.grad = bias.grad = None
    for folded, stored in zip(*found, strict=True):
        np.testing.assert_allclose(stored, folded, rtol=1e-12)


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("lengths", [(5, 0, 1, 30, 2), (0, 0)])
@pytest.mark.parametrize("tail", [lambda loss: loss, lambda loss: loss * loss])
@pytest.mark.parametrize(
    "given", ["weight", "weight bias", "frozen bias", "weight frozen", "frozen"]
)
def test_chunks_equal_stored_logits_whatever_is_wanted(monkeypatch, given, tail, lengths, chunk):
    """Smoothed, some tokens ignored; `given` says which parameters there are, and which frozen."""
    monkeypatch.setattr(kernels, "chunk_rows", lambda tokens, *rest: max(1, min(tokens, chunk)))
    weight, bias = parameters()
    first, _, second = given.partition(" ")
    weight.frozen, bias.frozen = first == "frozen", second == "frozen"
    found = []
    for stores in (False, True):
        with db.Graph(dtype="float64", pool=NanPool()) as graph, poisoned_memory():
            losses, inputs = [], []
            for x, ids in batch(lengths):
                ids[::4] = -100
                inputs.append(F.input(graph, x).keep())
                logits = F.linear(inputs[-1], weight, bias if second else None)
                with stored_logits() if stores else nullcontext():
                    losses.append(F.cross_entropy(logits, ids, label_smoothing=0.1))
            loss = tail(F.mean(losses))
            graph.backward(loss)
            gradients = [p.grad for p in (weight, bias) if p.grad is not None]
            found.append([loss.value, *gradients, *[x.gradient for x in inputs]])
        weight.grad = bias.grad = weight._buffer = bias._buffer = None
    for folded, stored in zip(*found, strict=True):
        np.testing.assert_allclose(folded, stored, rtol=1e-10, atol=1e-13)


# Probabilities of classes -------------------------------------------------------------------------


def probabilities(lengths=(5, 0, 1, 30, 2), rows_sum_to=1.0):
    generator = np.random.default_rng(4)
    found = []
    for n in lengths:
        p = generator.random((n, VOCABULARY)) * (generator.random((n, VOCABULARY)) < 0.6)
        found.append(rows_sum_to * p / np.maximum(p.sum(axis=1, keepdims=True), 1e-3))
    return found


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("way", ["folded", "square", "stored", "kept"])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_probabilities_give_the_loss_and_gradients_of_pytorch(
    monkeypatch, chunk, way, reduction, smoothing
):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(kernels, "chunk_rows", lambda tokens, *rest: max(1, min(tokens, chunk)))
    weight, bias = parameters()
    tensors = [torch.tensor(p.value, requires_grad=True) for p in (weight, bias)]
    total, inputs, logits, losses = 0, [], [], []
    with db.Graph(dtype="float64", pool=NanPool()) as graph, poisoned_memory():
        for (x, _), p in zip(batch(), probabilities(rows_sum_to=1.5), strict=True):
            with stored_logits() if way == "stored" else nullcontext():
                logits.append(F.linear(F.input(graph, x).keep(), weight, bias))
                if way == "kept":
                    logits[-1].keep()
                losses.append(
                    F.cross_entropy(logits[-1], p, label_smoothing=smoothing, reduction=reduction)
                )
            tensor = torch.tensor(x, requires_grad=True)
            theirs = tensor @ tensors[0].T + tensors[1]
            inputs.append((tensor, theirs))
            theirs.retain_grad()
            if len(x):
                total = total + torch.nn.functional.cross_entropy(
                    theirs, torch.tensor(p), label_smoothing=smoothing, reduction=reduction
                )
        loss = F.sum(losses)
        if way == "square":
            loss, total = loss * loss, total * total
        graph.backward(loss)
        total.backward()
        told = graph.explain()
        assert ("LinearCrossEntropy" in told) == (way in ("folded", "square"))
        assert ("+grad" in told) == (way == "folded")
        np.testing.assert_allclose(loss.value, total.item(), rtol=1e-12)
        for node, (tensor, theirs) in zip(logits, inputs, strict=True):
            if len(tensor):
                np.testing.assert_allclose(node.inputs[0].gradient, tensor.grad, rtol=1e-9)
                if way == "kept":
                    np.testing.assert_allclose(node.gradient, theirs.grad, rtol=1e-9, atol=1e-13)
    for parameter, tensor in zip((weight, bias), tensors, strict=True):
        np.testing.assert_allclose(parameter.grad, tensor.grad, rtol=1e-9)


def test_probabilities_are_those_of_a_device_too(device):
    weight, bias = parameters("float32")
    found = []
    for where in ("cpu", device):
        for parameter in (weight, bias):
            parameter.to(where)
        with db.Graph(device=where) as graph:
            rows = [F.input(graph, x).keep() for x, _ in batch((5, 0, 3))]
            losses = [
                F.cross_entropy(F.linear(x, weight, bias), p, label_smoothing=0.1)
                for x, p in zip(rows, probabilities((5, 0, 3)), strict=True)
            ]
            graph.backward(F.mean(losses))
            found.append([x.gradient for x in rows])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_distribution_on_one_class_is_that_class():
    with db.Graph() as graph:
        x = F.input(graph, [0.5, 2.0, -np.inf])
        assert F.cross_entropy(x, [0.0, 1.0, 0.0]).value == F.cross_entropy(x, 1).value
        assert F.cross_entropy(F.input(graph, np.zeros((0, 3))), np.zeros((0, 3))).value == 0
        assert F.cross_entropy(F.input(graph, np.zeros((0, 3))), []).value == 0


def test_logits_are_not_stored_beside_probabilities():
    """As with ids: less than a tenth of what whole logits take."""
    p = np.full((50, 20_000), 1 / 20_000, np.float32)

    def build(logits, ids):
        return F.cross_entropy(logits, p)

    def whole(logits, ids):
        with stored_logits():
            return F.cross_entropy(logits, p)

    (chunked, *found), (stored, *expected) = (
        run_large(20_000, 1_000, 4, way) for way in (build, whole)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-7)
    assert chunked.peak_bytes < 0.2 * stored.peak_bytes


def test_probabilities_of_another_shape_or_range_raise():
    with db.Graph() as graph:
        x = F.input(graph, np.zeros((2, 3)))
        p = np.full((2, 3), 1 / 3)
        raised(ShapeError, lambda: F.cross_entropy(x, p[:, :2]),
               "probabilities of shape (2, 2)", "(2, 3)")  # fmt: skip
        raised(ValueError, lambda: F.cross_entropy(x, p, ignore_index=0), "ignore_index is 0")
        raised(ValueError, lambda: F.cross_entropy(x, p - 0.5), "the probability at (0, 0) is -0.1")
        p[1, 2] = np.nan
        raised(NumericError, lambda: F.cross_entropy(x, p), "the probability at (1, 2) is nan")
        raised(ValueError, lambda: F.cross_entropy(x, p, reduction="none"), "reduction 'none'")


# What is ignored ----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "way, bad",
    [("given", -np.inf), ("given", np.inf), ("given", np.nan), ("folded", np.nan),
     ("square", np.nan), ("stored", np.nan)],
)  # fmt: skip
def test_the_logits_of_an_ignored_token_may_be_anything(device, way, smoothing, bad):
    """The mean is that of the other tokens, and their gradients are."""
    generator = np.random.default_rng(0)
    weight = db.Parameter(generator.standard_normal((4, 3)).astype(np.float32), "weight")
    x, ids = generator.standard_normal((3, 3)).astype(np.float32), [1, -100, 2]
    found = []
    for spoiled in (False, True):
        weight.to(device), weight.zero_grad()
        with (
            db.Graph(device=device) as graph,
            stored_logits() if way == "stored" else nullcontext(),
        ):
            rows = x.copy()
            if way == "given":
                rows = np.concatenate([x, x[:, :1]], axis=1)
            rows[1] = bad if spoiled else 0.0
            rows = F.input(graph, rows).keep()
            logits = rows if way == "given" else F.linear(rows, weight)
            loss = F.cross_entropy(logits, ids, label_smoothing=smoothing)
            if way == "square":
                loss = loss * loss
            graph.backward(loss)
            found.append([loss.value, rows.gradient])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)
    assert not found[1][1][1].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("classes", [3, 50, 1003])
def test_a_loss_has_the_bits_of_its_log_probability(classes, dtype):
    rng = np.random.default_rng(0)
    logits, ids = 3 * rng.standard_normal((40, classes)), rng.integers(0, classes, 40)
    with db.Graph(dtype=dtype) as graph:
        x = F.input(graph, logits.astype(dtype))
        log_probs = F.log_softmax(x)
        losses = [F.cross_entropy(x[k], ids[k]).keep() for k in range(40)]
        whole = F.cross_entropy(x, ids, reduction="sum").keep()
        other = F.nll_loss(log_probs, ids, reduction="sum").keep()
        log_probs.keep()
        graph.backward(F.mean([*losses, whole, other]))
        found = [-loss.value for loss in losses]
        assert found == log_probs.value[range(40), ids].tolist()
        assert whole.value.tobytes() == other.value.tobytes()
