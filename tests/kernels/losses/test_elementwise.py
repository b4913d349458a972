import numpy as np
import pytest

from dynbatch.kernels.losses import elementwise as kernels

pytestmark = pytest.mark.usefixtures("block")

OFFSETS = np.array([0, 4, 4, 5, 12])


@pytest.mark.parametrize("pair", kernels.LOSSES.values(), ids=kernels.LOSSES)
def test_derivatives_of_pairs_equal_differences(pair):
    x = np.random.default_rng(0).random(12) + 0.1
    t = np.random.default_rng(1).random(12) + 0.1
    above, below, found = np.empty((3, 12))
    step = 1e-6
    pair.forward(x + step, t, above)
    pair.forward(x - step, t, below)
    pair.backward[0](np.ones(12), x, t, found)
    np.testing.assert_allclose(found, (above - below) / (2 * step), atol=1e-8)
    pair.forward(x, t + step, above)
    pair.forward(x, t - step, below)
    pair.backward[1](np.ones(12), x, t, found)
    np.testing.assert_allclose(found, (above - below) / (2 * step), atol=1e-8)


def test_pair_losses_are_summed_by_segment():
    x, t = np.random.default_rng(0).standard_normal((2, 12))
    out, dx = np.empty(4), np.empty(12)
    kernels.pair_loss(kernels.squared_error, x, t, OFFSETS, out)
    square = (x - t) ** 2
    np.testing.assert_allclose(out, [square[:4].sum(), 0, square[4], square[5:].sum()])
    dy = np.array([1.0, 2.0, 3.0, 4.0])
    kernels.pair_loss_backward(kernels.squared_error, False, dy, x, t, OFFSETS, dx)
    np.testing.assert_allclose(dx, 2 * (x - t) * np.repeat(dy, np.diff(OFFSETS)))


def test_a_negative_target_has_no_divergence():
    out = np.empty(2)
    with np.errstate(invalid="ignore"):
        kernels.divergence.forward(np.zeros(2), np.array([-1.0, 1.0]), out)
    assert np.isnan(out).tolist() == [True, False]


def test_picked_rows_are_weighted_and_summed():
    x = np.random.default_rng(0).standard_normal((12, 3))
    ids = np.arange(12) % 3
    weights = np.random.default_rng(1).random(12)
    weights[2] = 0
    x[2] = -np.inf
    out, dx = np.empty(4), np.full((12, 3), np.nan)
    kernels.pick_loss(x, ids, weights, OFFSETS, out)
    chosen = -weights * np.where(weights == 0, 0, x[np.arange(12), ids])
    np.testing.assert_allclose(out, [chosen[:4].sum(), 0, chosen[4], chosen[5:].sum()])
    kernels.pick_loss_backward(np.array([1.0, 9.0, 2.0, 3.0]), ids, weights, OFFSETS, dx)
    assert dx.sum() == pytest.approx(-(weights * np.repeat([1.0, 2, 3], [4, 1, 7])).sum())
    assert dx[5].tolist() == [0, 0, -3 * weights[5]]


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 3e-7), ("float64", 6e-16)])
def test_a_sure_prediction_keeps_its_places_in_the_logistic_loss(dtype, rtol):
    sure = np.array([0.5, 3, 12, 30, 80], dtype)
    x, t = np.concatenate([sure, -sure]), np.repeat([1.0, 0.0], 5).astype(dtype)
    loss, dx = np.empty_like(x), np.empty_like(x)
    kernels.logistic.forward(x, t, loss)
    kernels.logistic.backward[0](np.ones_like(x), x, t, dx)
    small = np.exp(-np.abs(x).astype(np.longdouble))
    np.testing.assert_allclose(loss, np.log1p(small), rtol=rtol)
    np.testing.assert_allclose(np.abs(dx), small / (1 + small), rtol=rtol)
    assert (np.sign(dx) == np.where(t == 1, -1, 1)).all()


def test_the_logistic_loss_of_infinite_logits_and_between_the_classes():
    x = np.array([0.0, 2.0, -2.0, 1e30, -1e30, np.nan])
    t = np.array([0.25, 0.25, 0.25, 0.0, 1.0, 1.0])
    loss, dx = np.empty_like(x), np.empty_like(x)
    kernels.logistic.forward(x, t, loss)
    with np.errstate(over="ignore"):
        kernels.logistic.backward[0](np.ones_like(x), x, t, dx)
    expected = np.logaddexp(0, [0, 2, -2]) - [0, 0.5, -0.5]
    np.testing.assert_allclose(loss, [*expected, 1e30, 1e30, np.nan], rtol=1e-15)
    sigmoids = 1 / (1 + np.exp([0.0, -2.0, 2.0]))
    np.testing.assert_allclose(dx, [*(sigmoids - 0.25), 1, -1, np.nan], rtol=1e-14)
