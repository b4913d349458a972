"""Dot-product attention of one query a sentence in C against NumPy."""

from typing import Any

import numpy as np
import pytest

from dynbatch.kernels.attention import single_query
from dynbatch.kernels.attention.deferred import DeferredGradients
from dynbatch.kernels.attention.packed import AttentionGradients
from dynbatch.kernels.c.runtime import library
from tests.kernels.c.attention.test_additive import ROOM, SINGLE, WIDTHS, inputs, slopes_of, wanted
from tests.kernels.c.compare import Scratch, assert_same

COUNT = len(SINGLE)
KEYS = sum([keys for _, keys in SINGLE])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("has_one_scale", [False, True])
def test_one_query(dtype: Any, widths: tuple[int, int], has_one_scale: bool) -> None:
    packed, _ = inputs(SINGLE, widths, dtype)
    scales = np.linspace(0.2, 0.4, 1 if has_one_scale else COUNT).astype(dtype)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    out, log_sums = np.empty((COUNT, widths[1]), dtype), np.empty((COUNT, 1), dtype)
    forward, backward = single_query.dot_attention, single_query.dot_attention_backward
    scratch = Scratch(KEYS, dtype)
    assert_same(forward, packed, scales, sentences, out, log_sums, scratch)
    assert_same(forward, packed, scales, sentences, out, None, scratch)
    forward(packed, scales, sentences, out, log_sums, np.empty(KEYS, dtype))
    for accumulate in (False, True):
        given = (log_sums, slopes_of(out), wanted(packed, accumulate))
        assert_same(backward, packed, scales, sentences, *given, Scratch(ROOM, dtype))


def test_what_steps_leave_is_added_as_numpy_adds_it() -> None:
    packed, _ = inputs(SINGLE, (19, 70), np.float64)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    dout, room = slopes_of(np.empty((COUNT, 70))), np.empty(ROOM)
    scales, out, log_sums = np.full(1, 0.3), np.empty_like(dout), np.empty((COUNT, 1))
    single_query.dot_attention(packed, scales, sentences, out, log_sums, np.empty(KEYS))

    def run() -> AttentionGradients:
        later = DeferredGradients(KEYS)
        gradients = wanted(packed, True)._replace(deferred=later)
        single_query.dot_attention_backward(
            packed, scales, sentences, log_sums, dout, gradients, room
        )
        later.add_to(gradients.keys, gradients.values, packed.key_offsets)
        return gradients

    mine = run()
    with library.reference_only():
        expected = run()
    for a, b in zip(mine[:3], expected[:3], strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-12)


def test_a_sentence_has_the_same_bits_alone_and_in_company() -> None:
    packed, _ = inputs(SINGLE, (70, 70), np.float32)
    scales, offsets = np.full(1, 0.3, np.float32), packed.key_offsets
    sentences = single_query.sentence_of_rows(offsets)
    out, room = np.empty((COUNT, 70), np.float32), np.empty(KEYS, np.float32)
    single_query.dot_attention(packed, scales, sentences, out, None, room)
    for k, (_, keys) in enumerate(SINGLE):
        rows, own = slice(offsets[k], offsets[k + 1]), np.empty((1, 70), np.float32)
        alone = packed._replace(
            queries=packed.queries[k : k + 1], keys=packed.keys[rows], values=packed.values[rows],
            query_offsets=np.array([0, 1]), key_offsets=np.array([0, keys]),
        )  # fmt: skip
        single_query.dot_attention(alone, scales, np.zeros(keys, int), own, None, room)
        assert own.tobytes() == out[k].tobytes()
