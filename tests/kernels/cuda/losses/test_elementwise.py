import numpy as np
import pytest

from dynbatch.kernels.losses import elementwise as losses
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

LENGTHS = (0, 1, 31, 32, 33, 1025, 2, 0)
OFFSETS = np.concatenate(([0], np.cumsum(LENGTHS)))
KINDS = [*losses.LOSSES.values()]
rng = np.random.default_rng(0)


def normal(dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def pairs(pair, dtype, size):
    """Inputs, and targets that are probabilities or their logarithms, the borders among them."""
    x, t = normal(dtype, size + 6), rng.random(size + 6).astype(dtype)
    t[:3] = 0, 1, 0.5
    if pair.name in ("divergence", "log_divergence"):
        x = -np.abs(x)
        x[:1] = -np.inf if pair.name == "divergence" else -20
    if pair.name == "log_divergence":
        t = np.log(np.maximum(t, 1e-4))
    if pair.name == "logistic":
        x[:6] = -200, 200, 0, -20, 20, -0.0
    return x[:size], t[:size]


@pytest.mark.parametrize("pair", KINDS, ids=lambda pair: pair.name)
@pytest.mark.parametrize("lengths", [LENGTHS, (6,) * 5, (0,)])
def test_sums_of_pairs(cupy, dtype, pair, lengths):
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    x, t = pairs(pair, dtype, offsets[-1])
    out, dy = Values(normal(dtype, len(lengths))), Values(normal(dtype, len(lengths)))
    with launches(1):
        assert_versions_agree(losses.pair_loss, pair, Values(x), Values(t), offsets, out, atol=1e-4)
    with launches(2 * bool(x.size)):
        for of_target in (False, True):
            assert_versions_agree(
                *(losses.pair_loss_backward, pair, of_target, dy, Values(x), Values(t)),
                *(offsets, Values(x)),
            )


def test_a_very_long_segment_is_summed_in_parts(cupy, dtype):
    offsets = np.array([0, 3, 17000])
    x, t = pairs(losses.squared_error, dtype, 17000)
    with launches(2):
        assert_versions_agree(
            *(losses.pair_loss, losses.squared_error, Values(x), Values(t), offsets),
            Values(normal(dtype, 2)),
        )


@pytest.mark.parametrize("classes", [1, 33])
def test_picked_log_probabilities(cupy, dtype, classes):
    x, dy = normal(dtype, OFFSETS[-1], classes), normal(dtype, len(LENGTHS))
    ids = rng.integers(0, classes, OFFSETS[-1])
    weights = rng.integers(0, 3, OFFSETS[-1]).astype(dtype)
    weights[5], x[5, ids[5]] = 0, -np.inf
    with launches(2):
        assert_versions_agree(
            losses.pick_loss, Values(x), ids, weights, OFFSETS, Values(dy), atol=1e-4
        )
        assert_versions_agree(
            losses.pick_loss_backward, Values(dy), ids, weights, OFFSETS, Values(x)
        )


def test_the_loss_of_a_sentence_has_the_same_bits_in_any_mini_batch(cupy, dtype):
    x, t = pairs(losses.logistic, dtype, 1500)
    results = []
    for first, offsets in ((0, [0, 100, 1300, 1500]), (100, [0, 1200])):
        part = slice(first, first + offsets[-1])
        out = assert_versions_agree(
            *(losses.pair_loss, losses.logistic, Values(x[part]), Values(t[part])),
            *(np.array(offsets), Values(normal(dtype, len(offsets) - 1))),
            atol=1e-4,
        )[2]
        results.append(out[1 if first == 0 else 0].tobytes())
    assert results[0] == results[1]


def test_a_sure_prediction_keeps_its_places(cupy, dtype):
    sure = np.array([3, 12, 30, 80], dtype)
    x, t = np.concatenate([sure, -sure]), np.repeat([1.0, 0.0], 4).astype(dtype)
    offsets, dy = np.arange(9), np.ones(8, dtype)
    out = Values(np.zeros(8, dtype))
    with launches(2):
        assert_versions_agree(
            losses.pair_loss, losses.logistic, Values(x), Values(t), offsets, out, atol=0
        )
        assert_versions_agree(
            *(losses.pair_loss_backward, losses.logistic, False, Values(dy)),
            *(Values(x), Values(t), offsets, out),
            atol=0,
        )
