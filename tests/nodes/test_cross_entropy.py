from contextlib import nullcontext

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels import cross_entropy as kernels
from dynbatch.nodes.cross_entropy import stored_logits
from dynbatch.testing import NanPool, check_batching, check_gradient
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


def test_logits_of_a_mini_batch_never_exist():
    vocabulary, tokens = 5000, 2000
    weight = db.Parameter(np.zeros((vocabulary, 8), np.float32))
    with db.Graph() as graph:
        losses = [
            F.cross_entropy(F.linear(F.input(graph, np.zeros((50, 8))), weight), [1] * 50)
            for _ in range(tokens // 50)
        ]
        graph.backward(F.mean(losses))
    logits = tokens * vocabulary * 4
    assert graph.peak_bytes < kernels.CHUNK_BYTES + vocabulary * 8 * 4 + tokens * 8 * 4 * 4 < logits


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
            assert {type(loss).__name__ for loss in losses} == {
                "CrossEntropy" if stores else "LinearCrossEntropy"
            }
            loss = F.mean(losses)
            graph.backward(loss)
        found.append([float(loss.value), weight.grad, bias.grad])
        weight.grad = bias.grad = None
    for folded, stored in zip(*found, strict=True):
        np.testing.assert_allclose(stored, folded, rtol=1e-12)
