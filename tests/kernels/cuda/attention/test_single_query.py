import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.attention import dot_product as attention
from dynbatch.kernels.attention import single_query
from dynbatch.kernels.attention.dot_product import PackedAttention
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.attention.test_dot_product import (
    TOLERANCE,
    forward_results,
    like,
    on_device,
    packed_of,
    room,
    scoring_of,
    wanted_of,
)
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

KEYS = (5, 1, 31, 32, 33, 300, 2)
LENGTHS = tuple((1, keys) for keys in KEYS)
WIDTHS = [(1, 1), (5, 3), (33, 70), (256, 512)]


def key_lengths(packed):
    return np.diff(packed.key_offsets).tolist()


def with_backward_scratch(kernel, packed, *args):
    """The backward kernel, with as much scratch as it asks for."""
    widest = max(packed.keys.shape[1], packed.values.shape[1])
    size = single_query.workspace_backward(spec_of(packed.keys), key_lengths(packed), widest)
    return kernel(packed, *args, room(packed.keys, size))


def dot(packed, scales, sentences, out, log_sums):
    scratch = room(out, single_query.dot_workspace(spec_of(out), key_lengths(packed)))
    single_query.dot_attention(packed, scales, sentences, out, log_sums, scratch)


def dot_backward(*args):
    with_backward_scratch(single_query.dot_attention_backward, *args)


def additive(packed, vector, sentences, out, weights):
    size = single_query.additive_workspace(spec_of(out), key_lengths(packed), vector.size)
    single_query.additive_attention(packed, vector, sentences, out, weights, room(out, size))


def additive_backward(*args):
    return with_backward_scratch(single_query.additive_attention_backward, *args)


def lengths_of(widths):
    return LENGTHS if widths[0] < 256 else ((1, 20), (1, 3))


def random_like(x):
    return np.random.default_rng(9).standard_normal(x.shape).astype(x.dtype)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("widths", WIDTHS)
def test_dot_attention(cupy, dtype, widths, accumulate):
    lengths = lengths_of(widths)
    packed, scoring = packed_of(dtype, lengths, widths), scoring_of(dtype, lengths, width=widths[0])
    tables = (scoring.scales, single_query.sentence_of_rows(packed.key_offsets))
    out, log_sums = np.empty((len(lengths), widths[1]), dtype), forward_results(packed, scoring)[0]
    with launches(1):
        assert_versions_agree(
            dot, on_device(packed), *tables, like(out), like(log_sums), **TOLERANCE
        )  # fmt: skip
    with launches(1):
        assert_versions_agree(
            dot_backward, on_device(packed), *tables, Values(log_sums), Values(random_like(out)),
            wanted_of(packed, accumulate), **TOLERANCE,
        )  # fmt: skip


def test_one_scale_for_all_sentences(cupy, dtype):
    packed, scale = packed_of(dtype, LENGTHS, (4, 2)), np.full(1, 0.7, dtype)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    out = like(np.empty((len(KEYS), 2), dtype))
    assert_versions_agree(dot, on_device(packed), scale, sentences, out, None, **TOLERANCE)


def test_dot_attention_has_the_bits_of_the_general_kernel(cupy, dtype):
    """So that a sentence's numbers do not depend on how many queries the others have."""
    lengths = (*LENGTHS, (2, 3))
    packed, scoring = packed_of(dtype, lengths, (6, 4)), scoring_of(dtype, lengths)
    q, k, v = [cupy.asarray(x) for x in packed[:3]]
    every, alone = [cupy.empty((len(KEYS) + n, 4), dtype) for n in (2, 0)]
    nothing = cupy.empty(0, dtype)
    attention.dot_attention(PackedAttention(q, k, v, *packed[3:]), scoring, every, None, nothing)
    some = PackedAttention(q[:-2], k[:-3], v[:-3], *[offsets[:-1] for offsets in packed[3:]])
    sentences = single_query.sentence_of_rows(some.key_offsets)
    single_query.dot_attention(some, scoring.scales[:-1], sentences, alone, None, nothing)
    queue().flush()
    assert alone.get().tobytes() == every.get()[:-2].tobytes()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("widths", WIDTHS)
def test_additive_attention(cupy, dtype, widths, accumulate):
    packed = packed_of(dtype, lengths_of(widths), widths)
    sentences = single_query.sentence_of_rows(packed.key_offsets)
    vector = (np.random.default_rng(4).standard_normal(widths[0]) / 4).astype(dtype)
    out = np.empty((packed.queries.shape[0], widths[1]), dtype)
    weights = np.empty(sentences.size, dtype)
    additive(packed, vector, sentences, out, weights)
    given = (on_device(packed), Values(vector), sentences)
    with launches(1):
        assert_versions_agree(additive, *given, like(out), like(weights), **TOLERANCE)
    with launches(2):
        assert_versions_agree(
            additive_backward, *given, Values(weights), Values(random_like(out)),
            wanted_of(packed, accumulate), **TOLERANCE,
        )  # fmt: skip
