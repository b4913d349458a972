from itertools import pairwise

import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.losses import cross_entropy
from dynbatch.kernels.losses.cross_entropy import Distributions, LossGradients, Targets
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

# A warp has up to 1024 logits of a row, a block more.
VOCABULARIES = (1, 2, 31, 32, 33, 1024, 1025, 1600)
WIDTH = 5
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def targets(dtype, tokens, vocabulary, smoothing=0.0):
    generator = np.random.default_rng(7)
    weights = generator.random(tokens).astype(dtype)
    weights[::4] = 0
    return Targets(generator.integers(0, vocabulary, tokens), weights, smoothing)


def distributions(dtype, tokens, vocabulary, smoothing=0.0):
    """Probabilities as targets, in three arrays, of which every third is 0."""
    p = np.random.default_rng(8).random((tokens, vocabulary)).astype(dtype)
    p[:, ::3] = 0
    cuts = [0, tokens // 3, tokens // 3, tokens]
    arrays = [p[a:b] for a, b in pairwise(cuts)]
    ids = targets(dtype, tokens, vocabulary)
    return Targets(0 * ids.ids, ids.weights, smoothing, Distributions(arrays))


def nothing(dtype, *shape):
    return Values(np.full(shape, np.nan, dtype))


@pytest.mark.parametrize("kind", [targets, distributions])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_losses_and_gradients_of_logits(cupy, dtype, vocabulary, smoothing, kind):
    rows = 11 if vocabulary < 1000 else 2
    z, bias = Values(3 * normal(dtype, rows, vocabulary)), Values(normal(dtype, vocabulary, seed=1))
    wanted, scale = kind(dtype, rows, vocabulary, smoothing), Values(normal(dtype, rows, seed=2))
    for add in (None, bias):
        with launches(1):
            assert_versions_agree(
                cross_entropy.softmax_loss, z, add, wanted, nothing(dtype, rows), scale, **TOLERANCE
            )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [33, 1025])
def test_losses_alone_leave_the_logits(cupy, dtype, vocabulary, smoothing):
    z, wanted = 3 * normal(dtype, 9, vocabulary), targets(dtype, 9, vocabulary, smoothing)
    device, losses = cupy.asarray(z), cupy.empty((9, 1), dtype)
    cross_entropy.softmax_loss(device, None, wanted, losses[:, 0])
    queue().flush()
    np.testing.assert_array_equal(device.get(), z)
    expected = np.empty(9, dtype)
    cross_entropy.softmax_loss(z, None, wanted, expected)
    np.testing.assert_allclose(losses.get()[:, 0], expected, rtol=1e-4)


def test_no_rows(cupy, dtype):
    with launches(0):
        empty = [nothing(dtype, 0, 5), None, targets(dtype, 0, 5), nothing(dtype, 0)]
        assert_versions_agree(cross_entropy.softmax_loss, *empty, nothing(dtype, 0))


@pytest.mark.parametrize("bad", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("kind", [targets, distributions])
@pytest.mark.parametrize("vocabulary", [40, 1100])
def test_ignored_rows_may_hold_anything(cupy, dtype, vocabulary, kind, bad):
    z = normal(dtype, 9, vocabulary)
    z[::4] = bad  # as their weights are 0
    losses, scale = nothing(dtype, 9), Values(normal(dtype, 9, seed=2))
    device = assert_versions_agree(
        cross_entropy.softmax_loss, Values(z), None, kind(dtype, 9, vocabulary, 0.1), losses, scale,
        **TOLERANCE,
    )  # fmt: skip
    gradients, found = device[0], device[1]
    assert np.isfinite(gradients).all() and np.isfinite(found).all()
    assert not gradients[::4].any() and not found[::4].any()


@pytest.mark.parametrize("vocabulary", [40, 1100])
def test_a_class_of_probability_0_may_have_a_logit_of_minus_infinity(cupy, dtype, vocabulary):
    z = normal(dtype, 9, vocabulary)
    z[:, ::3] = -np.inf
    losses, scale = nothing(dtype, 9), Values(normal(dtype, 9, seed=2))
    wanted = distributions(dtype, 9, vocabulary)
    device = assert_versions_agree(
        cross_entropy.softmax_loss, Values(z), None, wanted, losses, scale, **TOLERANCE
    )
    assert all(np.isfinite(array).all() for array in device)


@pytest.mark.parametrize("span", [(0, 9), (0, 0), (2, 3), (2, 7), (3, 9), (8, 9)])
def test_some_rows_of_distributions_are_those_of_the_whole(span):
    arrays = [normal(np.float32, n, 4, seed=n) for n in (0, 3, 0, 5, 1, 0)]
    rows = Distributions(arrays).part(slice(*span)).rows()
    np.testing.assert_array_equal(rows, np.concatenate(arrays)[slice(*span)])
    inner = Distributions(arrays).part(slice(1, 9)).part(slice(1, 20)).rows()
    np.testing.assert_array_equal(inner, np.concatenate(arrays)[2:])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [40, 1100])
