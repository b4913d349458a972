from itertools import pairwise, product

import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.losses import crf as kernels
from dynbatch.kernels.losses.crf import Chain

LENGTHS = (2, 0, 4, 1, 3, 4)
TAGS = 3


def problem(lengths=LENGTHS, tags=TAGS, spread=1.0, seed=0):
    """Emissions, chain, tags and offsets."""
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *lengths])
    shapes = ((tags, tags), (tags,), (tags,))
    chain = Chain(*[spread * rng.standard_normal(shape) for shape in shapes])
    x = spread * rng.standard_normal((offsets[-1], tags))
    return x, chain, rng.integers(0, tags, offsets[-1]), offsets


def score(x, chain, tags):
    if not len(tags):
        return 0.0
    between = sum([chain.transitions[pair] for pair in pairwise(tags)])
    emitted = sum([row[tag] for row, tag in zip(x, tags, strict=True)])
    return chain.start[tags[0]] + emitted + between + chain.end[tags[-1]]


def forward(x, chain, ids, offsets):
    """Losses, and what forward leaves for backward."""
    log_sums, shifts = np.full(x.shape, np.nan, x.dtype), np.full(x.shape[0], np.nan, x.dtype)
    out = np.full(offsets.size - 1, np.nan, x.dtype)
    kernels.crf(x, chain, ids, offsets, log_sums, shifts, out)
    return out, (log_sums, shifts)


def backward(x, chain, ids, offsets, dy):
    """dx, and the gradients of the chain."""
    _, left = forward(x, chain, ids, offsets)
    dx, wanted = np.full_like(x, np.nan), Chain(*[np.full_like(part, np.nan) for part in chain])
    kernels.crf_backward(x, chain, ids, offsets, *left, dy, dx, wanted, room(x))
    return [dx, *wanted]


def room(x):
    return np.empty(kernels.workspace_backward(spec_of(x), *x.shape), x.dtype)


def every_path(x, chain):
    """Each tag sequence of a sentence, and its score."""
    paths = list(product(range(x.shape[1]), repeat=len(x)))
    return paths, np.array([score(x, chain, path) for path in paths])


def sentences(x, offsets, *more):
    return [[part[a:b] for part in (x, *more)] for a, b in pairwise(offsets.tolist())]


def test_the_loss_is_that_of_all_paths_enumerated():
    x, chain, ids, offsets = problem()
    losses, _ = forward(x, chain, ids, offsets)
    for loss, (own, tags) in zip(losses, sentences(x, offsets, ids), strict=True):
        _, scores = every_path(own, chain)
        np.testing.assert_allclose(loss, np.log(np.exp(scores).sum()) - score(own, chain, tags))


def test_the_gradient_is_that_of_all_paths_enumerated():
    """Probabilities of tags and of pairs, less those of the sentence, weighted by dy."""
    x, chain, ids, offsets = problem()
    dy = np.random.default_rng(1).standard_normal(len(LENGTHS))
    dx, *found = backward(x, chain, ids, offsets, dy)
    expected = Chain(*[np.zeros_like(part) for part in chain])
    for (own, tags, slope), weight in zip(sentences(x, offsets, ids, dx), dy, strict=True):
        paths, scores = every_path(own, chain)
        weights = np.append(np.exp(scores) / np.exp(scores).sum(), -1.0) * weight
        sums = np.zeros_like(own)
        for path, p in zip([*paths, tuple(tags)], weights, strict=True):
            for t, tag in enumerate(path):
                sums[t, tag] += p
            for pair in pairwise(path):
                expected.transitions[pair] += p
            if path:
                expected.start[path[0]] += p
                expected.end[path[-1]] += p
        np.testing.assert_allclose(slope, sums, atol=1e-13)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-13)


def test_the_best_path_is_that_of_all_paths_enumerated():
    x, chain, _, offsets = problem()
    out = np.full(x.shape[0], np.nan)
    kernels.viterbi(x, chain, offsets, out, np.empty(x.size))
    for own, tags in sentences(x, offsets, out):
        paths, scores = every_path(own, chain)
        assert tuple(tags.astype(int)) == paths[int(scores.argmax())]


def test_the_best_path_does_not_depend_on_blocks(monkeypatch):
    x, chain, _, offsets = problem(lengths=(9, 8, 8, 0, 2) * 3)
    whole, cut = np.empty((2, x.shape[0]))
    kernels.viterbi(x, chain, offsets, whole, np.empty(x.size))
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 4 * TAGS * TAGS)
    kernels.viterbi(x, chain, offsets, cut, np.empty(x.size))
    assert np.array_equal(whole, cut)


def in_log_space(x, chain, ids):
    """The loss of one sentence by the textbook recursion in float128, where NumPy has it."""
    x, ids = x.astype(np.longdouble), ids.tolist()
    a = chain.start + x[0]
    for row in x[1:]:
        a = np.logaddexp.reduce(a[:, None] + chain.transitions, axis=0) + row
    return np.logaddexp.reduce(a + chain.end) - score(x, chain, ids)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spread", [1, 30, 1000])
