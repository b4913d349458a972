"""Dot-product attention of sentences with one query in C: against NumPy, and in any company."""

from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.attention import dot_product as kernels
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.attention.single_query import lone_sentences
from tests.kernels.c.attention.test_additive import ROOM, SINGLE, WIDTHS, inputs, slopes_of, wanted
from tests.kernels.c.compare import Scratch, assert_same

MIXED = [(1, 5), (3, 4), (1, 0), (1, 17), (0, 2), (1, 9)]
MASKS = [*[NO_MASK] * 5, Mask(0, 0)]
LONE = [0, 3]


def scoring_of(count: int, dtype: Any) -> Scoring:
    return Scoring(1, np.linspace(0.2, 0.4, count).astype(dtype), MASKS[:count])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("lengths", [SINGLE[:5], MIXED])
def test_c_gives_what_numpy_gives(dtype: Any, widths: tuple[int, int], lengths: Any) -> None:
    packed, _ = inputs(lengths, widths, dtype)
    scoring, rows = scoring_of(len(lengths), dtype), len(packed.queries)
    out, log_sums = np.empty((rows, widths[1]), dtype), np.empty((rows, 1), dtype)
    assert lone_sentences(packed, scoring, out).tolist() == (
        LONE if len(lengths) > 5 else [*range(5)]
    )
    scratch, forward = Scratch(ROOM, dtype), kernels.dot_attention
    assert_same(forward, packed, scoring, out, log_sums, scratch)
    assert_same(forward, packed, scoring, out, None, scratch)
    forward(packed, scoring, out, log_sums, np.empty(ROOM, dtype))
    for accumulate in (False, True):
        given = (log_sums, None, slopes_of(out), wanted(packed, accumulate), scratch)
        assert_same(kernels.dot_attention_backward, packed, scoring, *given)


def results(packed: PackedAttention, scoring: Scoring, dout: Array) -> list[Array]:
    out, log_sums = np.empty_like(dout), np.empty((len(dout), 1), dout.dtype)
    room, gradients = np.empty(ROOM, dout.dtype), [np.empty_like(x) for x in packed[:3]]
    kernels.dot_attention(packed, scoring, out, log_sums, room)
    to = AttentionGradients(*gradients)
    kernels.dot_attention_backward(packed, scoring, log_sums, None, dout, to, room)
    return [out, log_sums, *gradients]


def test_a_sentence_has_the_same_bits_alone_and_in_company_of_more_queries() -> None:
    packed, _ = inputs(MIXED, (70, 70), np.float32)
    scoring, dout = scoring_of(len(MIXED), np.float32), slopes_of(packed.queries)
    whole = results(packed, scoring, dout)
    for k, (queries, keys) in enumerate(MIXED):
        row, key = packed.query_offsets[k], packed.key_offsets[k]
        rows, of_keys = slice(row, row + queries), slice(key, key + keys)
        ends = np.array([0, queries]), np.array([0, keys])
        alone = PackedAttention(
            packed.queries[rows], packed.keys[of_keys], packed.values[of_keys], *ends
        )
        of_one = scoring._replace(scales=scoring.scales[k : k + 1], masks=MASKS[k : k + 1])
        spans = [rows] * 3 + [of_keys] * 2
        for x, y, span in zip(results(alone, of_one, dout[rows]), whole, spans, strict=True):
            assert x.tobytes() == y[span].tobytes()
