import numpy as np
import pytest

from dynbatch.kernels import attention, single_query
from dynbatch.kernels.attention import Packed
from dynbatch.kernels.cuda.queue import queue
from tests.kernels.cuda.compare import Values, assert_equal_twins, launches
from tests.kernels.cuda.test_attention import (
    TOLERANCE,
    like,
    log_sums_of,
    on_device,
    packed_of,
    scoring_of,
    scratch_of,
    wanted_of,
)  # fmt: skip

KEYS = (5, 1, 31, 32, 33, 300, 2)
LENGTHS = tuple((1, keys) for keys in KEYS)


@pytest.mark.parametrize("widths", [(1, 1), (5, 3), (33, 70), (256, 512)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_dot_attention(cupy, dtype, widths, accumulate):
    lengths = LENGTHS if widths[0] < 256 else ((1, 20), (1, 3))
    packed = packed_of(dtype, lengths, widths)
    scoring = scoring_of(dtype, lengths, width=widths[0])
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    out, log_sums = like(np.empty((len(lengths), widths[1]), dtype)), log_sums_of(packed, scoring)
    with launches(1):
        assert_equal_twins(
            single_query.dot_attention,
            on_device(packed), scoring.scales, sentences, out, like(log_sums),
            np.empty(sentences.size, dtype), **TOLERANCE,
        )  # fmt: skip
    dout = np.random.default_rng(9).standard_normal(out.array.shape).astype(dtype)
    scratch = np.empty(single_query.workspace(np.diff(packed.key_offsets), max(widths)), dtype)
    with launches(1):
        assert_equal_twins(
            single_query.dot_attention_backward,
            on_device(packed), scoring.scales, sentences, Values(log_sums), Values(dout),
            wanted_of(packed, accumulate), scratch, **TOLERANCE,
        )  # fmt: skip


def test_one_scale_for_all_sentences(cupy, dtype):
    packed, scale = packed_of(dtype, LENGTHS, (4, 2)), np.full(1, 0.7, dtype)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    out = like(np.empty((len(KEYS), 2), dtype))
    scratch = np.empty(sentences.size, dtype)
    assert_equal_twins(
        single_query.dot_attention,
        on_device(packed), scale, sentences, out, None, scratch, **TOLERANCE,
    )  # fmt: skip


def test_dot_attention_has_the_bits_of_the_general_kernel(cupy, dtype):
    """So that a sentence's numbers do not depend on how many queries the others have."""
    lengths = (*LENGTHS, (2, 3))
    packed, scoring = packed_of(dtype, lengths, (6, 4)), scoring_of(dtype, lengths)
    q, k, v = [cupy.asarray(x) for x in packed[:3]]
    every, alone = [cupy.empty((len(KEYS) + n, 4), dtype) for n in (2, 0)]
    given = Packed(q, k, v, *packed[3:])
    attention.dot_attention(given, scoring, every, None, scratch_of(packed, scoring))
    some = Packed(q[:-2], k[:-3], v[:-3], *[offsets[:-1] for offsets in packed[3:]])
    sentences = single_query.sentence_of_rows(some.key_offsets)
    single_query.dot_attention(some, scoring.scales[:-1], sentences, alone, None, None)
    queue().flush()
    assert alone.get().tobytes() == every.get()[:-2].tobytes()


@pytest.mark.parametrize("widths", [(1, 1), (33, 70), (256, 512)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_additive_attention(cupy, dtype, widths, accumulate):
    packed = packed_of(dtype, LENGTHS if widths[0] < 256 else ((1, 20), (1, 3)), widths)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    scratch = np.empty(single_query.workspace(np.diff(packed.key_offsets), max(widths)), dtype)
    vector = (np.random.default_rng(4).standard_normal(widths[0]) / 4).astype(dtype)
    out = np.empty((packed.queries.shape[0], widths[1]), dtype)
    weights = np.empty(sentences.size, dtype)
    single_query.additive_attention(packed, vector, sentences, out, weights, scratch)
    with launches(1):
        assert_equal_twins(
            single_query.additive_attention,
            on_device(packed), Values(vector), sentences, like(out), like(weights), scratch,
            **TOLERANCE,
        )  # fmt: skip
    dout = np.random.default_rng(9).standard_normal(out.shape).astype(dtype)
    with launches(2):
        assert_equal_twins(
            single_query.additive_attention_backward,
            on_device(packed), Values(vector), sentences, Values(weights), Values(dout),
            wanted_of(packed, accumulate), scratch, **TOLERANCE,
        )  # fmt: skip
