import numpy as np
import pytest

from dynbatch.backend import CPU, ArraySpec
from dynbatch.kernels.attention import additive as kernels
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from tests.attention_reference import LENGTHS, additive, pack, sentence, slope, visible

QUERIES, KEYS = [a for a, _ in LENGTHS], [b for _, b in LENGTHS]
WIDTH, VALUE_WIDTH = 5, 4
HOST = ArraySpec(CPU, np.dtype(np.float64))


def masks_of(name):
    if name == "all":
        return [NO_MASK] * len(LENGTHS)
    rng = np.random.default_rng(5)
    return [NO_MASK] + [Mask(visible=rng.random(pair) < 0.6) for pair in LENGTHS[1:]]


def inputs():
    (q, query_offsets), (k, key_offsets) = pack(QUERIES, WIDTH, 1), pack(KEYS, WIDTH, 2)
    v, _ = pack(KEYS, VALUE_WIDTH, 3)
    vector = np.random.default_rng(4).standard_normal(WIDTH)
    return PackedAttention(q, k, v, query_offsets, key_offsets), vector


def forward(packed, vector, masks):
    out = np.full((packed.queries.shape[0], VALUE_WIDTH), np.nan)
    weights = np.full(sum(a * b for a, b in LENGTHS), np.nan)
    scratch = np.empty(kernels.workspace(HOST, QUERIES, KEYS, WIDTH))
    kernels.additive_attention(packed, vector, masks, out, weights, scratch)
    return out, weights


def backward(packed, vector, weights, dout, wanted):
    scratch = np.empty(kernels.workspace_backward(HOST, QUERIES, KEYS, WIDTH, VALUE_WIDTH))
    return kernels.additive_attention_backward(packed, vector, weights, dout, wanted, scratch)


def written_out(packed, vector, masks):
    rows = []
    for k, (queries, keys) in enumerate(LENGTHS):
        q = sentence(packed.queries, packed.query_offsets, k)
        key, value = [sentence(x, packed.key_offsets, k) for x in packed[1:3]]
        seen = visible(queries, keys, mask=masks[k].visible)
        rows.append(additive(q, key, value, vector, seen))
    return np.concatenate(rows)


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """However the work is cut, the numbers are the same."""
    if request.param == "many blocks":
        monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 60)


@pytest.mark.parametrize("masks", ["all", "masks"])
def test_values_equal_attention_written_out(masks, blocks):
    packed, vector = inputs()
    out, _ = forward(packed, vector, masks_of(masks))
    expected = written_out(packed, vector, masks_of(masks))
    assert np.allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masks", ["all", "masks"])
def test_gradients_equal_central_differences(masks, blocks):
    packed, vector = inputs()
    masks = masks_of(masks)
    out, weights = forward(packed, vector, masks)
    rng = np.random.default_rng(7)
    dout = rng.standard_normal(out.shape)
    gradients = [np.full_like(x, np.nan) for x in packed[:3]]
    gradients.append(backward(packed, vector, weights, dout, AttentionGradients(*gradients)))

    def loss(q, k, v, u):
        changed = packed._replace(queries=q, keys=k, values=v)
        return (written_out(changed, u, masks) * dout).sum()

    arrays = [*packed[:3], vector]
    for which in range(4):
        directions = [np.zeros_like(x) for x in arrays]
        directions[which] = rng.standard_normal(arrays[which].shape)
        expected = slope(loss, arrays, directions)
        assert np.isclose((gradients[which] * directions[which]).sum(), expected, rtol=1e-7)


def test_weights_of_a_query_sum_to_one_or_to_zero_where_it_sees_nothing():
    packed, vector = inputs()
    masks = masks_of("masks")
    _, weights = forward(packed, vector, masks)
    start = 0
    for (queries, keys), mask in zip(LENGTHS, masks, strict=True):
        rows = weights[start : start + queries * keys].reshape(queries, keys)
        seen = visible(queries, keys, mask=mask.visible)
        assert np.allclose(rows.sum(axis=1), seen.any(axis=1))
        assert (rows[~seen] == 0).all()
        start += queries * keys


def test_accumulating_adds_to_keys_and_values_and_overwrites_queries(blocks):
    packed, vector = inputs()
    out, weights = forward(packed, vector, masks_of("masks"))
    dout = np.random.default_rng(3).standard_normal(out.shape)
    fresh = [np.full_like(x, np.nan) for x in packed[:3]]
    backward(packed, vector, weights, dout, AttentionGradients(*fresh))
    added = [np.full_like(x, 10.0) for x in packed[:3]]
    backward(packed, vector, weights, dout, AttentionGradients(*added, accumulate=True))
    assert np.allclose(added[0], fresh[0], atol=1e-12)
    assert np.allclose(added[1], 10 + fresh[1], atol=1e-12)
    assert np.allclose(added[2], 10 + fresh[2], atol=1e-12)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_each_gradient_can_be_asked_for_alone(wanted):
    packed, vector = inputs()
    out, weights = forward(packed, vector, masks_of("masks"))
    dout = np.random.default_rng(3).standard_normal(out.shape)
    every = [np.empty_like(x) for x in packed[:3]]
    whole = backward(packed, vector, weights, dout, AttentionGradients(*every))
    some = [np.empty_like(x) if w else None for x, w in zip(packed[:3], wanted, strict=True)]
    assert (backward(packed, vector, weights, dout, AttentionGradients(*some)) == whole).all()
    assert all(a is None or (a == b).all() for a, b in zip(some, every, strict=True))


def test_scratch_holds_one_query_of_a_long_sentence_never_all_of_them():
    assert kernels.workspace(HOST, [3000], [3000], 256) == 3000 * 256
    assert kernels.workspace(HOST, [3000], [20], 256) <= kernels.BLOCK_ELEMENTS
    assert kernels.workspace(HOST, [], [], 256) == 0
