"""Dot-product attention on tensor cores, against NumPy with factors rounded likewise."""

import re

import numpy as np
import pytest

from dynbatch.kernels.attention.bias import ScoreBias
from dynbatch.kernels.attention.blocks import Tile, attention_sentences, bias_of
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.attention import dot_product as cuda_kernels
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import multiplying, round_to
from tests.cuda import fake_cupy, simulator
from tests.cuda.devices import simulated
from tests.cuda.simulator import KernelFault
from tests.kernels.cuda.attention.test_dot_product import (
    backward,
    forward,
    out_width,
    packed_of,
    scoring_of,
)
from tests.kernels.cuda.attention.test_extended import Clipped, dropping
from tests.kernels.cuda.compare import launches

LENGTHS = ((40, 70), (3, 1), (0, 4), (65, 33), (2, 0), (1, 100), (17, 16))
PRECISIONS = ("tf32", "bfloat16")
SIDE, STEP = 64, 32  # of a block, and of a tile of the other side


def exercise(kernels):
    """Several tiles on both sides, two heads of queries to a head of keys; every pass.

    Returns:
        out, dq, dk and dv: zeros.
    """
    queries, keys, heads, width = 70, 40, 2, 32
    q, dout, out, dq, k, v, dk, dv = [
        fake_cupy.zeros((rows, width * of), np.float32)
        for rows, of in [(queries, heads)] * 4 + [(keys, 1)] * 4
    ]
    log_sums, means = [fake_cupy.zeros((queries, heads), np.float32) for _ in range(2)]
    offsets = [fake_cupy.asarray(np.array([0, n])) for n in (queries, keys)]
    first = fake_cupy.asarray(np.array([0]))
    scales = fake_cupy.asarray(np.ones(1, np.float32))
    tables = (first, *offsets, scales, None, None, 1, heads, heads, width, width)
    last, rows = (None, None, 0, 0, None, None, 0, None, 0, 1.0, 0.5), [heads * width, width, width]
    given = (q, k, v, out, log_sums, *tables, *rows, *last, None, True)
    kernels.launch("dot_attention_mma", (2, heads), (128,), given)
    tables = (*tables, *rows, *rows)
    for known in (out, None):
        given = (q, k, v, log_sums, known, dout, means, dq, *tables, *last, True)
        kernels.launch("dot_attention_backward_mma", (2, heads), (128,), given)
    given = (q, k, v, log_sums, dout, means, dk, dv, False, *tables, *last, True)
    kernels.launch("dot_attention_backward_keys_mma", (1, 1), (128,), given)
    return out, dq, dk, dv


@pytest.mark.parametrize("name", ["dot_product_mma.cu", "dot_product_mma_backward.cu"])
def test_without_any_of_its_waits_a_kernel_fails_or_gives_nan(name):
    if why := simulator.missing():
        pytest.skip(why)
    both = [source.read(f"dot_product_mma{end}.cu") for end in ("", "_backward")]
    (whole,) = [text for text in both if text.name == name]
    own = whole.text.index(f'#line 1 "{name}"')
    waits = [
        wait.span()
        for wait in re.finditer(r"wait_for_copies\(\);", whole.text)
        if wait.start() > own
    ]
    assert len(waits) == {"dot_product_mma.cu": 3, "dot_product_mma_backward.cu": 2}[name]
    for start, end in [(0, 0), *waits]:
        kernels = Kernels(np.float32, fake_cupy)
        kernels.add(whole._replace(text=whole.text[:start] + whole.text[end:]))
        with simulated():
            try:
                found = exercise(kernels)
                is_right = not any([np.isnan(x.get()).any() for x in found])
            except KernelFault:
                is_right = False
        assert is_right == (end == 0)


