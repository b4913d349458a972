"""Products in bfloat16: the bits of the rule, with the instruction and without, and as recorded."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from dynbatch.kernels import blas as kernels
from dynbatch.kernels.c import blas, linear_gradients
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library, reason
from dynbatch.kernels.linear_gradients import MapGradient, scatter_products, weight_gradients
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import (
    MANTISSA_BITS,
    multiplying,
    round_to,
    upper_halves,
)
from tests.marks import needs_compiler

pytestmark = pytest.mark.skipif(bool(reason()), reason="C kernels do not run here")

TERMS = 512
"""Of a part: a sum is of parts."""

LEAST = np.finfo(np.float32).tiny
HEAD = "#define EMULATED 1\n"


def emulated(name):
    return Library(name, HEAD + source.read(name), MANTISSA_BITS["bfloat16"])


EMULATED = {name: emulated(name) for name in ("blas.c", "linear_gradients.c")}


@pytest.fixture(params=["as chosen", pytest.param("emulated", marks=needs_compiler)])
def way(request, monkeypatch):
    """Products by the instruction, where this machine has it, and without."""
    if request.param == "emulated":
        use_plain_arithmetic(monkeypatch)
    with multiplying("bfloat16"):
        yield


def use_plain_arithmetic(monkeypatch):
    for module, name in ((blas, "blas.c"), (linear_gradients, "linear_gradients.c")):
        monkeypatch.setitem(module._libraries, "bfloat16", EMULATED[name])


# Numbers ------------------------------------------------------------------------------------------


def numbers(*shape, seed=0, exponents=24, special=0.0):
    """Floats of any bits with exponents around 0, some special ones: the same on any machine."""
    rng = np.random.Generator(np.random.PCG64(seed))
    bits = rng.integers(0, 1 << 23, shape, dtype=np.uint32)
    bits |= rng.integers(127 - exponents, 127 + exponents, shape, dtype=np.uint32) << np.uint32(23)
    bits |= rng.integers(0, 2, shape, dtype=np.uint32) << np.uint32(31)
    if special:
        odd = np.array([0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000])
        chosen = odd.astype(np.uint32)[rng.integers(0, len(odd), shape)]
        bits = np.where(rng.integers(0, 1 << 16, shape) < special * (1 << 16), chosen, bits)
    return bits.view(np.float32)


def flushed(x):
    """Subnormal numbers as zeros of their sign."""
    return np.where(np.abs(x) < LEAST, np.copysign(np.float32(0), x), x)


def fused(a, b, c):
    """a b + c of floats, in one rounding, by doubles: a b is exact, and the sum is made odd."""
    with np.errstate(all="ignore"):
        product, other = a.astype(np.float64) * b, c.astype(np.float64)
        total = product + other
        rest = total - product
        error = (product - (total - rest)) + (other - rest)
        bits = total.view(np.int64)
        is_inexact = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
        towards = np.where((error > 0) == (total > 0), 1, -1)
        return flushed(
            (bits + np.where(is_inexact, towards, 0)).view(np.float64).astype(np.float32)
        )


def test_the_sum_in_one_rounding_is_that_of_fractions():
    a, b = [round_to(numbers(200, seed=k, exponents=30), "bfloat16") for k in range(2)]
    c = numbers(200, seed=2, exponents=40)
    for x, y, z, found in zip(a, b, c, fused(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = [np.nextafter(found, np.float32(side)) for side in (-np.inf, np.inf)]
        distance = abs(Fraction(float(found)) - exact)
        assert all(distance <= abs(Fraction(float(n)) - exact) for n in near)


def by_rule(a, b, base=None):
    """a b + base: pairs of terms in order, of each the second first, parts added in order."""
    a, b = [flushed(round_to(flushed(x), "bfloat16")) for x in (a, b)]
    inner = a.shape[1]
    result = None if base is None else flushed(base)
    for first in range(0, max(1, inner), TERMS):
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for k in range(first, min(first + TERMS, inner), 2):
            pair = [k + 1, k] if k + 1 < inner else [k]
            if len(pair) == 1:  # the second is zero times zero
                total = fused(np.zeros_like(total), np.zeros_like(total), total)
            for term in pair:
                total = fused(a[:, term, None], b[term], total)
        with np.errstate(all="ignore"):
            result = total if result is None else flushed(total + result)
    return result


def assert_bits(found, expected):
    """Equal bits; all that is not a number is alike."""
    for x, y in zip(found, expected, strict=True):
        is_nan = np.isnan(y)
        np.testing.assert_array_equal(np.isnan(x), is_nan)
        same = np.where(is_nan, 0, x.view(np.uint32)) == np.where(is_nan, 0, y.view(np.uint32))
        assert same.all(), np.argwhere(~same)[:5]


# Layouts ------------------------------------------------------------------------------------------


def laid_out(x, order):
    """`x` in rows, in columns, or with gaps between all of its elements."""
    if order == "gaps":
        wide = np.full((2 * x.shape[0], 3 * x.shape[1]), np.nan, np.float32)
        wide[::2, ::3] = x
        return wide[::2, ::3]
    return np.asarray(x, order=order)


def product(a, b, base=None):
    out = np.empty((len(a), b.shape[1]), np.float32)
    kernels.matmul_rows(a, b, out, base)
    return out


def packed_product(a, b, base, pieces=None):
    """The product of the loops of cells; with `pieces`, of a weight packed by runs of terms."""
    functions = blas._libraries["bfloat16"].functions(a.dtype)
    (rows, inner), columns = a.shape, b.shape[1]
    panels = np.full(inner * (columns + 15) + 1, np.nan, np.float32)
    out = np.empty((rows, columns), np.float32)
    if pieces is None:
        weight = np.ascontiguousarray(b.T)
        functions.pack_weight(inner, columns, address(weight), inner, address(panels))
    else:
        for first, last in pieces:
            piece = np.ascontiguousarray(b[first:last])
            functions.pack_terms(
                inner, first, last - first, columns, address(piece), columns, address(panels)
            )
    functions.panel_product(
        rows, inner, columns, address(a), inner, address(panels), address(base), 0, address(out),
        columns,
    )  # fmt: skip
    return out


SIZES = [(1, 1, 1), (1, 37, 64), (1, 1031, 40), (3, 2, 16), (5, 0, 3), (6, 513, 64), (7, 64, 33),
         (13, 515, 129), (31, 33, 260), (97, 1030, 65), (770, 34, 260)]  # fmt: skip


@pytest.mark.parametrize("special", [0.0, 0.002])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_product_has_the_bits_of_the_rule(way, sizes, special):
    rows, inner, columns = sizes
    a = numbers(rows, inner, seed=1, special=special)
    b, base = numbers(inner, columns, seed=2, special=special), numbers(columns, seed=3)
    expected = by_rule(a, b, base)
    found = [
        product(laid_out(a, of_a), laid_out(b, of_b), base)
        for of_a in ("C", "F", "gaps")
        for of_b in ("C", "F", "gaps")
    ]
    half = inner // 2
    pieces = [(inner - 1, inner), (half, inner - 1), (0, half)] if inner > 1 else [(0, inner)]
    found += [packed_product(a, b, base), packed_product(a, b, base, pieces)]
    # Flushed first, as by the rule: the largest subnormal would round to a normal number.
    short_a, short_b = [upper_halves(round_to(flushed(x), "bfloat16")) for x in (a, b)]
    for x, y in ((short_a, b), (a, short_b), (short_a, short_b)):
        found += [product(x, y, base), product(np.asfortranarray(x), np.asfortranarray(y), base)]
    assert_bits(found, [expected] * len(found))


@pytest.mark.parametrize("rows", range(1, 14))
def test_tiles_of_every_height_and_width_have_the_same_bits(way, rows):
    a, wide = numbers(rows, 43, seed=4, special=0.001), numbers(43, 130, seed=5, special=0.001)
    expected = by_rule(a, wide)
    for columns in (1, 15, 16, 17, 32, 48, 63, 64, 65, 128, 130):
        b = wide[:, :columns]
        for order in ("C", "F"):
            assert_bits([product(a, laid_out(b, order))], [expected[:, :columns]])


def test_numbers_near_the_least_are_rounded_as_any_and_smaller_ones_are_0(way):
    a = numbers(64, 90, seed=6, exponents=3) * LEAST ** np.float32(0.5)
    b = numbers(90, 80, seed=7, exponents=3) * LEAST ** np.float32(0.5)
    base = numbers(80, seed=8, exponents=2) * LEAST * 4
    expected = by_rule(a, b, base)
    assert (expected == 0).any() and ((0 < np.abs(expected)) & (np.abs(expected) < 4 * LEAST)).any()
    assert_bits([product(a, b, base), product(a[:4], b, base)], [expected, expected[:4]])


def test_plain_sums_keep_small_numbers_after_a_product(way):
    product(numbers(3, 4), numbers(4, 5))
    assert np.float32(1e-39) + np.float32(1e-39) > 0


# Sums over rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 511, 1025])
@pytest.mark.parametrize("add", [False, True])
def test_weight_gradients_have_the_bits_of_the_rule(way, rows, add):
    dy = numbers(rows, 110, seed=9, special=0.0005)
    widths, skips = [33, 16, 65, 129, 1], [0, rows // 2, rows - 1, min(rows - 1, 3), 0]
    whole = [numbers(rows, width, seed=width, special=0.0005) for width in widths]
    weights = [numbers(70, width, seed=1, exponents=2) for width in widths]
    expected = []
    for x, skip, weight in zip(whole, skips, weights, strict=True):
        x[:skip] = 0
        first = skip // 2 * 2  # a pair of zeros adds nothing, infinity times zero not a number
        part = first // TERMS * TERMS
        d = dy[:, 38:108].copy()
        d[part:first] = 0
        expected.append(by_rule(d[part:].T, x[part:], weight if add else None))
    xs = [x[skip:] for x, skip in zip(whole, skips, strict=True)]
    weight_gradients(xs, [MapGradient(dy[:, 38:108], None, weights)], add)
    assert_bits(weights, expected)


@pytest.mark.parametrize("rows", [1, 5, 200])
def test_sums_of_products_have_the_bits_of_the_rule(way, rows):
    x, ws = numbers(rows, 90, seed=10), [numbers(45, 70, seed=k) for k in (11, 12)]
    start, out = numbers(rows, 70, seed=13), np.empty((rows, 70), np.float32)
    scatter_products([(x[:, :45], ws[0], 0), (x[:, 45:], ws[1], 0)], start, None, out, False)
    assert_bits([out], [by_rule(x[:, 45:], ws[1], by_rule(x[:, :45], ws[0], start))])


# Company ------------------------------------------------------------------------------------------


def test_a_row_has_the_same_bits_in_200_companies(way, same_threads):
    rng = np.random.default_rng(0)
    a, b = numbers(260, 601, seed=14), numbers(601, 77, seed=15)
    row, base = a[100], numbers(77, seed=16)
    expected = by_rule(row[None], b, base)[0]
    for company in range(200):
        parallel.set_num_threads(1 + company % 2)
        others = a[rng.permutation(260)[: rng.integers(1, 260) if company % 3 else company % 8]]
        place = rng.integers(0, len(others) + 1)
        rows = np.insert(others, place, row, axis=0)
        assert_bits([product(rows, laid_out(b, "CF"[company % 2]), base)[place]], [expected])


# What a machine with the instruction has recorded -------------------------------------------------


def digest(*arrays):
    bits = [np.where(np.isnan(x), np.float32(np.nan), x).astype("<f4").tobytes() for x in arrays]
    return hashlib.sha256(b"".join(bits)).hexdigest()[:16]


def recorded(rows, inner, columns):
    """A product and both kinds of sums of one size."""
    a, b = numbers(rows, inner, seed=20, special=0.001), numbers(inner, columns, seed=21)
    forward, weight, back = product(a, b), np.empty((columns, inner), np.float32), np.empty_like(a)
    dy = numbers(rows, columns, seed=22, special=0.001)
    weight_gradients([a], [MapGradient(dy, None, [weight])], False)
    scatter_products([(dy, np.ascontiguousarray(b.T), 0)], None, None, back, False)
    return digest(forward, weight, back)


DIGESTS = {
    (1, 300, 64): "402ee5e2cc848c1f",
    (5, 77, 130): "75d113b87487e60d",
    (31, 601, 40): "a409c7a65882d30f",
    (200, 1025, 65): "4400dddb2f5deed8",
    (9, 4, 1): "d5e0f5c43fc30258",
}
"""By rows, terms and columns; recorded on Zen 4, with vdpbf16ps."""


@pytest.mark.parametrize("sizes", DIGESTS, ids=str)
def test_bits_are_those_that_the_instruction_gave(way, sizes):
    assert recorded(*sizes) == DIGESTS[sizes]