def test_large_scores_do_not_overflow_and_small_sums_are_not_lost(dtype, spread):
    x, chain, ids, offsets = problem((40, 7, 1), 5, spread)
    x, chain = x.astype(dtype), Chain(*[part.astype(dtype) for part in chain])
    losses, _ = forward(x, chain, ids, offsets)
    expected = [in_log_space(own, chain, tags) for own, tags in sentences(x, offsets, ids)]
    np.testing.assert_allclose(losses, np.array(expected, dtype), rtol=50 * np.finfo(dtype).eps)
    dx, transitions, start, end = backward(x, chain, ids, offsets, np.ones(3, dtype))
    rounding = 100 * spread * np.finfo(dtype).eps  # that of a score is a factor of a probability
    np.testing.assert_allclose(dx.sum(axis=1), 0, atol=rounding)
    for gradient in (transitions, start, end):  # as many pairs expected as there are
        np.testing.assert_allclose(gradient.sum(), 0, atol=rounding)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_way_that_underflows_is_found_where_it_is_the_only_one(dtype):
    """Tag 1 is e^-2000 as likely as tag 0 at first; the second token must follow tag 1."""
    x = np.array([[0, -2000], [-2000, 0]], dtype)
    chain = Chain(np.array([[0, -1e5], [-1e5, 0]], dtype), *np.zeros((2, 2), dtype))
    ids, offsets = np.array([1, 1]), np.array([0, 2])
    losses, _ = forward(x, chain, ids, offsets)
    np.testing.assert_allclose(losses, np.log(2), rtol=1e-4)
    dx, transitions, *_ = backward(x, chain, ids, offsets, np.ones(1, dtype))
    np.testing.assert_allclose(dx, [[0.5, -0.5], [0.5, -0.5]], rtol=1e-4)
    np.testing.assert_allclose(transitions, [[0.5, 0], [0, -0.5]], rtol=1e-4)


def test_a_forbidden_transition_has_no_part_in_anything():
    x, chain, ids, offsets = problem((5, 0, 3))
    chain.transitions[0, 1] = chain.transitions[:, 2] = chain.start[0] = -np.inf
    ids[...] = 1
    losses, _ = forward(x, chain, ids, offsets)
    for loss, (own, tags) in zip(losses, sentences(x, offsets, ids), strict=True):
        _, scores = every_path(own, chain)
        np.testing.assert_allclose(loss, np.log(np.exp(scores).sum()) - score(own, chain, tags))
    dx, *gradients = backward(x, chain, ids, offsets, np.ones(3))
    assert all(np.isfinite(part).all() for part in (dx, *gradients))
    assert gradients[0][0, 1] == 0 and not gradients[0][:, 2].any() and gradients[1][0] == 0
    out = np.empty(x.shape[0])
    kernels.viterbi(x, chain, offsets, out, np.empty(x.size))
    for own, tags in sentences(x, offsets, out):
        assert not len(own) or score(own, chain, tags.astype(int)) > -np.inf


def test_tags_that_the_chain_forbids_are_infinitely_unlikely():
    x, chain, ids, offsets = problem((3,))
    chain.transitions[ids[0], ids[1]] = -np.inf
    assert forward(x, chain, ids, offsets)[0].tolist() == [np.inf]


def test_a_nan_stays_in_its_sentence():
    x, chain, ids, offsets = problem((3, 5, 2))
    x[offsets[1]] = np.nan
    losses, _ = forward(x, chain, ids, offsets)
    assert np.isnan(losses).tolist() == [False, True, False]
    dx = backward(x, chain, ids, offsets, np.ones(3))[0]
    assert np.isnan(dx).any(axis=1).tolist() == [False] * 3 + [True] * 5 + [False] * 2


def test_gradients_of_the_chain_are_made_where_wanted():
    x, chain, ids, offsets = problem()
    _, left = forward(x, chain, ids, offsets)
    dx = np.empty_like(x)
    args = (x, chain, ids, offsets, *left, np.ones(len(LENGTHS)), dx)
    kernels.crf_backward(*args, Chain(None, None, None), room(x))
    assert np.array_equal(dx, backward(x, chain, ids, offsets, np.ones(len(LENGTHS)))[0])


@pytest.mark.parametrize("lengths", [(), (0, 0)])
def test_no_sentences_and_empty_ones_are_nothing_to_do(lengths):
    x, chain, ids, offsets = problem(lengths)
    assert not forward(x, chain, ids, offsets)[0].any()
    gradients = backward(x, chain, ids, offsets, np.ones(len(lengths)))
    assert not any(part.any() for part in gradients)
    kernels.viterbi(x, chain, offsets, np.empty(0), np.empty(x.size))