def tiles_of(sentence):
    """Blocks of queries, and of each the tiles of keys that it goes through."""
    queries, keys = sentence.q.shape[2], sentence.k.shape[2]
    for first in range(0, queries, SIDE):
        last = min(queries, first + SIDE)
        low, high = sentence.mask.keys(first, last, keys)
        starts = range(low, high, STEP)
        yield (
            slice(first, last),
            [Tile(first, last, start, min(high, start + STEP)) for start in starts],
        )


def scores_of(sentence, tile):
    """Scores, and the factors of dropout."""
    shape = (*sentence.q.shape[:2], tile.last - tile.first, tile.high - tile.low)
    scores = sentence.scores(tile, np.empty(np.prod(shape), np.float32))
    factors = np.ones(shape, np.float32)
    sentence.drop(factors, tile)
    return scores, factors


def sums_of(array, sentence):
    """(T, heads) of a sentence's queries as (heads, shared, T, 1)."""
    heads, shared = sentence.q.shape[:2]
    return array[sentence.rows].T.reshape(heads, shared, -1, 1)


def heads_of(array, rows, sentence, shared):
    heads = sentence.q.shape[0]
    return (
        array[rows]
        .reshape(-1, heads, shared, array.shape[1] // heads // shared)
        .transpose(1, 2, 0, 3)
    )


def rounded_sentences(packed, scoring, precision):
    """Sentences whose queries, keys and values are rounded: all are factors, and nothing else."""
    factors = PackedAttention(*[round_to(x, precision) for x in packed[:3]], *packed[3:])
    bias, _ = bias_of(factors, scoring, np.empty(10**6, np.float32))
    return attention_sentences(factors, scoring, bias, range(len(scoring.masks)))


def expected_forward(packed, scoring, precision):
    out = np.zeros((packed.queries.shape[0], out_width(packed, scoring)), np.float32)
    log_sums = np.zeros((packed.queries.shape[0], scoring.heads), np.float32)
    for sentence in rounded_sentences(packed, scoring, precision):
        y, sums = (
            heads_of(out, sentence.rows, sentence, scoring.shared),
            sums_of(log_sums, sentence),
        )
        for rows, tiles in tiles_of(sentence):
            peak = np.full((*sums.shape[:2], rows.stop - rows.start, 1), -np.inf, np.float32)
            total, of_block = np.zeros_like(peak), np.zeros_like(y[:, :, rows])
            for tile in tiles:
                scores, factors = scores_of(sentence, tile)
                highest = np.maximum(peak, scores.max(-1, keepdims=True))
                shift = np.where(highest == -np.inf, 0, highest)
                p, decay = np.exp(scores - shift), np.exp(peak - shift)
                peak, total = highest, total * decay + p.sum(-1, keepdims=True)
                part = round_to(p * factors, precision) @ sentence.v[:, :, tile.low : tile.high]
                of_block = of_block * decay + part
            hidden = total == 0
            put(out, sentence, rows, of_block / np.where(hidden, 1, total))
            with np.errstate(divide="ignore"):
                log_sum = np.log(total) + np.where(peak == -np.inf, 0, peak)
            put(log_sums, sentence, rows, np.where(hidden, np.inf, log_sum))
    return out, log_sums


def put(array, sentence, rows, values):
    """Numbers by heads to the rows of a sentence's queries."""
    array[sentence.rows][rows] = values.transpose(2, 0, 1, 3).reshape(rows.stop - rows.start, -1)


def expected_backward(packed, scoring, log_sums, out, dout, precision):
    gradients = [np.zeros(x.shape, np.float32) for x in packed[:3]]
    shared = scoring.shared
    for sentence in rounded_sentences(packed, scoring, precision):
        (y, dy), sums = (
            [heads_of(x, sentence.rows, sentence, shared) for x in (out, dout)],
            sums_of(log_sums, sentence),
        )
        dq = heads_of(gradients[0], sentence.rows, sentence, shared)
        dk, dv = [heads_of(x, sentence.keys, sentence, 1)[:, 0] for x in gradients[1:]]
        slopes = round_to(dy, precision)
        mean = (y * dy).sum(-1, keepdims=True)
        for rows, tiles in tiles_of(sentence):
            of_queries = np.zeros_like(dq[:, :, rows])
            for tile in tiles:
                keys = slice(tile.low, tile.high)
                scores, factors = scores_of(sentence, tile)
                p = np.exp(scores - sums[:, :, rows])
                dp = slopes[:, :, rows] @ sentence.v[:, :, keys].swapaxes(2, 3) * factors
                ds = round_to(sentence.scale * (p * (dp - mean[:, :, rows])), precision)
                of_queries += ds @ sentence.k[:, :, keys]
                dk[:, keys] += (ds.swapaxes(2, 3) @ sentence.q[:, :, rows]).sum(1)
                kept = round_to(p * factors, precision).swapaxes(2, 3)
                dv[:, keys] += (kept @ slopes[:, :, rows]).sum(1)
            put(gradients[0], sentence, rows, of_queries)
    return gradients


CASES = [
    (1, 1, (32, 32), "all", None),
    (4, 2, (128, 128), "mixed", None),
    (2, 1, (256, 160), "causal", None),
    (2, 2, (128, 96), "window", Clipped),
    (1, 1, (16, 128), "masks", "alibi"),
    (2, 1, (64, 64), "all", "dropout"),
]


def scoring_of_case(heads, shared, widths, kind, extra, lengths=LENGTHS):
    scoring = scoring_of(np.dtype(np.float32), lengths, heads, kind, widths[0], shared)
    if extra == "dropout":
        return dropping(scoring)
    if extra is not None:
        rule = None if extra == "alibi" else extra
        rng = np.random.default_rng(3)
        numbers = rng.standard_normal((7 if rule else 1, heads)).astype(np.float32)
        return scoring._replace(bias=ScoreBias(numbers, rule))
    return scoring


def on_device(cupy, packed, scoring):
    if scoring.bias is not None and scoring.bias.rule is not None:
        numbers = cupy.asarray(scoring.bias.numbers)
        scoring = scoring._replace(bias=scoring.bias._replace(numbers=numbers))
    return PackedAttention(*[cupy.asarray(x) for x in packed[:3]], *packed[3:]), scoring


def assert_close(found, expected):
    """A factor at a boundary may be rounded the other way; unrounded ones are off by 1e-3."""
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4 * scale)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("heads", "shared", "widths", "kind", "extra"), CASES)
def test_forward_and_backward(cupy, monkeypatch, precision, heads, shared, widths, kind, extra):
    monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", True)
    packed = packed_of(np.dtype(np.float32), LENGTHS, widths, shared)
    scoring = scoring_of_case(heads, shared, widths, kind, extra)
    out, log_sums = expected_forward(packed, scoring, precision)
    dout = np.random.default_rng(7).standard_normal(out.shape).astype(np.float32)
    gradients = expected_backward(packed, scoring, log_sums, out, dout, precision)

    given, how = on_device(cupy, packed, scoring)
    found = [cupy.asarray(np.full_like(x, np.nan)) for x in (out, log_sums, *gradients)]
    known = [cupy.asarray(x) for x in (log_sums, out, dout)]
    with multiplying(precision), launches(3):
        forward(given, how, *found[:2])
        backward(given, how, *known, AttentionGradients(*found[2:]))
        queue().flush()
    for array, expected in zip(found, (out, log_sums, *gradients), strict=True):
        assert_close(array.get(), expected)


