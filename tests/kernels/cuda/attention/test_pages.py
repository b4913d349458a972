"""Attention over keys and values that lie in pages of the device."""

from itertools import pairwise

import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.cupy_types import device_address
from dynbatch.kernels.attention.addresses import PagedRows, PageTable
from dynbatch.kernels.attention.bias import ScoreBias
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.dot_product import dot_attention, dot_attention_of_pages, workspace
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import PackedAttention
from dynbatch.kernels.cuda.attention.dot_product import over_short_pages
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import round_to, upper_halves
from dynbatch.ragged import offsets_of
from tests.cuda import nvrtc
from tests.kernels.cuda.compare import launches
from tests.marks import exhaustive

BEFORE, HEADS, SHARED, WIDTH = np.array([70, 0, 300, 31]), 4, 2, 8


def paged(cupy, rows, lengths, split, height=32, is_short=False):
    """Rows of sentences (N, 2 · width), keys beside values, in pages of `height` rows with gaps.

    Where `is_short`, numbers are kept as bfloat16.
    """
    width = rows.shape[1] // 2
    gaps, bases, firsts, held = [], [], [], []
    for first, end in pairwise(offsets_of(lengths)):
        gap = -split % height if split < end - first else 0
        gaps.append((split, gap))
        count = -(-(end - first + gap) // height)
        whole = np.full((2, count * height, width), np.nan, rows.dtype)
        places = np.arange(end - first)
        places[split:] += gap
        for side in range(2):
            whole[side, places] = rows[first:end, side * width : (side + 1) * width]
        firsts.append(count)
        for page in range(count):
            part = np.ascontiguousarray(whole[:, page * height : (page + 1) * height])
            held.append(cupy.asarray(upper_halves(part) if is_short else part))
            bases.append(device_address(held[-1]))
    size = height * width * held[0].itemsize
    table = PageTable(
        np.array(bases, np.int64), firsts, lengths, np.zeros_like(lengths), height, np.array(gaps)
    )
    return PagedRows(table, (0, size), (width, width), is_short), held


@pytest.mark.parametrize("height", [32, 1, exhaustive(8)])
@pytest.mark.parametrize(("bias", "softcap"), [(False, 0.0), (True, 0.4)])
@pytest.mark.parametrize("mask", [NO_MASK, Mask(UNBOUNDED, 0), Mask(9, 0)])
@pytest.mark.parametrize("new", [(1, 1, 1, 1), (5, 40, 1, 2)])
@pytest.mark.parametrize("is_short", [False, True])
def test_queries_over_pages_are_those_over_one_run_of_rows(
    cupy, dtype, is_short, new, mask, bias, softcap, height
):
    if is_short and dtype != "float32":
        pytest.skip("nothing of float64 is kept in bfloat16")
    rng, lengths = np.random.default_rng(0), BEFORE + new
    q = rng.standard_normal((sum(new), HEADS * WIDTH)).astype(dtype)
    rows = rng.standard_normal((lengths.sum(), HEADS // SHARED * WIDTH * 2)).astype(dtype)
    rows = round_to(rows, "bfloat16") if is_short else rows
    slopes = ScoreBias(np.linspace(-0.1, 0.1, HEADS).astype(dtype)[None], None) if bias else None
    starts = None if mask is NO_MASK and not bias else BEFORE
    scoring = Scoring(
        HEADS, np.full(4, 0.3, dtype), [mask] * 4, SHARED, slopes, starts=starts, softcap=softcap
    )  # fmt: skip
    keys, values = np.split(rows, 2, axis=1)
    packed = PackedAttention(q, keys.copy(), values.copy(), offsets_of(new), offsets_of(lengths))
    expected = np.empty_like(q)
    room = workspace(spec_of(q), new, lengths.tolist(), scoring)
    dot_attention(packed, scoring, expected, None, np.empty(room, dtype))
    of_pages, _held = paged(cupy, rows, lengths, 40, height, is_short)
    if bias:
        scoring = scoring._replace(bias=ScoreBias(cupy.asarray(slopes.numbers), None))
    out = cupy.empty(q.shape, dtype)
    with launches(1):
        dot_attention_of_pages(cupy.asarray(q), offsets_of(new), of_pages, scoring, out)
        queue().flush()
    np.testing.assert_allclose(out.get(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
def test_a_row_in_pages_is_found_without_a_division():
    """As many stand in the kernels as in those that read one run of rows."""
    for text, pages in (
        (source.read("dot_product.cu"), "pages"),
        (over_short_pages(), "short_pages"),
    ):
        found = nvrtc.divisions(text.text, "dot_product.cu", ("-DREAL=float",))
        for kind in ("", "_extended"):
            assert found[f"dot_attention_of_{pages}{kind}"] == found[f"dot_attention{kind}"] > 0


def test_pages_on_a_gpu_have_a_power_of_two_of_rows(cupy):
    rows, lengths = np.zeros((4, 2 * WIDTH), np.float32), np.array([4])
    of_pages, _held = paged(cupy, rows, lengths, 4, height=3)
    q, scoring = cupy.zeros((1, WIDTH), np.float32), Scoring(1, np.ones(1, np.float32), [NO_MASK])
    with pytest.raises(AssertionError, match="pages of 3 rows, which are no power of two"):
        dot_attention_of_pages(q, offsets_of((1,)), of_pages, scoring, q)


def test_layers_that_score_alike_bring_their_tables_up_once(cupy, dtype):
    rng, lengths = np.random.default_rng(0), BEFORE + 1
    rows = rng.standard_normal((lengths.sum(), HEADS // SHARED * WIDTH * 2)).astype(dtype)
    of_pages, _held = paged(cupy, rows, lengths, 40)
    q, new = cupy.asarray(rng.standard_normal((4, HEADS * WIDTH)).astype(dtype)), np.ones(4, int)
    offsets = offsets_of(new)

    def attended(*layers):
        """Bytes that come up for layers of some masks and scales, and their results."""
        of_pages.table.calls.clear()
        outs = [cupy.empty(q.shape, dtype) for _ in layers]
        for out, (left, scale) in zip(outs, layers, strict=True):
            scales, masks = np.full(4, scale, dtype), [Mask(left, 0)] * 4
            scoring = Scoring(HEADS, scales, masks, SHARED, starts=BEFORE)
            dot_attention_of_pages(q, offsets, of_pages, scoring, out)
        before = queue().uploaded_bytes
        queue().flush()
        return queue().uploaded_bytes - before, [out.get().tobytes() for out in outs]

    one, (result,) = attended((9, 0.3))
    assert attended((9, 0.3), (9, 0.3), (9, 0.3)) == (one, [result] * 3)
    for other in ((8, 0.3), (9, 0.4)):
        _, (its,) = attended(other)
        more, results = attended((9, 0.3), other, (9, 0.3))
        assert more > one and results == [result, its, result] and its != result
