"""`kernels.attention.dot_product` in C against NumPy, and its bits against themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array, spec_of
from dynbatch.kernels.attention import dot_product as kernels
from dynbatch.kernels.attention.addresses import PagedRows, PageTable
from dynbatch.kernels.attention.bias import ScoreBias
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.attention import dot_product as compiled
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.dispatch import c_version
from dynbatch.kernels.runtime.precision import round_to, upper_halves
from dynbatch.nodes.attention.bias import ClippedDistance
from tests.kernels.c.compare import TOLERANCE

CAUSAL = Mask(UNBOUNDED, 0)
LENGTHS = [0, 1, 2, 5, 16, 17, 31, 33, 64, 65, 130]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(parallel, "num_threads", lambda: request.param)


def offsets_of(lengths: Any) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def masks_of(rng: np.random.Generator, queries: Array, keys: Array) -> list[Mask]:
    def flags(*shape: int) -> Mask:
        return Mask(UNBOUNDED, int(rng.integers(0, 99)), rng.random(shape) < 0.6)

    def one(kind: int, pair: tuple[int, int]) -> Mask:
        kinds = [NO_MASK, CAUSAL, Mask(3, 40), Mask(40, 0), flags(*pair), flags(pair[1])]
        return kinds[kind]

    return [
        one(kind, pair)
        for kind, pair in zip(
            rng.integers(0, 6, len(queries)), zip(queries, keys, strict=True), strict=True
        )
    ]


class Case:
    """Sentences, a scoring and gradients drawn from a seed, in float64."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.count = int(rng.integers(1, 6))
        self.queries, self.keys = rng.choice(LENGTHS, (2, self.count))
        self.shared, groups = (int(n) for n in rng.integers(1, 4, 2))
        heads = self.shared * groups
        width, tall = (int(n) for n in rng.choice([1, 5, 16, 20, 32, 40, 150], 2))
        query_rows, key_rows = int(self.queries.sum()), int(self.keys.sum())
        # Columns of wider matrices, as of a product that makes all three.
        self.q = rng.standard_normal((query_rows, heads * width + 3))[:, 3:]
        both = rng.standard_normal((key_rows, groups * (width + tall)))
        self.k, self.v = both[:, : groups * width], both[:, groups * width :]
        self.dout = rng.standard_normal((query_rows, heads * tall))
        self.earlier = [rng.standard_normal(x.shape) for x in (self.q, self.k, self.v)]
        self.accumulate = bool(rng.random() < 0.3)
        kind = rng.integers(0, 3)
        self.reach = int(rng.integers(1, 40))
        table = rng.standard_normal((2 * self.reach + 1 if kind == 1 else 1, heads)) / 9
        rule = ClippedDistance(self.reach) if kind == 1 else None
        bias = ScoreBias(table, rule) if kind else None
        p = float(rng.choice([0, 0, 0.3, 1]))
        streams = rng.integers(0, 1 << 32, self.count, np.uint32) if p else None
        scales = rng.random(self.count) / width**0.5
        masks = masks_of(rng, self.queries, self.keys)
        softcap = float(rng.choice([0, 0.6]))
        self.scoring = Scoring(
            heads, scales, masks, self.shared, bias, p, streams, softcap=softcap
        )  # fmt: skip

    def run(self, dtype: type, only: int | None = None) -> list[Array]:
        """Everything that forward and backward leave, of all sentences or one."""
        spans = [offsets_of(self.queries), offsets_of(self.keys)]
        chosen = slice(None) if only is None else slice(only, only + 1)
        rows, keys = [slice(None) if only is None else slice(*at[only : only + 2]) for at in spans]
        queries, counts = self.queries[chosen], self.keys[chosen]

        def cast(x: Array) -> Array:
            """A copy with the array's number of columns from row to row."""
            return x.base.astype(dtype)[:, x.base.shape[1] - x.shape[1] :]

        q = cast(self.q)[rows]
        both = self.k.base.astype(dtype)[keys]
        k, v = both[:, : self.k.shape[1]], both[:, self.k.shape[1] :]
        packed = PackedAttention(q, k, v, offsets_of(queries), offsets_of(counts))
        scoring = self.scoring
        bias, streams = scoring.bias, scoring.streams
        if bias is not None:
            bias = bias._replace(numbers=bias.numbers.astype(dtype))
        scoring = scoring._replace(
            scales=scoring.scales[chosen].astype(dtype), masks=scoring.masks[chosen], bias=bias,
            streams=None if streams is None else streams[chosen],
        )  # fmt: skip
        lengths = (queries.tolist(), counts.tolist())
        dout = self.dout[rows].astype(dtype)
        out, log_sums = np.full_like(dout, np.nan), np.empty((len(dout), scoring.heads), dtype)
        scratch = np.empty(kernels.workspace(spec_of(out), *lengths, scoring), dtype)
        kernels.dot_attention(packed, scoring, out, log_sums, scratch)
        made = [x.astype(dtype) for x in self.earlier]
        dq, dk, dv = made[0][rows], made[1][keys], made[2][keys]
        if not self.accumulate:
            dq[...], dk[...], dv[...] = np.nan, np.nan, np.nan
        has_table = bias is not None and bias.rule is not None
        table = np.empty_like(bias.numbers) if bias is not None and has_table else None
        wanted = AttentionGradients(dq, dk, dv, self.accumulate, bias=table)
        scratch = np.empty(kernels.workspace_backward(spec_of(out), *lengths, scoring), dtype)
        kernels.dot_attention_backward(packed, scoring, log_sums, None, dout, wanted, scratch)
        return [out, log_sums, dq, dk, dv, *([] if table is None else [table])]


