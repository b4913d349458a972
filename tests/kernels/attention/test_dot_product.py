import numpy as np
import pytest

from dynbatch.backend import CPU, ArraySpec, spec_of
from dynbatch.kernels.attention import blocks as score_blocks
from dynbatch.kernels.attention import dot_product as attention
from dynbatch.kernels.attention.bias import ScoreBias
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel
from tests.attention_reference import LENGTHS, dot, pack, sentence, slope, visible

QUERIES, KEYS = [a for a, _ in LENGTHS], [b for _, b in LENGTHS]
SCALES = np.linspace(0.2, 1.5, len(LENGTHS))
WIDTH, VALUE_WIDTH = 6, 4
HOST = ArraySpec(CPU, np.dtype(np.float64))


def masks_of(name):
    rng = np.random.default_rng(5)
    if name == "mixed":  # another one for each sentence
        masks = [rng.random(pair) < 0.6 for pair in LENGTHS]
        return [Mask(UNBOUNDED, 0), NO_MASK, Mask(1, 1)] + [Mask(visible=m) for m in masks[3:]]
    one = {"all": NO_MASK, "causal": Mask(UNBOUNDED, 0), "window": Mask(2, 2)}[name]
    return [one] * len(LENGTHS)


def packed_of(dtype=np.float64):
    (q, query_offsets), (k, key_offsets) = pack(QUERIES, WIDTH, 1), pack(KEYS, WIDTH, 2)
    v, _ = pack(KEYS, VALUE_WIDTH, 3)
    return PackedAttention(*[x.astype(dtype) for x in (q, k, v)], query_offsets, key_offsets)


def forward(packed, heads, masks, shared=1, bias=None):
    scoring = Scoring(heads, SCALES.astype(packed.queries.dtype), masks, shared, bias)
    width = packed.values.shape[1] * shared
    out = np.full((packed.queries.shape[0], width), np.nan, packed.queries.dtype)
    log_sums = np.full((packed.queries.shape[0], heads), np.nan, packed.queries.dtype)
    scratch = np.empty(attention.workspace(spec_of(out), QUERIES, KEYS, scoring), out.dtype)
    attention.dot_attention(packed, scoring, out, log_sums, scratch)
    return out, log_sums


def backward(packed, heads, masks, log_sums, dout, wanted, shared=1, bias=None):
    scoring = Scoring(heads, SCALES.astype(dout.dtype), masks, shared, bias)
    scratch = np.empty(
        attention.workspace_backward(spec_of(dout), QUERIES, KEYS, scoring), dout.dtype
    )
    attention.dot_attention_backward(packed, scoring, log_sums, None, dout, wanted, scratch)


def written_out(packed, heads, masks, bias=None):
    rows = []
    for k, (queries, keys) in enumerate(LENGTHS):
        q = sentence(packed.queries, packed.query_offsets, k)
        key, value = [sentence(x, packed.key_offsets, k) for x in packed[1:3]]
        left, right, mask = masks[k]
        seen = visible(queries, keys, left, right, mask)
        rows.append(dot(q, key, value, SCALES[k], heads, seen, bias))
    return np.concatenate(rows)


@pytest.fixture(params=["one block", "many blocks", "two threads"])
def blocks(request, monkeypatch):
    """However the work is cut, the numbers are the same."""
    if request.param != "one block":
        monkeypatch.setattr(score_blocks, "BLOCK_ELEMENTS", 50)
        monkeypatch.setattr(score_blocks, "BAND_ROWS", 3)
    if request.param == "two threads":
        monkeypatch.setattr(score_blocks, "WORTH_A_THREAD", 0)
        monkeypatch.setattr(parallel, "num_threads", lambda: 2)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("masks", ["all", "causal", "window", "mixed"])