def prepared(cupy, lengths=LENGTHS, widths=(32, 32), heads=2, shared=2, dtype=np.float32):
    """A case's arrays on the device, and its gradients of float32 by the plain kernels."""
    dtype = np.dtype(dtype)
    packed = packed_of(dtype, lengths, widths, shared)
    scoring = scoring_of(dtype, lengths, heads, "all", widths[0], shared)
    given, how = on_device(cupy, packed, scoring)
    out = cupy.asarray(np.zeros((packed.queries.shape[0], out_width(packed, scoring)), dtype))
    log_sums = cupy.asarray(np.zeros((packed.queries.shape[0], heads), dtype))
    forward(given, how, out, log_sums)
    dout = np.random.default_rng(8).standard_normal(out.shape).astype(dtype)
    return given, how, log_sums, out, cupy.asarray(dout)


def gradients_of(cupy, case, start=0.0, accumulate=False, out=None):
    given, how, log_sums, _, dout = case
    found = [cupy.asarray(np.full(x.shape, start, x.dtype)) for x in given[:3]]
    backward(given, how, log_sums, out, dout, AttentionGradients(*found, accumulate))
    queue().flush()
    return [x.get() for x in found]


def test_means_are_made_by_a_pass_of_their_own_where_the_output_is_gone(cupy, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", True)
    case = prepared(cupy)
    with multiplying("tf32"):
        with_out, without = [gradients_of(cupy, case, out=out) for out in (case[3], None)]
    for found, expected in zip(without, with_out, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * scale)
    np.testing.assert_array_equal(without[2], with_out[2])


def test_gradients_of_keys_and_values_are_added(cupy, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", True)
    case = prepared(cupy)
    with multiplying("bfloat16"):
        fresh = gradients_of(cupy, case, out=case[3])
        added = gradients_of(cupy, case, 10.0, True, case[3])
    np.testing.assert_array_equal(added[0], fresh[0])
    for found, expected in zip(added[1:], fresh[1:], strict=True):
        np.testing.assert_array_equal(found, 10 + expected)


@pytest.mark.parametrize(
    ("why", "options", "precision"),
    [
        ("the switch is off", {}, "tf32"),
        ("nothing is rounded", {}, "float32"),
        ("of 40 features", {"widths": (80, 32)}, "tf32"),
        ("of 144 features", {"widths": (32, 288)}, "tf32"),
        ("of float64", {"dtype": np.float64}, "tf32"),
        ("one query each", {"lengths": ((1, 5), (1, 70))}, "tf32"),
    ],
)
def test_others_have_the_bits_of_the_plain_kernels(cupy, monkeypatch, why, options, precision):
    case = prepared(cupy, **options)
    plain = gradients_of(cupy, case, out=case[3])
    monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", why != "the switch is off")
    with multiplying(precision):
        rounded = gradients_of(cupy, case, out=case[3])
    for found, expected in zip(rounded, plain, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_matrices_at_other_places_than_multiples_of_16_bytes_are_left_alone(cupy, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", True)
    case = prepared(cupy)
    queries = case[0].queries
    moved = cupy.empty(queries.size + 1, queries.dtype)[1:].reshape(queries.shape)
    with multiplying("tf32"):
        assert cuda_kernels.fits_tensor_cores([queries], *case[:2])
        assert not cuda_kernels.fits_tensor_cores([queries, moved], *case[:2])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bits_do_not_depend_on_the_other_sentences(cupy, monkeypatch, precision):
    monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", True)
    given, how, log_sums, out, dout = case = prepared(cupy)
    with multiplying(precision):
        together = gradients_of(cupy, case, out=out)
        for n, (queries, keys) in enumerate(LENGTHS):
            if queries < 2:
                continue
            rows, seen = [slice(*offsets[n : n + 2]) for offsets in given[3:]]
            offsets = [np.array([0, count]) for count in (queries, keys)]
            alone = gradients_of(
                cupy,
                (
                    PackedAttention(given[0][rows], given[1][seen], given[2][seen], *offsets),
                    how._replace(scales=how.scales[n : n + 1], masks=how.masks[n : n + 1]),
                    log_sums[rows], out[rows], dout[rows],
                ),
                out=out[rows],
            )  # fmt: skip
            for one, all_, part in zip(alone, together, (rows, seen, seen), strict=True):
                assert one.tobytes() == all_[part].tobytes()