@pytest.mark.parametrize("seed", range(20))
def test_random_configurations_give_what_numpy_gives(seed: int, threads: None) -> None:
    case = Case(seed)
    with library.reference_only():
        expected = case.run(np.float64)
    for dtype in (np.float64, np.float32):
        for mine, reference in zip(case.run(dtype), expected, strict=True):
            scale = np.abs(reference[np.isfinite(reference)]).max(initial=1)
            tolerance = TOLERANCE[mine.dtype.char]
            np.testing.assert_allclose(mine, reference, tolerance, tolerance * scale)


@pytest.mark.parametrize("seed", range(12))
def test_a_sentence_has_the_same_bits_alone_and_in_company(seed: int, threads: None) -> None:
    case = Case(seed)
    everything = case.run(np.float32)[:5]
    spans = [offsets_of(case.queries)] * 3 + [offsets_of(case.keys)] * 2
    for k in range(case.count):
        for together, alone, at in zip(everything, case.run(np.float32, k)[:5], spans, strict=True):
            assert together[at[k] : at[k + 1]].tobytes() == alone.tobytes()


def test_a_bias_has_the_same_gradient_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "WORTH_A_THREAD", 1)
    cases = [case for case in map(Case, range(30)) if len(case.run(np.float32)) > 5]
    assert cases
    for case in cases:
        found = set()
        for count in (1, 2, 5):
            monkeypatch.setattr(parallel, "num_threads", lambda count=count: count)
            found.add(case.run(np.float32)[5].tobytes())
        assert len(found) == 1


def paged(
    keys: Array, values: Array, lengths: list[int], rows: int, split: int = 1 << 40,
    is_short: bool = False,
) -> tuple[PagedRows, list[Array]]:  # fmt: skip
    """Rows of sentences in pages, with junk in what is not filled; and the pages, to be held.

    Rows from `split` on begin a page. Where `is_short`, all are bfloat16.
    """
    pages, counts = [], []
    for start, length in zip(offsets_of(lengths).tolist(), lengths, strict=False):
        ends = [*range(rows, min(split, length), rows), min(split, length)]
        ends += [*range(split + rows, length, rows), length] if length > split else []
        counts.append(len(ends))
        for first, last in zip([0, *ends], ends, strict=False):
            part = slice(start + first, start + last)
            page = np.full((rows, keys.shape[1] + values.shape[1]), np.nan, keys.dtype).ravel()
            for x, at in ((keys, 0), (values, rows * keys.shape[1])):
                page[at : at + x[part].size] = x[part].ravel()
            pages.append(upper_halves(page) if is_short else page)
    bases = np.array([address(page) for page in pages], np.int64)
    new = np.zeros(len(lengths), np.int64)
    gaps = np.array([(split, -split % rows)] * len(lengths))
    table = PageTable(bases, counts, np.array(lengths), new, rows, gaps)
    widths = keys.shape[1], values.shape[1]
    itemsize = 2 if is_short else keys.itemsize
    return PagedRows(table, (0, rows * widths[0] * itemsize), widths, is_short), pages


