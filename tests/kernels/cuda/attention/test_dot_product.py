import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.cupy_types import device_address
from dynbatch.kernels.attention import dot_product as attention
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.attention_reference import pack
from tests.cuda import fake_cupy
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

# Queries and keys: none, one, and one less and more than a tile; long ones on either side.
SHORT = (
    (3, 5), (1, 1), (0, 4), (2, 0), (1, 0), (1, 7), (31, 33), (0, 0), (33, 32), (1, 33), (4, 2),
)  # fmt: skip
LONE = ((1, 5), (1, 1), (1, 31), (1, 32), (1, 33), (1, 300), (1, 2))
LONG = ((2, 100), (70, 3), (1, 600), (1, 256), (1, 257))
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def exercise(kernels):
    """Several tiles on both sides, two heads of queries; a lone query of two chunks of keys."""
    for queries, keys, heads in ((40, 70, 2), (3, 5, 1), (1, 300, 1)):
        q, dout, out, dq, k, v, dk, dv = [
            fake_cupy.zeros((rows, width), np.float32)
            for rows, width in [(queries, 33 * heads)] * 4 + [(keys, 33)] * 4
        ]
        log_sums, means = [fake_cupy.zeros((queries, heads), np.float32) for _ in range(2)]
        offsets = [fake_cupy.asarray(np.array([0, n])) for n in (queries, keys)]
        first = fake_cupy.asarray(np.array([0]))
        scales = fake_cupy.asarray(np.ones(1, np.float32))
        rows = (33 * heads, 33, 33)
        tables = (first, *offsets, scales, None, None, 1, heads, heads, 33, 33, *rows)
        tiles = -(-queries // 32)
        kernels.launch("dot_attention", (tiles, heads), (256,), (q, k, v, out, log_sums, *tables))
        page = fake_cupy.asarray(np.array([device_address(k)]))
        pages = (page, fake_cupy.zeros(1, np.int32), None, keys.bit_length(), 0, 0)
        args = (q, *pages, out, *tables)
        kernels.launch("dot_attention_of_pages", (tiles, heads), (256,), args)
        for known in (out, None):
            args = (q, k, v, log_sums, known, dout, means, dq, dk, dv, False, *tables, *rows)
            kernels.launch("dot_attention_backward", (tiles, heads), (256,), args)
        args = (q, k, v, log_sums, dout, means, dk, dv, False, *tables, *rows)
        kernels.launch("dot_attention_backward_keys", (-(-keys // 32), 1), (256,), args)
        table = fake_cupy.zeros((300, heads), np.float32)  # more rows than threads
        sums = fake_cupy.zeros((tiles, 300, heads), np.float32)
        row_of = fake_cupy.asarray(np.arange(queries + keys - 1, dtype=np.int32))
        bias = (table, row_of, queries - 1, heads, None, None, 0, None, 0, 1.0, 0.5)
        args = (q, k, v, log_sums, dout, means, sums, 300, *tables, *rows, *bias)
        kernels.launch("dot_attention_backward_bias", (tiles, heads), (256,), args)
        matrix, dmatrix = [fake_cupy.zeros(queries * keys, np.float32) for _ in range(2)]
        ends = fake_cupy.asarray(np.array([0, queries * keys]))  # one matrix for all heads
        bias = (matrix, None, 0, heads, ends, None, 0, None, 0, 1.0, 0.5)
        args = (q, k, v, log_sums, dout, means, dmatrix, *tables, *rows, *bias)
        kernels.launch("dot_attention_backward_pairs", (tiles, 1), (256,), args)


def packed_of(dtype, lengths, widths, shared=1):
    queries, keys = zip(*lengths, strict=True)
    of_keys = [width // shared for width in widths]
    (q, query_offsets), (k, key_offsets) = pack(queries, widths[0], 1), pack(keys, of_keys[0], 2)
    v, _ = pack(keys, of_keys[1], 3)
    return PackedAttention(*[x.astype(dtype) for x in (q, k, v)], query_offsets, key_offsets)


def scoring_of(dtype, lengths, heads=1, kind="all", width=4, shared=1):
    rng = np.random.default_rng(5)
    masks = [Mask(visible=rng.random(pair) < 0.6) for pair in lengths]
    rows = [Mask(visible=rng.random(pair[1]) < 0.6) for pair in lengths]
    causal, window = Mask(UNBOUNDED, 0), Mask(2, 2)
    both = [row._replace(left=9, right=0) for row in rows]
    masks = {
        "all": [NO_MASK] * len(lengths),
        "causal": [causal] * len(lengths),
        "window": [window] * len(lengths),
        "masks": masks,
        "mixed": [
            (causal, NO_MASK, window, masks[k], rows[k], both[k])[k % 6]
            for k in range(len(lengths))
        ],
    }[kind]
    scales = np.linspace(0.2, 1.5, len(lengths)) / np.sqrt(width / heads)
    return Scoring(heads, scales.astype(dtype), masks, shared)


def room(array, elements):
    """Scratch where the values of `array` live."""
    xp = np if isinstance(array, np.ndarray) else queue().cupy
    return xp.empty(elements, array.dtype)


def lengths_of(packed):
    return [np.diff(offsets).tolist() for offsets in packed[3:]]


def forward(packed, scoring, out, log_sums):
    """The kernel, with as much scratch as it asks for."""
    scratch = room(out, attention.workspace(spec_of(out), *lengths_of(packed), scoring))
    attention.dot_attention(packed, scoring, out, log_sums, scratch)


def backward(packed, scoring, log_sums, out, dout, wanted):
    scratch = room(dout, attention.workspace_backward(spec_of(dout), *lengths_of(packed), scoring))
    attention.dot_attention_backward(packed, scoring, log_sums, out, dout, wanted, scratch)


def forward_results(packed, scoring):
    """log_sums and out as the NumPy kernel leaves them."""
    if scoring.bias is not None and isinstance(scoring.bias.numbers, Values):
        scoring = scoring._replace(bias=scoring.bias._replace(numbers=scoring.bias.numbers.array))
    log_sums = np.empty((packed.queries.shape[0], scoring.heads), packed.queries.dtype)
    out = np.empty((packed.queries.shape[0], out_width(packed, scoring)), packed.queries.dtype)
    forward(packed, scoring, out, log_sums)
    return log_sums, out


def on_device(packed):
    return PackedAttention(*[Values(x) for x in packed[:3]], *packed[3:])


def like(x, value=np.nan):
    return Values(np.full_like(x, value))


def out_width(packed, scoring):
    return packed.values.shape[1] * scoring.shared


def assert_forward(packed, scoring, keeps=True):
    queries = packed.queries.shape[0]
    out = like(np.empty((queries, out_width(packed, scoring)), packed.queries.dtype))
    log_sums = like(np.empty((queries, scoring.heads), out.array.dtype)) if keeps else None
    with launches(bool(queries)):
        assert_versions_agree(forward, on_device(packed), scoring, out, log_sums, **TOLERANCE)


def assert_backward(packed, scoring, wanted, count=2, knows_out=True):
    rng = np.random.default_rng(7)
    dout = rng.standard_normal((packed.queries.shape[0], out_width(packed, scoring)))
    log_sums, out = [Values(x) for x in forward_results(packed, scoring)]
    out = out if knows_out else None
    dout = Values(dout.astype(packed.queries.dtype))
    with launches(count):
        assert_versions_agree(
            backward, on_device(packed), scoring, log_sums, out, dout, wanted, **TOLERANCE
        )


def wanted_of(packed, accumulate=False):
    return AttentionGradients(
        *[like(x, 10.0 if accumulate else np.nan) for x in packed[:3]], accumulate
    )


CASES = [
    (SHORT, 1, (3, 5), "all"),
    (SHORT, 2, (6, 2), "mixed"),
    (SHORT, 1, (2, 3), "causal"),
    (SHORT, 1, (2, 2), "window"),
    (LONG, 1, (2, 3), "all"),
    (LONG, 1, (2, 1), "masks"),
    (((2, 3), (1, 9), (5, 4)), 2, (70, 66), "all"),  # more than one tile of columns in each head
    (((2, 40), (1, 3)), 1, (1, 300), "all"),
    (((1, 5), (1, 1)), 1, (300, 600), "all"),
    (LONE, 1, (33, 70), "all"),
    (((64, 65), (65, 64)), 1, (64, 32), "all"),  # as many as a tile has, and one more
    (((70, 150), (3, 2)), 1, (130, 70), "all"),  # several tiles on both sides, of wide rows
]


@pytest.mark.parametrize("knows_out", [True, False])
@pytest.mark.parametrize(("lengths", "heads", "widths", "kind"), CASES)
def test_forward_and_backward(cupy, dtype, lengths, heads, widths, kind, knows_out):
    packed = packed_of(dtype, lengths, widths)
    scoring = scoring_of(dtype, lengths, heads, kind, widths[0])
    assert_forward(packed, scoring)
    several = any(queries != 1 and keys for queries, keys in lengths)
    assert_backward(packed, scoring, wanted_of(packed), 1 + several, knows_out)


def test_lone_queries_have_the_same_bits_in_the_company_of_more(cupy, dtype):
    lengths = (*LONE, (2, 3))
    packed, scoring = packed_of(dtype, lengths, (6, 4)), scoring_of(dtype, lengths)
    q, k, v = [cupy.asarray(x) for x in packed[:3]]
    every, alone = [cupy.empty((len(LONE) + n, 4), dtype) for n in (2, 0)]
    forward(PackedAttention(q, k, v, *packed[3:]), scoring, every, None)
    some = PackedAttention(q[:-2], k[:-3], v[:-3], *[offsets[:-1] for offsets in packed[3:]])
    forward(
        some, scoring._replace(scales=scoring.scales[:-1], masks=scoring.masks[:-1]), alone, None
    )
    queue().flush()
    assert alone.get().tobytes() == every.get()[:-2].tobytes()


@pytest.mark.parametrize(
    ("lengths", "heads", "shared", "widths", "kind"),
    [
        (SHORT, 4, 2, (12, 8), "mixed"),
        (SHORT, 3, 3, (6, 9), "all"),
        (LONG, 2, 2, (4, 2), "masks"),
        (((1, 300), (1, 2)), 2, 2, (4, 6), "all"),
    ],
)
def test_heads_of_queries_share_heads_of_keys(cupy, dtype, lengths, heads, shared, widths, kind):
    packed = packed_of(dtype, lengths, widths, shared)
    scoring = scoring_of(dtype, lengths, heads, kind, widths[0], shared)
    assert_forward(packed, scoring)
    assert_backward(packed, scoring, wanted_of(packed))
    assert_backward(packed, scoring, wanted_of(packed, accumulate=True))


@pytest.mark.parametrize("kind", ["all", "mixed"])
def test_gradients_of_keys_and_values_are_added_and_of_queries_overwritten(cupy, dtype, kind):
    lengths = (*SHORT, (1, 300))
    packed, scoring = packed_of(dtype, lengths, (4, 4)), scoring_of(dtype, lengths, 2, kind)
    assert_backward(packed, scoring, wanted_of(packed, accumulate=True))


def test_gradients_of_keys_that_are_the_values_are_added_to_one_array(cupy, dtype):
    packed, scoring = packed_of(dtype, SHORT, (4, 4)), scoring_of(dtype, SHORT)
    packed = packed._replace(values=packed.keys)
    (log_sums, out), dout = forward_results(packed, scoring), packed.queries[::-1].copy()
    found = []
    for array in (np.array, cupy.asarray):
        given = PackedAttention(*[array(x) for x in packed[:3]], *packed[3:])
        dq, total = array(np.zeros_like(packed.queries)), array(np.ones_like(packed.keys))
        wanted = AttentionGradients(dq, total, total, True)
        backward(given, scoring, array(log_sums), array(out), array(dout), wanted)
        found.append(total)
    queue().flush()
    tolerance = {np.float32: 1e-5, np.float64: 1e-13}[dtype.type]
    np.testing.assert_allclose(found[1].get(), found[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
def test_each_gradient_can_be_asked_for_alone(cupy, dtype, which):
    packed, scoring = packed_of(dtype, SHORT, (3, 2)), scoring_of(dtype, SHORT, 1, "mixed")
    wanted = AttentionGradients(
        *[like(x) if n in which else None for n, x in enumerate(packed[:3])]
    )
    assert_backward(packed, scoring, wanted, count=1 + (which != (0,)))


@pytest.mark.parametrize("lengths", [(), ((0, 0),), ((0, 3), (0, 1)), ((3, 0),), ((1, 0),)])
def test_no_queries_or_no_keys(cupy, dtype, lengths):
    if not lengths:
        offsets = np.zeros(1, np.int64)
        empty = [np.empty((0, 2), dtype) for _ in range(3)]
        packed, scoring = (
            PackedAttention(*empty, offsets, offsets),
            Scoring(1, np.empty(0, dtype), []),
        )
    else:
        packed, scoring = packed_of(dtype, lengths, (2, 2)), scoring_of(dtype, lengths)
    assert_forward(packed, scoring)
    queries, keys = packed.queries.size > 0, packed.keys.size > 0
    assert_backward(packed, scoring, wanted_of(packed), count=queries + keys)


@pytest.mark.parametrize("widths", [(0, 2), (2, 0)])
def test_rows_without_features(cupy, dtype, widths):
    lengths = ((3, 40), (1, 5), (2, 0))
    packed = packed_of(dtype, lengths, widths)
    scoring = Scoring(1, np.ones(3, dtype), [NO_MASK] * 3)
    assert_forward(packed, scoring)
    assert_backward(packed, scoring, wanted_of(packed))


def test_nothing_is_kept_where_no_backward_follows(cupy, dtype):
    packed, scoring = packed_of(dtype, SHORT, (3, 2)), scoring_of(dtype, SHORT)
    assert_forward(packed, scoring, keeps=False)


def test_infinities_and_nan_give_what_the_reference_gives(cupy, dtype):
    lengths = ((2, 40), (1, 300), (3, 40), (1, 6), (2, 3), (3, 33))
    packed = packed_of(dtype, lengths, (2, 2))
    q, k, v = packed[:3]
    ends = packed.key_offsets
    k[ends[0]] = np.inf  # a score of +inf or -inf
    k[ends[1] + 290] = np.nan  # in the last chunk of a lone query
    q[packed.query_offsets[2]] = np.nan
    v[ends[3] + 1] = np.nan
    v[ends[4]] = np.inf
    q[packed.query_offsets[5]] = 1
    k[ends[5] : ends[6]] = -np.inf  # every score of a query is -inf
    assert_forward(packed, scoring_of(dtype, lengths))


def test_large_scores_neither_overflow_nor_lose_their_order(cupy, dtype):
    lengths = ((3, 70), (1, 300))
    packed = packed_of(dtype, lengths, (2, 3))
    packed = packed._replace(queries=(packed.queries * 1e4).round(), keys=packed.keys.round(2))
    assert_forward(packed, Scoring(1, np.ones(2, dtype), [NO_MASK] * 2))


def test_bits_do_not_depend_on_the_other_sentences(cupy, dtype):
    packed, scoring = packed_of(dtype, SHORT, (6, 4)), scoring_of(dtype, SHORT, 2, "mixed")

    def run(given, how):
        arrays = [cupy.asarray(x) for x in given[:3]]
        out = cupy.empty((arrays[0].shape[0], 4), dtype)
        log_sums = cupy.empty((arrays[0].shape[0], 2), dtype)
        gradients = [cupy.empty(x.shape, dtype) for x in arrays]
        packed = PackedAttention(*arrays, *given[3:])
        forward(packed, how, out, log_sums)
        backward(packed, how, log_sums, out, out, AttentionGradients(*gradients))
        queue().flush()
        return [x.get() for x in (out, log_sums, *gradients)]

    together = run(packed, scoring)
    for n in range(len(SHORT)):
        rows, keys = [slice(*offsets[n : n + 2]) for offsets in packed[3:]]
        offsets = [np.array([0, part.stop - part.start]) for part in (rows, keys)]
        places = (rows, rows, rows, keys, keys)
        alone = run(
            PackedAttention(packed.queries[rows], packed.keys[keys], packed.values[keys], *offsets),
            Scoring(2, scoring.scales[n : n + 1], scoring.masks[n : n + 1]),
        )
        for one, all_, part in zip(alone, together, places, strict=True):
            assert one.tobytes() == all_[part].tobytes()
