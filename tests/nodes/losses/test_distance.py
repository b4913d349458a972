"""Losses by distance and by margin, beside PyTorch's and one by one."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError, VocabularyError
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch, import_torch

SHAPES = [(3, 4), (0, 4), (1, 4), (9, 4), (5,), ()]
OCCUPIED = [[shape, shape] for shape in SHAPES if 0 not in shape]
LOSSES = {
    "l1_loss": {},
    "huber_loss": {},
    "wide huber_loss": {"delta": 2.5},
}


def of(name, **options):
    return lambda a, b: getattr(F, name.split()[-1])(a, b, **LOSSES[name], **options)


def classes(x):
    return np.arange(x.rows) % 4


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("how", ["mean", "sum"])
def test_distances_batch_and_differentiate(name, how):
    loss = of(name, reduction=how)
    check_batching(lambda graph, a, b: loss(a, b), shapes=[[s, s] for s in SHAPES])
    check_gradient(lambda graph, a, b: loss(a, b), shapes=[(3, 4), (3, 4)])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("how", ["mean", "sum"])
def test_distances_equal_torch(name, how):
    theirs = getattr(import_torch().nn.functional, name.split()[-1])
    assert_equals_torch(
        of(name, reduction=how),
        lambda a, b: theirs(a, b, reduction=how, **LOSSES[name]),
        OCCUPIED,
    )


def test_slopes_are_torchs_where_the_parts_meet():
    torch = import_torch()
    values = [-2.0, -1.0, 0.0, 1.0, 2.0]
    for name in ("l1_loss", "huber_loss"):
        with db.Graph() as graph:
            x = F.input(graph, values).keep()
            graph.backward(getattr(F, name)(x, np.zeros(5), "sum"))
            z = torch.tensor(values, requires_grad=True)
            getattr(torch.nn.functional, name)(z, torch.zeros(5), reduction="sum").backward()
            assert x.gradient.tolist() == z.grad.tolist()


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_the_hinge_batches_differentiates_and_equals_torch(how, margin):
    def build(graph, x):
        return F.multi_margin_loss(x, classes(x), margin, how)

    shapes = [(3, 4), (0, 4), (1, 4), (9, 4), (4,)]
    check_batching(build, shapes=[[shape] for shape in shapes])
    check_gradient(build, shapes=[(3, 4)])
    torch = import_torch()

    def reference(x):
        rows = x.reshape(-1, 4)
        ids = torch.arange(len(rows)) % 4
        return torch.nn.functional.multi_margin_loss(rows, ids, margin=margin, reduction=how)

    assert_equals_torch(lambda x: build(None, x), reference, [(3, 4), (1, 4), (9, 4), (4,)])


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("margin", [1.0, 0.3])
def test_the_hinge_of_pairs_batches_differentiates_and_equals_torch(how, margin):
    def targets(x):
        return np.where(np.arange(x.size).reshape(x.shape) % 3, 1, -1)

    def build(graph, x):
        return F.hinge_embedding_loss(x, targets(np.empty(x.shape)), margin, how)

    check_batching(build, shapes=[[shape] for shape in SHAPES])
    check_gradient(build, shapes=[(3, 4)])
    torch = import_torch()
    assert_equals_torch(
        lambda x: build(None, x),
        lambda x: torch.nn.functional.hinge_embedding_loss(
            x, torch.tensor(targets(x.detach().numpy())), margin=margin, reduction=how
        ),
        [(3, 4), (1, 4), (5,)],
    )


def test_a_soft_margin_is_torchs():
    torch = import_torch()
    signs = np.array([[1.0, -1.0, 1.0, -1.0]] * 3, np.float32)
    for how in ("mean", "sum"):
        assert_equals_torch(
            lambda x, how=how: F.soft_margin_loss(x, signs, how),
            lambda x, how=how: torch.nn.functional.soft_margin_loss(
                x, torch.tensor(signs), reduction=how
            ),
            [(3, 4)],
        )


@pytest.mark.parametrize("options", [{}, {"full": True, "reduction": "sum", "eps": 0.5}])
@pytest.mark.parametrize("of_var", [(3, 4), (3, 1), (3,)])
def test_the_normal_distribution_batches_differentiates_and_equals_torch(options, of_var):
    def build(graph, x, t, v):
        return F.gaussian_nll_loss(x, t, v * v + 0.1, **options)

    counts = (3, 1, 9) if len(of_var) == 1 else (3, 0, 1, 9)
    check_batching(build, shapes=[[(n, 4), (n, 4), (n, *of_var[1:])] for n in counts])
    check_gradient(build, shapes=[(3, 4), (3, 4), of_var]) if not options else None
    torch = import_torch()
    assert_equals_torch(
        lambda x, t, v: build(None, x, t, v),
        lambda x, t, v: torch.nn.functional.gaussian_nll_loss(x, t, v * v + 0.1, **options),
        [[(3, 4), (3, 4), of_var]],
    )


def test_one_variance_may_be_for_all():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 3.0])
        assert F.gaussian_nll_loss(x, [0.0, 1.0], 2.0, reduction="sum").item() == pytest.approx(
            np.log(2) + 5 / 4
        )


def test_one_prediction_has_one_class():
    with db.Graph() as graph:
        x = F.input(graph, [0.0, 2.0, 1.5, 3.0])
        assert F.multi_margin_loss(x, 1).item() == (0.5 + 2) / 4


def test_a_loss_over_nothing_is_zero():
    with db.Graph() as graph:
        empty = F.input(graph, np.zeros((0, 4)))
        assert F.l1_loss(empty, np.zeros((0, 4))).value == 0
        assert F.huber_loss(empty, np.zeros((0, 4))).value == 0
        assert F.multi_margin_loss(empty, []).value == 0


def test_the_line_that_an_error_names_is_the_loss_of_each_token():
    ids, scores = np.array([1, 0, 1]), np.random.default_rng(0).standard_normal((3, 2))
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, scores)
        with pytest.raises(ArgumentError, match=r"F\.where\(np\.eye\(V\)\[ids\], x, 0\), -1\)"):
            F.cross_entropy(x, ids, reduction="none")
        losses = F.logsumexp(x, -1) - F.sum(F.where(np.eye(2)[ids], x, 0), -1)
        alone = [F.cross_entropy(x[k], ids[k]).item() for k in range(3)]
        np.testing.assert_allclose(losses.value.reshape(-1), alone, rtol=1e-12)


def test_what_does_not_fit_is_refused():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0]])
        for loss in (F.l1_loss, F.huber_loss):
            with pytest.raises(ShapeError, match=r"shapes \(1, 2\) and \(2,\) differ"):
                loss(x, np.zeros(2))
            with pytest.raises(ArgumentError, match="reduction 'none'"):
                loss(x, x, "none")
        with pytest.raises(ArgumentError, match="delta is 0"):
            F.huber_loss(x, x, delta=0)
        with pytest.raises(ArgumentError, match="margin is -1"):
            F.multi_margin_loss(x, [0], margin=-1)
        with pytest.raises(ArgumentError, match=r"a target is 0(.|\n)*np.where\(is_pair, 1, -1\)"):
            F.hinge_embedding_loss(x, [[1, 0]])
        with pytest.raises(ShapeError, match=r"shapes \(1, 2\) and \(1,\) differ"):
            F.hinge_embedding_loss(x, [1])
        with pytest.raises(ArgumentError, match="eps is 0"):
            F.gaussian_nll_loss(x, x, 1.0, eps=0)
        with pytest.raises(ShapeError, match="cannot be repeated"):
            F.gaussian_nll_loss(x, x, np.ones(3))
        with pytest.raises(VocabularyError):
            F.multi_margin_loss(x, [2])
        with pytest.raises(ShapeError, match="2 targets"):
            F.multi_margin_loss(x, [0, 1])


def test_sentences_of_all_lengths_share_each_batch():
    with db.Graph() as graph:
        xs = [F.input(graph, np.ones((length, 4))) for length in (3, 1, 5)]
        graph.values([F.huber_loss(x, np.zeros(x.shape)) for x in xs])
        alone = db.Graph()
        with alone:
            x = F.input(alone, np.ones((3, 4)))
            alone.values([F.huber_loss(x, np.zeros(x.shape))])
        assert graph.statistics.batches == alone.statistics.batches