def in_pages(rows: Array, is_short: bool) -> Array:
    """Rows of which pages lose nothing."""
    return round_to(rows, "bfloat16") if is_short else rows


@pytest.mark.parametrize(
    ("dtype", "is_short"), [(np.float32, False), (np.float64, False), (np.float32, True)]
)
@pytest.mark.parametrize(
    ("shared", "page_rows", "split"), [(1, 32, 50), (2, 32, 1 << 40), (1, 64, 3), (2, 7, 100)]
)
@pytest.mark.parametrize("width", [24, 33])
def test_queries_one_at_a_time_over_pages_have_the_bits_of_all_at_once(
    dtype: type, is_short: bool, shared: int, page_rows: int, split: int, width: int, threads: None
) -> None:
    lengths, groups, tall = [150, 1, 67], 2, 20
    rng = np.random.default_rng(3)
    total, offsets = sum(lengths), offsets_of(lengths)
    q = rng.standard_normal((total, shared * groups * width)).astype(dtype)
    k = in_pages(rng.standard_normal((total, groups * width)).astype(dtype), is_short)
    v = in_pages(rng.standard_normal((total, groups * tall)).astype(dtype), is_short)
    out = np.empty((total, shared * groups * tall), dtype)
    scales = np.full(3, 0.3, dtype)
    scoring = Scoring(shared * groups, scales, [CAUSAL] * 3, shared)
    packed = PackedAttention(q, k, v, offsets, offsets)
    kernels.dot_attention(packed, scoring, out, None, np.empty(0))
    for step in range(max(lengths)):
        going = [n for n in range(3) if step < lengths[n]]
        rows = offsets[going] + step
        until = np.concatenate([np.arange(offsets[n], offsets[n] + step + 1) for n in going])
        alive = len(going)
        cache, _pages = paged(k[until], v[until], [step + 1] * alive, page_rows, split, is_short)
        one = scoring._replace(scales=scales[:alive], masks=[NO_MASK] * alive)
        own = np.full((alive, out.shape[1]), np.nan, dtype)
        given = (q[rows], offsets_of([1] * alive), cache, one, own)
        result = c_version(kernels.dot_attention_of_pages)(*given)
        assert result is not NotImplemented
        assert own.tobytes() == out[rows].tobytes()
        if step % 50 == 0:
            other = np.empty_like(own)
            with library.reference_only():
                kernels.dot_attention_of_pages(*given[:-1], other)
            np.testing.assert_allclose(own, other, 1e-5, 1e-5)


@pytest.mark.parametrize("mask", [CAUSAL, Mask(9, 0)], ids=["causal", "window"])
@pytest.mark.parametrize(("page_rows", "split"), [(32, 1 << 40), (32, 50), (7, 66)])
@pytest.mark.parametrize(("is_short", "width"), [(False, 8), (True, 8), (True, 286)])
def test_many_queries_over_pages_have_the_bits_of_one_run(
    mask: Mask, page_rows: int, split: int, is_short: bool, width: int, threads: None
) -> None:
    lengths = [150, 1, 67]
    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((3, sum(lengths), width)).astype(np.float32)
    k, v = in_pages(k, is_short), in_pages(v, is_short)
    scoring = Scoring(2, np.ones(3, np.float32), [mask] * 3)
    expected, out = np.empty_like(q), np.empty_like(q)
    packed = PackedAttention(q, k, v, offsets_of(lengths), offsets_of(lengths))
    kernels.dot_attention(packed, scoring, expected, None, np.empty(0))
    cache, _pages = paged(k, v, lengths, page_rows, split, is_short)
    result = c_version(kernels.dot_attention_of_pages)(q, offsets_of(lengths), cache, scoring, out)
    assert result is not NotImplemented
    assert out.tobytes() == expected.tobytes()


