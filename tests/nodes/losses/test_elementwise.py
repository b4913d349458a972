import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError, VocabularyError
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch, import_torch

SHAPES = [(3, 4), (0, 4), (1, 4), (9, 4), (5,), ()]
OCCUPIED = [shape for shape in SHAPES if 0 not in shape]
PAIRS = {
    "mse": lambda a, b, how="mean": F.mse_loss(a, b, how),
    "kl": lambda a, b, how="mean": F.kl_div(a, b * b + 0.1, how),
    "log kl": lambda a, b, how="mean": F.kl_div(a, b, how, log_target=True),
    "bce": lambda a, b, how="mean": F.binary_cross_entropy_with_logits(a, b, how),
}


def classes(x):
    """Targets for the rows of x, the second of which is ignored."""
    ids = np.arange(x.rows) % 4
    ids[1:2] = -100
    return ids


@pytest.mark.parametrize("loss", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("how", ["mean", "sum"])
def test_pair_losses_batch_and_differentiate(loss, how):
    check_batching(lambda graph, a, b: loss(a, b, how), shapes=[[s, s] for s in SHAPES])
    for shape in SHAPES[:3]:
        check_gradient(lambda graph, a, b: loss(a, b, how), shapes=[shape, shape])


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_nll_batches_and_differentiates(how):
    def build(graph, x):
        return F.nll_loss(x, classes(x), reduction=how)

    shapes = [(3, 4), (0, 4), (1, 4), (9, 4), (4,)]
    check_batching(build, shapes=[[shape] for shape in shapes])
    for shape in shapes:
        check_gradient(build, shapes=[shape])


@pytest.mark.filterwarnings("ignore:reduction. 'mean':UserWarning")  # PyTorch prefers batchmean
@pytest.mark.parametrize("how", ["mean", "sum"])
def test_pair_losses_equal_torch(how):
    torch = import_torch()
    theirs = torch.nn.functional
    expected = {
        "mse": lambda a, b: theirs.mse_loss(a, b, reduction=how),
        "kl": lambda a, b: theirs.kl_div(a, b * b + 0.1, reduction=how),
        "log kl": lambda a, b: theirs.kl_div(a, b, reduction=how, log_target=True),
        "bce": lambda a, b: theirs.binary_cross_entropy_with_logits(a, b, reduction=how),
    }
    sentences = [[shape, shape] for shape in OCCUPIED]
    for name, reference in expected.items():
        assert_equals_torch(lambda a, b, f=PAIRS[name]: f(a, b, how), reference, sentences)


def test_the_batchmean_of_kl_div_is_over_tokens():
    torch = import_torch()
    assert_equals_torch(
        lambda a, b: F.kl_div(F.log_softmax(a), F.softmax(b), "batchmean"),
        lambda a, b: torch.nn.functional.kl_div(
            torch.log_softmax(a, -1), torch.softmax(b, -1), reduction="batchmean"
        ),
        [[(3, 4), (3, 4)], [(1, 4), (1, 4)], [(9, 4), (9, 4)]],
    )


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_nll_equals_torch(how):
    torch = import_torch()

    def reference(x):
        ids = torch.arange(x.shape[0]) % 4
        ids[1:2] = -100
        return torch.nn.functional.nll_loss(torch.log_softmax(x, -1), ids, reduction=how)

    assert_equals_torch(
        lambda x: F.nll_loss(F.log_softmax(x), classes(x), reduction=how),
        reference,
        [(3, 4), (1, 4), (9, 4)],
    )


def test_nll_after_log_softmax_is_cross_entropy():
    with db.Graph() as graph:
        x = F.input(graph, np.random.default_rng(0).standard_normal((7, 5)))
        ids = [0, 4, -100, 1, 2, 3, 0]
        assert F.nll_loss(F.log_softmax(x), ids).value == pytest.approx(
            float(F.cross_entropy(x, ids).value)
        )
        assert F.nll_loss(F.log_softmax(x[0]), 3).value == pytest.approx(
            float(F.cross_entropy(x[0], 3).value)
        )


def test_a_loss_over_nothing_is_zero():
    with db.Graph() as graph:
        empty = F.input(graph, np.zeros((0, 4)))
        for loss in (F.mse_loss, F.kl_div, F.binary_cross_entropy_with_logits):
            assert loss(empty, np.zeros((0, 4))).value == 0
        assert F.nll_loss(empty, []).value == 0
        x = F.input(graph, np.full((2, 4), -np.inf)).keep()
        loss = F.nll_loss(x, [-100, -100])
        graph.backward(loss)
        assert loss.value == 0 and not x.gradient.any()


def test_arrays_are_targets_too():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0]])
        assert F.mse_loss(x, np.array([[0.0, 0.0]])).value == 2.5
        assert F.kl_div(x, [[0.5, 0.5]]).value == pytest.approx(np.log(0.5) / 2 - 0.75)
        assert F.binary_cross_entropy_with_logits(x[0, 0], 1.0).value == pytest.approx(
            np.log1p(np.exp(-1))
        )


