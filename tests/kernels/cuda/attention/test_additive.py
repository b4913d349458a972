import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.attention import additive as kernels
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import fake_cupy
from tests.kernels.cuda.attention.test_dot_product import (
    LONE,
    LONG,
    SHORT,
    TOLERANCE,
    lengths_of,
    like,
    on_device,
    packed_of,
    room,
    scoring_of,
    wanted_of,
)
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches


def exercise(kernels):
    """Keys for several warps, and one gradient for keys and values."""
    queries, keys, pairs = 2, 70, 140
    q, k, v, dout, out, dq, dk, dvectors = [
        fake_cupy.zeros((rows, 33), np.float32)
        for rows in (queries, keys, keys, queries, queries, queries, keys, queries)
    ]
    weights, slopes, vector = [fake_cupy.zeros(n, np.float32) for n in (pairs, pairs, 33)]
    first = fake_cupy.asarray(np.array([0]))
    for count in (2, 1):
        offsets = [fake_cupy.asarray(np.array([0, n])) for n in (count, keys)]
        args = (q, k, v, vector, out, weights, *offsets, first, None, None, 1, 33, 33, 33)
        kernels.launch("additive_attention", (count,), (512,), args)
        args = (q, k, v, vector, weights, dout, slopes, dvectors, dq, dk, dk, True)
        args = (*args, *offsets, first, 1, 33, 33, 33, 33, False)
        kernels.launch("additive_attention_backward", (count,), (512,), args)


def vector_of(packed):
    width = packed.queries.shape[1]
    rng = np.random.default_rng(4)
    return (rng.standard_normal(width) / np.sqrt(max(1, width))).astype(packed.queries.dtype)


def forward(packed, vector, masks, out, weights):
    """The kernel, with as much scratch as it asks for."""
    scratch = room(out, kernels.workspace(spec_of(out), *lengths_of(packed), vector.size))
    kernels.additive_attention(packed, vector, masks, out, weights, scratch)


def backward(packed, vector, weights, dout, wanted):
    widths = vector.size, packed.values.shape[1]
    scratch = room(dout, kernels.workspace_backward(spec_of(dout), *lengths_of(packed), *widths))
    return kernels.additive_attention_backward(packed, vector, weights, dout, wanted, scratch)


def pairs_of(packed):
    """An array with an element for each pair of a query and a key."""
    queries, keys = [np.diff(offsets) for offsets in packed[3:]]
    return np.empty((queries * keys).sum(), packed.queries.dtype)


def out_of(packed):
    return np.empty((packed.queries.shape[0], packed.values.shape[1]), packed.queries.dtype)


def weights_of(packed, masks):
    """Weights after the NumPy kernel."""
    weights = pairs_of(packed)
    forward(packed, vector_of(packed), masks, out_of(packed), weights)
    return weights


def assert_forward(packed, masks):
    with launches(packed.queries.shape[0] > 0):
        assert_versions_agree(
            forward, on_device(packed), Values(vector_of(packed)), masks,
            like(out_of(packed)), like(pairs_of(packed)), **TOLERANCE,
        )  # fmt: skip


def assert_backward(packed, masks, wanted, count):
    dout = np.random.default_rng(7).standard_normal(out_of(packed).shape)
    with launches(count):
        assert_versions_agree(
            backward, on_device(packed), Values(vector_of(packed)),
            Values(weights_of(packed, masks)), Values(dout.astype(packed.queries.dtype)), wanted,
            **TOLERANCE,
        )  # fmt: skip


def masks_of(lengths, kind):
    return scoring_of(np.float32, lengths, kind=kind).masks


CASES = [
    (SHORT, (3, 5), "all"),
    (SHORT, (5, 1), "masks"),
    (SHORT, (2, 3), "mixed"),
    (LONG, (1, 2), "masks"),
    (((2, 3), (1, 5), (3, 4)), (70, 300), "all"),
    (((1, 3), (2, 3)), (600, 33), "all"),
    (LONE, (33, 70), "all"),
]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("lengths", "widths", "kind"), CASES)
def test_forward_and_backward(cupy, dtype, lengths, widths, kind, accumulate):
    packed, masks = packed_of(dtype, lengths, widths), masks_of(lengths, kind)
    assert_forward(packed, masks)
    assert_backward(packed, masks, wanted_of(packed, accumulate), count=2 + (lengths is not LONE))