def test_pages_that_are_not_there_give_zeros() -> None:
    q, scoring = np.ones((7, 4)), Scoring(2, np.ones(2), [NO_MASK] * 2)
    out = np.empty_like(q)
    cache, _pages = paged(q[:0], q[:0], [0, 0], 3)
    kernels.dot_attention_of_pages(q, offsets_of([3, 4]), cache, scoring, out)
    assert not out.any()
    cache, _pages = paged(q, q, [7, 0], 3)
    kernels.dot_attention_of_pages(q, offsets_of([3, 4]), cache, scoring, out)
    assert (out[:3] == 1).all() and not out[3:].any()


def test_keys_that_are_their_own_values_add_both_gradients() -> None:
    rng = np.random.default_rng(4)
    q, k, dout = rng.standard_normal((3, 9, 8))
    packed = PackedAttention(q, k, k, offsets_of([9]), offsets_of([9]))
    scoring = Scoring(2, np.ones(1), [NO_MASK])
    out, log_sums = np.empty_like(q), np.empty((9, 2))
    kernels.dot_attention(packed, scoring, out, log_sums, np.empty(0))
    scratch = np.empty(kernels.workspace_backward(spec_of(out), [9], [9], scoring))
    apart, once = np.ones((2, 9, 8)), np.ones((9, 8))
    wanted = AttentionGradients(None, apart[0], apart[1], True)
    kernels.dot_attention_backward(packed, scoring, log_sums, None, dout, wanted, scratch)
    wanted = AttentionGradients(None, once, once, True)
    kernels.dot_attention_backward(packed, scoring, log_sums, None, dout, wanted, scratch)
    np.testing.assert_allclose(once, apart[0] + apart[1] - 1, rtol=1e-12)


def test_scratch_does_not_grow_with_the_pairs() -> None:
    host, length = spec_of(np.empty(0)), 10_000

    def scratch(mask: Mask, bias: ScoreBias | None = None) -> tuple[int, int]:
        given = (host, [length], [length], Scoring(1, np.ones(1), [mask], 1, bias))
        return kernels.workspace(*given), kernels.workspace_backward(*given)

    threads = parallel.num_threads()
    assert scratch(NO_MASK)[0] == 0
    assert scratch(NO_MASK)[1] <= threads * 2 * compiled.SIDE * length
    assert scratch(Mask(64, 64))[1] <= threads * 2 * compiled.SIDE * 160
    bias = ScoreBias(np.ones((1, 1)), None)
    assert scratch(NO_MASK, bias)[0] == 2 * length - 1


@pytest.mark.parametrize("bias", [None, "table", "slopes"])
@pytest.mark.parametrize("mask", [CAUSAL, Mask(9, 0), NO_MASK])
def test_queries_behind_earlier_ones_have_their_place(bias: str | None, mask: Mask) -> None:
    rng = np.random.default_rng(0)
    heads, counts, starts = 4, [130, 64, 3], [129, 40, 0]
    q, k, v = rng.standard_normal((3, sum(counts), heads * 8)).astype(np.float32)
    numbers = rng.standard_normal((21 if bias == "table" else 1, heads)).astype(np.float32)
    rule = ClippedDistance(10) if bias == "table" else None
    given = None if bias is None else ScoreBias(numbers, rule)
    scoring = Scoring(heads, np.full(3, 0.3, np.float32), [mask] * 3, 1, given)
    offsets = offsets_of(counts)

    def result(rows: Array, lengths: list[int], scoring: Scoring) -> Array:
        packed = PackedAttention(q[rows], k, v, offsets_of(lengths), offsets)
        out = np.empty_like(q[rows])
        room = np.empty(kernels.workspace(spec_of(q), lengths, counts, scoring), np.float32)
        kernels.dot_attention(packed, scoring, out, None, room)
        return out

    whole = result(np.arange(sum(counts)), counts, scoring)
    firsts = zip(offsets[:-1], offsets[1:], starts, strict=True)
    late = np.concatenate([np.arange(first + start, end) for first, end, start in firsts])
    lengths = [count - start for count, start in zip(counts, starts, strict=True)]
    going_on = scoring._replace(starts=np.array(starts))
    assert result(late, lengths, going_on).tobytes() == whole[late].tobytes()
    with library.reference_only():
        np.testing.assert_allclose(result(late, lengths, going_on), whole[late], rtol=0, atol=1e-5)