def test_values_equal_attention_written_out(heads, masks, blocks):
    packed, masks = packed_of(), masks_of(masks)
    out, _ = forward(packed, heads, masks)
    assert np.allclose(out, written_out(packed, heads, masks), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("masks", ["all", "causal", "window", "mixed"])
def test_gradients_equal_central_differences(heads, masks, blocks):
    packed, masks = packed_of(), masks_of(masks)
    out, log_sums = forward(packed, heads, masks)
    rng = np.random.default_rng(7)
    dout = rng.standard_normal(out.shape)
    gradients = [np.full_like(x, np.nan) for x in packed[:3]]
    backward(packed, heads, masks, log_sums, dout, AttentionGradients(*gradients))

    def loss(*arrays):
        changed = PackedAttention(*arrays, *packed[3:])
        return (written_out(changed, heads, masks) * dout).sum()

    for which in range(3):
        directions = [np.zeros_like(x) for x in packed[:3]]
        directions[which] = rng.standard_normal(directions[which].shape)
        expected = slope(loss, packed[:3], directions)
        assert np.isclose((gradients[which] * directions[which]).sum(), expected, rtol=1e-7)


class TwoAway:
    """Rows 0 … 4 of a table for distances -2 … 2, and beyond."""

    @staticmethod
    def rows(distances):
        return np.clip(distances, -2, 2) + 2


TABLE = np.random.default_rng(4).standard_normal((5, 2))


def by_table(table):
    return lambda head, distance: table[min(max(distance, -2), 2) + 2, head]


@pytest.mark.parametrize("masks", ["all", "causal", "window", "mixed"])
def test_a_bias_is_added_by_distance(masks, blocks):
    packed, masks = packed_of(), masks_of(masks)
    out, _ = forward(packed, 2, masks, bias=ScoreBias(TABLE, TwoAway))
    expected = written_out(packed, 2, masks, by_table(TABLE))
    assert np.allclose(out, expected, rtol=1e-12, atol=1e-12)
    slopes = np.array([[-0.5, -0.25]])
    out, _ = forward(packed, 2, masks, bias=ScoreBias(slopes, None))
    expected = written_out(packed, 2, masks, lambda head, far: slopes[0, head] * abs(far))
    assert np.allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masks", ["all", "mixed"])
def test_gradients_of_a_bias_equal_central_differences(masks, blocks):
    packed, masks, bias = packed_of(), masks_of(masks), ScoreBias(TABLE, TwoAway)
    out, log_sums = forward(packed, 2, masks, bias=bias)
    rng = np.random.default_rng(7)
    dout = rng.standard_normal(out.shape)
    found = [np.full_like(x, np.nan) for x in (*packed[:3], TABLE)]
    wanted = AttentionGradients(*found[:3], bias=found[3])
    backward(packed, 2, masks, log_sums, dout, wanted, bias=bias)

    def loss(q, k, v, table):
        changed = PackedAttention(q, k, v, *packed[3:])
        return (written_out(changed, 2, masks, by_table(table)) * dout).sum()

    for which, gradient in enumerate(found):
        directions = [np.zeros_like(x) for x in found]
        directions[which] = rng.standard_normal(gradient.shape)
        expected = slope(loss, (*packed[:3], TABLE), directions)
        assert np.isclose((gradient * directions[which]).sum(), expected, rtol=1e-7)
    alone = np.full_like(TABLE, np.nan)
    wanted = AttentionGradients(None, None, None, bias=alone)
    backward(packed, 2, masks, log_sums, dout, wanted, bias=bias)
    assert (alone == found[3]).all()


@pytest.mark.parametrize("lengths", [[9, 1], [1, 9], [1, 9, 1], [3, 3, 3], [0, 5]])
def test_threads_share_all_sentences_and_none_is_left_without_one(lengths, monkeypatch):
    monkeypatch.setattr(score_blocks, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(parallel, "num_threads", lambda: 2)
    packed = PackedAttention(*[pack(lengths, WIDTH, 1)[0]] * 3, *[pack(lengths, 1, 1)[1]] * 2)
    scoring = Scoring(1, np.ones(len(lengths)), [NO_MASK] * len(lengths))
    shards = []
    score_blocks.share(packed, scoring, np.empty(8), lambda span, room: shards.append(span))
    assert all(shards)
    assert sorted([n for span in shards for n in span]) == list(range(len(lengths)))


@pytest.mark.parametrize("masks", ["all", "mixed"])
def test_heads_that_share_keys_give_what_repeated_keys_give(masks, blocks):
    packed, masks, shared = packed_of(), masks_of(masks), 3
    queries, _ = pack(QUERIES, 2 * shared * 3, 1)  # six heads of queries, two of keys
    packed = packed._replace(queries=queries)

    def repeated(rows):
        heads = rows.reshape(len(rows), 2, -1)
        return np.repeat(heads, shared, axis=1).reshape(len(rows), -1)

    whole = packed._replace(keys=repeated(packed.keys), values=repeated(packed.values))
    out, log_sums = forward(packed, 6, masks, shared)
    expected, of_repeated = forward(whole, 6, masks)
    assert np.allclose(out, expected, rtol=1e-12, atol=1e-12)
    assert np.allclose(log_sums, of_repeated, rtol=1e-12, atol=1e-12)
    dout = np.random.default_rng(7).standard_normal(out.shape)
    found = [np.full_like(x, np.nan) for x in packed[:3]]
    backward(packed, 6, masks, log_sums, dout, AttentionGradients(*found), shared)
    wanted = [np.full_like(x, np.nan) for x in whole[:3]]
    backward(whole, 6, masks, log_sums, dout, AttentionGradients(*wanted))
    for one, other in zip(found[1:], wanted[1:], strict=True):
        summed = other.reshape(len(other), 2, shared, -1).sum(axis=2)
        assert np.allclose(one, summed.reshape(one.shape), rtol=1e-12, atol=1e-12)
    assert np.allclose(found[0], wanted[0], rtol=1e-12, atol=1e-12)


def test_log_sums_are_those_of_the_scores_and_infinite_where_nothing_is_seen():
    packed = packed_of()
    _, log_sums = forward(packed, 1, masks_of("all"))
    for k, (queries, keys) in enumerate(LENGTHS):
        q = sentence(packed.queries, packed.query_offsets, k)
        key = sentence(packed.keys, packed.key_offsets, k)
        found = sentence(log_sums, packed.query_offsets, k)[:, 0]
        if not keys:
            assert (found == np.inf).all() and found.size == queries
            continue
        assert np.allclose(found, np.log(np.exp(SCALES[k] * q @ key.T).sum(axis=1)))


def test_large_scores_neither_overflow_nor_lose_their_order():
    packed = packed_of(np.float32)
    packed = packed._replace(queries=packed.queries * 1e4)
    out, log_sums = forward(packed, 1, masks_of("all"))
    dout = np.ones_like(out)
    gradients = [np.empty_like(x) for x in packed[:3]]
    backward(packed, 1, masks_of("all"), log_sums, dout, AttentionGradients(*gradients))
    assert all(np.isfinite(x).all() for x in [out, *gradients])
    assert np.allclose(out, written_out(packed, 1, masks_of("all")), atol=1e-3)


@pytest.mark.parametrize("masks", ["all", "mixed"])
def test_accumulating_adds_to_keys_and_values_and_overwrites_queries(masks, blocks):
    packed, masks = packed_of(), masks_of(masks)
    out, log_sums = forward(packed, 2, masks)
    dout = np.random.default_rng(3).standard_normal(out.shape)
    fresh = [np.full_like(x, np.nan) for x in packed[:3]]
    backward(packed, 2, masks, log_sums, dout, AttentionGradients(*fresh))
    added = [np.full_like(x, 10.0) for x in packed[:3]]
    backward(packed, 2, masks, log_sums, dout, AttentionGradients(*added, accumulate=True))
    assert np.allclose(added[0], fresh[0], atol=1e-12)
    assert np.allclose(added[1], 10 + fresh[1], atol=1e-12)
    assert np.allclose(added[2], 10 + fresh[2], atol=1e-12)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_each_gradient_can_be_asked_for_alone(wanted):
    packed, masks = packed_of(), masks_of("mixed")
    out, log_sums = forward(packed, 2, masks)
    dout = np.random.default_rng(3).standard_normal(out.shape)
    every = [np.empty_like(x) for x in packed[:3]]
    backward(packed, 2, masks, log_sums, dout, AttentionGradients(*every))
    some = [np.empty_like(x) if w else None for x, w in zip(packed[:3], wanted, strict=True)]
    backward(packed, 2, masks, log_sums, dout, AttentionGradients(*some))
    assert all(a is None or (a == b).all() for a, b in zip(some, every, strict=True))


def test_scratch_is_bounded_for_long_sentences():
    def scratch(length, heads, mask, bias=None):
        scoring = Scoring(heads, np.ones(1), [mask], 1, bias)
        with library.reference_only():
            return attention.workspace(HOST, [length], [length], scoring)

    one_row = 8 * 100_000
    assert scratch(100_000, 8, NO_MASK) == one_row
    assert scratch(5000, 1, NO_MASK) <= score_blocks.BLOCK_ELEMENTS
    assert scratch(100_000, 8, Mask(64, 64)) <= score_blocks.BLOCK_ELEMENTS
    distances = 2 * 100_000 - 1
    slopes = ScoreBias(np.ones((1, 8)), None)
    assert scratch(100_000, 8, NO_MASK, slopes) == one_row + 8 * distances


def test_a_batch_without_sentences_is_no_work():
    empty = PackedAttention(
        *[np.empty((0, 4)) for _ in range(3)], *[np.zeros(1, np.int64) for _ in range(2)]
    )
    assert attention.workspace(HOST, [], [], Scoring(1, np.empty(0), [])) == 0
    attention.dot_attention(empty, Scoring(1, np.empty(0), []), np.empty((0, 4)), None, np.empty(0))