def test_infinities_and_nan(cupy, dtype, vocabulary, smoothing):
    z = normal(dtype, 9, vocabulary)
    wanted = Targets(np.full(9, 3), np.ones(9, dtype), smoothing)
    z[0] = -np.inf  # all: NaN
    z[1, 3] = -np.inf  # the target: an infinite loss
    z[2, 7::2] = -np.inf  # others: probability 0
    z[3, 35] = np.inf
    z[4, 3] = np.inf
    z[5, 38] = np.nan
    z[6, 0] = np.nan  # the first that a thread sees
    z[7, :35] = -np.inf  # all that some threads see first, and the target
    scale = Values(np.linspace(-1, 1, 9).astype(dtype))
    losses = nothing(dtype, 9)
    assert_versions_agree(
        cross_entropy.softmax_loss, Values(z), None, wanted, losses, scale, **TOLERANCE
    )


@pytest.mark.parametrize("vocabulary", [3, 1030])
def test_large_logits_do_not_overflow(cupy, dtype, vocabulary):
    z = np.full((2, vocabulary), -1e4, dtype)
    z[:, :2] = 1e4, 1e4 - 1
    wanted = Targets(np.array([0, 1]), np.ones(2, dtype), 0.0)
    *_, losses, _ = assert_versions_agree(
        cross_entropy.softmax_loss, Values(z), None, wanted, nothing(dtype, 2),
        Values(np.ones(2, dtype)), **TOLERANCE,
    )  # fmt: skip
    np.testing.assert_allclose(losses, np.log1p(np.exp(-1)) + np.arange(2), rtol=1e-5)


def test_an_ignored_token_may_have_any_id(cupy, dtype):
    z, losses = cupy.asarray(normal(dtype, 3, 5)), cupy.asarray(np.full(3, np.nan, dtype))
    wanted = Targets(np.array([-100, 5, 1 << 30]), np.zeros(3, dtype), 0.1)
    cross_entropy.softmax_loss(z, None, wanted, losses, cupy.zeros(3, dtype))
    queue().flush()
    assert not losses.get().any() and not z.get().any()


@pytest.mark.parametrize("vocabulary", [40, 1100])
def test_bits_do_not_depend_on_the_other_rows(cupy, dtype, vocabulary):
    z, wanted = normal(dtype, 9, vocabulary), targets(dtype, 9, vocabulary, 0.1)
    together, alone = (cupy.asarray(z) for _ in range(2))
    losses, each, scale = (cupy.asarray(normal(dtype, 9)) for _ in range(3))
    cross_entropy.softmax_loss(together, None, wanted, losses, scale)
    for k in range(9):
        row = slice(k, k + 1)
        cross_entropy.softmax_loss(alone[row], None, wanted.part(row), each[row], scale[row])
    queue().flush()
    assert alone.get().tobytes() == together.get().tobytes()
    assert each.get().tobytes() == losses.get().tobytes()


# With the projection ------------------------------------------------------------------------------