def test_gradients_of_keys_that_are_the_values_are_added_to_one_array(cupy, dtype):
    packed = packed_of(dtype, SHORT, (4, 4))
    packed = packed._replace(values=packed.keys)
    weights = weights_of(packed, [NO_MASK] * len(SHORT))
    found = []
    for array in (np.array, cupy.asarray):
        given = PackedAttention(*[array(x) for x in packed[:3]], *packed[3:])
        dq, total = array(np.zeros_like(packed.queries)), array(np.ones_like(packed.keys))
        vector, wanted = array(vector_of(packed)), AttentionGradients(dq, total, total, True)
        backward(given, vector, array(weights), array(packed.queries), wanted)
        found.append(total)
    queue().flush()
    tolerance = {np.float32: 1e-5, np.float64: 1e-13}[dtype.type]
    np.testing.assert_allclose(found[1].get(), found[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("which", [(), (0,), (1,), (2,)])
def test_each_gradient_can_be_asked_for_alone(cupy, dtype, which):
    packed, masks = packed_of(dtype, SHORT, (3, 2)), masks_of(SHORT, "masks")
    wanted = AttentionGradients(
        *[like(x) if n in which else None for n, x in enumerate(packed[:3])]
    )
    assert_backward(packed, masks, wanted, count=2 + (1 in which or 2 in which))


@pytest.mark.parametrize("lengths", [(), ((0, 0),), ((0, 3), (0, 1)), ((3, 0),), ((1, 0),)])
def test_no_queries_or_no_keys(cupy, dtype, lengths):
    if lengths:
        packed = packed_of(dtype, lengths, (2, 2))
    else:
        offsets = np.zeros(1, np.int64)
        packed = PackedAttention(*[np.empty((0, 2), dtype) for _ in range(3)], offsets, offsets)
    masks = [NO_MASK] * len(lengths)
    assert_forward(packed, masks)
    queries, keys = packed.queries.size > 0, packed.keys.size > 0
    assert_backward(packed, masks, wanted_of(packed), count=1 + queries + keys)


@pytest.mark.parametrize("widths", [(0, 2), (2, 0)])
def test_rows_without_features(cupy, dtype, widths):
    lengths = ((3, 40), (1, 5), (2, 0))
    packed, masks = packed_of(dtype, lengths, widths), [NO_MASK] * 3
    assert_forward(packed, masks)
    assert_backward(packed, masks, wanted_of(packed), count=2 + (widths[0] > 0))


def test_infinities_and_nan_give_what_the_reference_gives(cupy, dtype):
    lengths = ((2, 40), (1, 30), (3, 40), (2, 3))
    packed = packed_of(dtype, lengths, (2, 2))
    ends = packed.key_offsets
    packed.keys[ends[0]] = np.inf
    packed.keys[ends[1] + 20] = np.nan
    packed.queries[packed.query_offsets[2]] = np.nan
    packed.values[ends[3]] = np.inf
    assert_forward(packed, [NO_MASK] * 4)


def test_bits_do_not_depend_on_the_other_sentences(cupy, dtype):
    packed, masks = packed_of(dtype, SHORT, (6, 4)), masks_of(SHORT, "masks")

    def run(given, masks):
        arrays = [cupy.asarray(x) for x in given[:3]]
        vector, out = cupy.asarray(vector_of(packed)), cupy.empty(out_of(given).shape, dtype)
        weights = cupy.empty(pairs_of(given).shape, dtype)
        gradients = [cupy.empty(x.shape, dtype) for x in arrays]
        given = PackedAttention(*arrays, *given[3:])
        forward(given, vector, masks, out, weights)
        backward(given, vector, weights, out, AttentionGradients(*gradients))
        queue().flush()
        return [x.get() for x in (out, *gradients)]

    together = run(packed, masks)
    for n in range(len(SHORT)):
        rows, keys = [slice(*offsets[n : n + 2]) for offsets in packed[3:]]
        offsets = [np.array([0, part.stop - part.start]) for part in (rows, keys)]
        arrays = packed.queries[rows], packed.keys[keys], packed.values[keys]
        alone = run(PackedAttention(*arrays, *offsets), masks[n : n + 1])
        for one, all_, part in zip(alone, together, (rows, rows, keys, keys), strict=True):
            assert one.tobytes() == all_[part].tobytes()
