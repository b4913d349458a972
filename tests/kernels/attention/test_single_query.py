"""One query a sentence: the same numbers as the general kernels, whose tests hold the oracle."""

import numpy as np
import pytest

from dynbatch.backend import CPU, ArraySpec
from dynbatch.kernels import segment
from dynbatch.kernels.attention import additive as additive_attention
from dynbatch.kernels.attention import dot_product as attention
from dynbatch.kernels.attention import single_query
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.deferred import DeferredGradients, StepProducts
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from tests.attention_reference import pack

pytestmark = pytest.mark.usefixtures("block")

KEYS = [5, 1, 30, 2, 1, 17, 9]
COUNT, WIDTH, VALUE_WIDTH = len(KEYS), 6, 4
SCALES = np.linspace(0.3, 1.2, COUNT)
HOST = ArraySpec(CPU, np.dtype(np.float64))


def inputs():
    (q, query_offsets), (k, key_offsets) = pack([1] * COUNT, WIDTH, 1), pack(KEYS, WIDTH, 2)
    v, _ = pack(KEYS, VALUE_WIDTH, 3)
    return PackedAttention(q, k, v, query_offsets, key_offsets)


def fresh(packed, value=np.nan):
    return [np.full_like(x, value) for x in packed[:3]]


def room():
    return np.empty(single_query.workspace_backward(HOST, KEYS, WIDTH))


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """However the work is cut, the numbers are the same."""
    if request.param == "many blocks":
        monkeypatch.setattr(segment, "BLOCK", 70)


def close(found, expected):
    return all(
        np.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("scales", [SCALES, np.ones(1)])
def test_dot_attention_equals_the_general_kernel(scales, blocks):
    packed = inputs()
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    scoring = Scoring(1, np.broadcast_to(scales, COUNT), [NO_MASK] * COUNT)
    scratch = np.empty(attention.workspace_backward(HOST, [1] * COUNT, KEYS, scoring))
    expected = [np.empty((COUNT, VALUE_WIDTH)), np.empty((COUNT, 1))]
    attention.dot_attention(packed, scoring, *expected, scratch)
    found = [np.full_like(x, np.nan) for x in expected]
    single_query.dot_attention(packed, scales, sentences, *found, np.empty(sum(KEYS)))
    assert close(found, expected)

    dout = np.random.default_rng(9).standard_normal((COUNT, VALUE_WIDTH))
    gradients = fresh(packed)
    attention.dot_attention_backward(
        packed, scoring, expected[1], None, dout, AttentionGradients(*gradients), scratch
    )
    overwritten, added = fresh(packed), fresh(packed, 10.0)
    later, at_once = DeferredGradients(sum(KEYS)), fresh(packed, 10.0)
    for wanted in (
        AttentionGradients(*overwritten),
        AttentionGradients(*at_once, accumulate=True),
        AttentionGradients(*added, True, later),
    ):
        single_query.dot_attention_backward(
            packed, scales, sentences, found[1], dout, wanted, room()
        )
    later.add_to(*added[1:], packed.key_offsets, None)
    assert close(overwritten, gradients)
    for found in (at_once, added):
        assert close(found, [gradients[0], 10 + gradients[1], 10 + gradients[2]])


def test_additive_attention_equals_the_general_kernel(blocks):
    packed = inputs()
    vector = np.random.default_rng(4).standard_normal(WIDTH)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    ones = [1] * COUNT
    elements = additive_attention.workspace_backward(HOST, ones, KEYS, WIDTH, VALUE_WIDTH)
    scratch = np.empty(elements)
    expected = [np.empty((COUNT, VALUE_WIDTH)), np.empty(sum(KEYS))]
    additive_attention.additive_attention(packed, vector, [NO_MASK] * COUNT, *expected, scratch)
    found = [np.full_like(x, np.nan) for x in expected]
    single_query.additive_attention(packed, vector, sentences, *found, room())
    assert close(found, expected)

    dout = np.random.default_rng(9).standard_normal((COUNT, VALUE_WIDTH))
    gradients = fresh(packed)
    dvector = additive_attention.additive_attention_backward(
        packed, vector, expected[1], dout, AttentionGradients(*gradients), scratch
    )
    overwritten, added = fresh(packed), fresh(packed, 10.0)
    later, at_once = DeferredGradients(sum(KEYS)), fresh(packed, 10.0)
    for wanted in (
        AttentionGradients(*overwritten),
        AttentionGradients(*at_once, accumulate=True),
        AttentionGradients(*added, True, later),
    ):
        again = single_query.additive_attention_backward(
            packed, vector, sentences, found[1], dout, wanted, room()
        )
        assert np.allclose(again, dvector, atol=1e-12)
    later.add_to(*added[1:], packed.key_offsets, vector)
    assert close(overwritten, gradients)
    for found in (at_once, added):
        assert close(found, [gradients[0], 10 + gradients[1], 10 + gradients[2]])


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_each_gradient_can_be_asked_for_alone(wanted):
    packed = inputs()
    vector = np.random.default_rng(4).standard_normal(WIDTH)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    dout = np.random.default_rng(9).standard_normal((COUNT, VALUE_WIDTH))
    out, log_sums, weights = np.empty_like(dout), np.empty((COUNT, 1)), np.empty(sum(KEYS))
    single_query.dot_attention(packed, SCALES, sentences, out, log_sums, np.empty(sum(KEYS)))
    single_query.additive_attention(packed, vector, sentences, out, weights, room())

    def dot(gradients):
        single_query.dot_attention_backward(
            packed, SCALES, sentences, log_sums, dout, AttentionGradients(*gradients), room()
        )

    def additive(gradients):
        single_query.additive_attention_backward(
            packed, vector, sentences, weights, dout, AttentionGradients(*gradients), room()
        )

    for backward in (dot, additive):
        every = fresh(packed)
        backward(every)
        some = [x if w else None for x, w in zip(fresh(packed), wanted, strict=True)]
        backward(some)
        assert all(a is None or (a == b).all() for a, b in zip(some, every, strict=True))


def test_blocks_hold_whole_sentences_and_every_one_once(monkeypatch):
    monkeypatch.setattr(segment, "BLOCK", 10 * WIDTH)
    offsets = inputs().key_offsets
    blocks = [(block.start, block.stop) for block, _ in segment.groups(offsets, WIDTH)]
    assert blocks == [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7)]
    largest = max(offsets[last] - offsets[first] for first, last in blocks)
    assert single_query.additive_workspace(HOST, KEYS, WIDTH) >= largest * WIDTH


def test_what_steps_leave_is_the_sum_of_their_products():
    """Steps come the last one first: each has more sentences, or as many."""
    offsets, rng = np.array([0, 3, 4, 9]), np.random.default_rng(6)
    left, expected = StepProducts(), np.full((9, 2), 10.0)
    for count in (1, 1, 3):
        rows = offsets[count]
        weights, vectors = rng.standard_normal(rows), rng.standard_normal((count, 2))
        left.add(weights, vectors)
        sentences = single_query.sentence_of_rows(offsets[: count + 1])
        expected[:rows] += weights[:, None] * vectors[sentences]
        vectors[...] = np.nan  # the step's own memory goes to others
    found = np.full((9, 2), 10.0)
    left.add_to(found, offsets)
    assert np.allclose(found, expected, rtol=1e-12)