def run(make, tokens, vocabulary, dtype, has_bias, gradients, smoothing=0.1, kind=targets):
    """The losses and the wanted gradients, with arrays made by `make`."""
    hidden, weight = normal(dtype, tokens, WIDTH), normal(dtype, vocabulary, WIDTH, seed=1)
    bias = normal(dtype, vocabulary, seed=2) if has_bias else None
    losses = make(np.full(tokens, np.nan, dtype))
    wanted = None
    if gradients:
        wanted = LossGradients(make(normal(dtype, tokens, seed=3)))
        for name, like in (("hidden", hidden), ("weight", weight), ("bias", bias)):
            if name in gradients and like is not None:
                setattr(wanted, name, make(np.full(like.shape, np.nan, dtype)))
    weight = make(weight)
    room = cross_entropy.workspace(spec_of(weight), tokens, vocabulary)
    scratch = make(np.full(room, np.nan, dtype))
    cross_entropy.linear_cross_entropy(
        make(hidden), weight, bias if bias is None else make(bias),
        kind(dtype, tokens, vocabulary, smoothing), losses, scratch, wanted,
    )  # fmt: skip
    found = [losses, *([wanted.hidden, wanted.weight, wanted.bias] if wanted else [])]
    return [array for array in found if array is not None]


@pytest.mark.parametrize("gradients", ["", "hidden", "weight bias", "hidden weight bias"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("tokens", [0, 1, 33])
@pytest.mark.parametrize("kind", [targets, distributions])
def test_chunks(cupy, dtype, monkeypatch, kind, tokens, chunk, has_bias, gradients):
    monkeypatch.setattr(cross_entropy, "chunk_rows", lambda n, *rest: max(1, min(n, chunk)))
    before = queue().launches
    found = run(cupy.asarray, tokens, 11, dtype, has_bias, gradients, kind=kind)
    queue().flush()
    expected = run(np.array, tokens, 11, dtype, has_bias, gradients, kind=kind)
    tolerance = 2e-5 if dtype == np.float32 else 1e-13
    for got, array in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.get(), array, rtol=tolerance, atol=tolerance)
    if tokens:
        chunks = -(-tokens // chunk)
        each = 2 + len({*gradients.split()} - {"bias"})
        sums = chunks + int(chunks > 1) if has_bias and "bias" in gradients else 0
        assert queue().launches - before == chunks * each + sums


def test_a_bias_gradient_of_many_rows_in_one_chunk(cupy, dtype):
    found = run(cupy.asarray, 700, 3, dtype, True, "bias")
    queue().flush()
    expected = run(np.array, 700, 3, np.dtype(np.float64), True, "bias")
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found[1].get(), expected[1], rtol=tolerance, atol=tolerance)


def test_two_runs_give_the_same_bits(cupy, dtype):
    runs = [run(cupy.asarray, 33, 11, dtype, True, "hidden weight bias") for _ in range(2)]
    queue().flush()
    for first, second in zip(*runs, strict=True):
        assert first.get().tobytes() == second.get().tobytes()


def test_targets_come_up_once_for_all_chunks_and_scratch_is_a_chunk(cupy, monkeypatch):
    monkeypatch.setattr(cross_entropy, "chunk_rows", lambda n, *rest: min(n, 8))
    dtype, before = np.dtype(np.float32), (queue().uploads, queue().uploaded_bytes)
    run(cupy.asarray, 64, 11, dtype, True, "hidden weight")
    queue().flush()
    assert (queue().uploads - before[0], queue().uploaded_bytes - before[1]) == (1, 64 * 8)
    weight = np.zeros((11, WIDTH), dtype)
    assert cross_entropy.workspace(spec_of(cupy.asarray(weight)), 64, 11) == 8 * 11 + 8
    assert cross_entropy.workspace(spec_of(weight), 64, 11) == 8 * 11


@pytest.mark.parametrize("lengths", [(), (0,), (0, 3, 0, 1, 33, 0, 0, 300), (1,) * 40])
def test_token_scales(cupy, dtype, lengths):
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    dy, weights = Values(normal(dtype, len(lengths))), normal(dtype, sum(lengths), seed=1)
    with launches(int(sum(lengths) > 0)):
        assert_versions_agree(
            cross_entropy.token_scales, dy, weights, offsets, nothing(dtype, sum(lengths))
        )
