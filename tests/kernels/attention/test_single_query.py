"""One query a sentence: the same numbers as the general forms, whose tests hold the oracle."""

import numpy as np
import pytest

from dynbatch.backend import CPU, ArraySpec
from dynbatch.kernels import segment
from dynbatch.kernels.attention import additive, dot_product, single_query
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.blas import fixed_rows
from dynbatch.kernels.c.runtime import library
from tests.attention_reference import pack

KEYS = [5, 1, 30, 2, 1, 17, 9]
COUNT, WIDTH, VALUE_WIDTH = len(KEYS), 6, 4
MASKS = [NO_MASK] * COUNT
HOST = ArraySpec(CPU, np.dtype(np.float64))
VECTOR = np.random.default_rng(4).standard_normal(WIDTH)
DOUT = np.random.default_rng(9).standard_normal((COUNT, VALUE_WIDTH))


def inputs(queries=1, keys=KEYS):
    (q, query_offsets), (k, key_offsets) = pack([queries] * COUNT, WIDTH, 1), pack(keys, WIDTH, 2)
    v, _ = pack(keys, VALUE_WIDTH, 3)
    return PackedAttention(q, k, v, query_offsets, key_offsets)


def wanted(accumulate, which=(True, True, True)):
    arrays = zip(inputs()[:3], which, strict=True)
    return AttentionGradients(*[np.full_like(x, 9) if w else None for x, w in arrays], accumulate)


def dot(gradients):
    packed, scoring = inputs(), Scoring(1, np.linspace(0.3, 1.2, COUNT), MASKS)
    out, log_sums = np.empty_like(DOUT), np.empty((COUNT, 1))
    room = np.empty(dot_product.workspace_backward(HOST, [1] * COUNT, KEYS, scoring))
    dot_product.dot_attention(packed, scoring, out, log_sums, room)
    dot_product.dot_attention_backward(packed, scoring, log_sums, None, DOUT, gradients, room)
    return [out, log_sums, *gradients[:3]]


def by_vector(gradients):
    packed, weights, out = inputs(), np.empty(sum(KEYS)), np.empty_like(DOUT)
    size = additive.workspace_backward(HOST, [1] * COUNT, KEYS, WIDTH, VALUE_WIDTH)
    additive.additive_attention(packed, VECTOR, MASKS, out, weights, np.empty(size))
    given = (packed, VECTOR, weights, DOUT, gradients, np.empty(size))
    return [out, weights, *gradients[:3], additive.additive_attention_backward(*given)]


@pytest.mark.parametrize("block", [segment.BLOCK, 70])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("run", [dot, by_vector])
def test_results_equal_those_of_the_general_form(run, accumulate, block, monkeypatch):
    monkeypatch.setattr(segment, "BLOCK", block)
    with library.reference_only():
        alone = run(wanted(accumulate))
        for k in range(3):
            which = tuple(n == k for n in range(3))
            assert (run(wanted(accumulate, which))[2 + k] == alone[2 + k]).all()
        monkeypatch.setattr(single_query, "applies", lambda *_: False)
        for mine, expected in zip(alone, run(wanted(accumulate)), strict=True):
            np.testing.assert_allclose(mine, expected, 1e-12, 1e-12)


def test_it_is_for_lone_queries_that_see_every_key():
    assert single_query.applies(inputs(), MASKS)
    assert not single_query.applies(inputs(queries=2), MASKS)
    assert not single_query.applies(inputs(keys=[0, *KEYS[1:]]), MASKS)
    assert not single_query.applies(inputs(), [*MASKS[1:], Mask(1, 1)])
    with fixed_rows():
        assert not single_query.applies(inputs(), MASKS)