def test_a_class_of_probability_zero_has_no_part_in_the_divergence():
    with db.Graph() as graph:
        x = F.input(graph, [-np.inf, 0.0]).keep()
        t = F.input(graph, [0.0, 1.0]).keep()
        loss = F.kl_div(x, t, "sum")
        assert loss.value == 0
        graph.backward(loss)
        assert x.gradient.tolist() == [0, -1]


def test_a_target_that_underflowed_keeps_gradients_finite():
    with db.Graph() as graph:
        scores = F.input(graph, [0.0, 200.0]).keep()
        x = F.log_softmax(F.input(graph, [1.0, 2.0]))
        graph.backward(F.kl_div(x, F.softmax(scores), "sum"))
        assert np.isfinite(scores.gradient).all()


def test_extreme_logits_do_not_overflow():
    with db.Graph() as graph:
        x = F.input(graph, [1e4, -1e4]).keep()
        loss = F.binary_cross_entropy_with_logits(x, [0.0, 1.0])
        assert loss.value == 1e4
        graph.backward(loss)
        assert x.gradient.tolist() == [0.5, -0.5]


def test_losses_of_all_shapes_are_one_batch():
    with db.Graph() as graph:
        for shape in SHAPES:
            F.mse_loss(F.input(graph, np.ones(shape)), F.input(graph, np.ones(shape)))
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [12, 6]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda x: F.mse_loss(x, np.ones((3, 2))), ShapeError, "differ"),
        (lambda x: F.kl_div(x, np.ones(2)), ShapeError, "differ"),
        (lambda x: F.mse_loss(x, x, reduction="none"), ValueError, "one of mean, sum"),
        (lambda x: F.mse_loss(x, x, reduction="batchmean"), ValueError, "one of mean, sum"),
        (lambda x: F.nll_loss(x, [0, 1], reduction="none"), ValueError, "one of mean, sum"),
        (lambda x: F.nll_loss(x, [0]), ShapeError, "1 targets"),
        (lambda x: F.nll_loss(x, [0, 2]), VocabularyError, "target 2 at position 1 of 2"),
        (lambda x: F.nll_loss(x, [-1, 0]), VocabularyError, "target -1 at position 0 of 2"),
        (lambda x: F.nll_loss(F.sum(x), [0]), ShapeError, "1 targets"),
        (lambda x: F.nll_loss(x, [0.5, 1.0]), ShapeError, "sequence of integers"),
    ],
)
def test_wrong_targets_are_refused_at_the_users_line(build, error, message):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 2)))
        with pytest.raises(error, match=message) as caught:
            build(x)
        assert "test_elementwise.py" in str(caught.value)


@pytest.mark.parametrize("name", ["log_input", "log_target"])
@pytest.mark.parametrize("value", ["sum", 1, None])
def test_a_switch_of_a_loss_is_no_reduction(name, value):
    loss = F.kl_div if name == "log_target" else F.poisson_nll_loss
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        with pytest.raises(ArgumentError, match=f"{name} is {value!r}"):
            loss(x, [1.0, 2.0], **{name: value})
