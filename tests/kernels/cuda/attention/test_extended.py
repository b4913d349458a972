"""The kernels of dot-product attention with a bias, and with dropout."""

import numpy as np
import pytest

from dynbatch.kernels.attention.bias import FeatureRows, PairStarts, ScoreBias
from dynbatch.ragged import offsets_of
from tests.kernels.cuda.attention.test_dot_product import (
    LONG,
    SHORT,
    Values,
    assert_backward,
    assert_forward,
    like,
    packed_of,
    scoring_of,
    wanted_of,
)


class Clipped:
    """Rows of a table for distances -3 … 3, which are not in the order of distances."""

    @staticmethod
    def rows(distances):
        return (np.clip(distances, -3, 3) * 2) % 7


def biased(scoring, rule=Clipped):
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((7 if rule else 1, scoring.heads)).astype(scoring.scales.dtype)
    return scoring._replace(bias=ScoreBias(Values(numbers) if rule else numbers, rule))


CASES = [
    (SHORT, 1, 1, (3, 5), "all"),
    (SHORT, 4, 2, (8, 4), "mixed"),
    (LONG, 2, 1, (4, 2), "causal"),
    (LONG, 1, 1, (2, 1), "window"),
]


@pytest.mark.parametrize("rule", [Clipped, None])
@pytest.mark.parametrize(("lengths", "heads", "shared", "widths", "kind"), CASES)
def test_forward_and_backward(cupy, dtype, lengths, heads, shared, widths, kind, rule):
    packed = packed_of(dtype, lengths, widths, shared)
    scoring = biased(scoring_of(dtype, lengths, heads, kind, widths[0], shared), rule)
    assert_forward(packed, scoring)
    assert_backward(packed, scoring, wanted_of(packed))
    assert_backward(packed, scoring, wanted_of(packed, accumulate=True))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("lengths", "heads", "shared", "widths", "kind"), CASES)
def test_the_gradient_of_the_table(cupy, dtype, lengths, heads, shared, widths, kind, alone):
    packed = packed_of(dtype, lengths, widths, shared)
    scoring = biased(scoring_of(dtype, lengths, heads, kind, widths[0], shared))
    wanted = wanted_of(packed)
    if alone:
        wanted = wanted._replace(queries=None, keys=None, values=None)
    wanted = wanted._replace(bias=like(scoring.bias.numbers.array))
    assert_backward(packed, scoring, wanted, count=3 if alone else 4)


def dropping(scoring, p=0.4):
    streams = np.arange(7, 7 + len(scoring.masks), dtype=np.uint32) * 2**24
    return scoring._replace(p=p, streams=streams)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("lengths", "heads", "shared", "widths", "kind"), CASES)
def test_dropout(cupy, dtype, lengths, heads, shared, widths, kind, has_bias):
    packed = packed_of(dtype, lengths, widths, shared)
    scoring = dropping(scoring_of(dtype, lengths, heads, kind, widths[0], shared))
    wanted = wanted_of(packed)
    if has_bias:
        scoring = biased(scoring)
        wanted = wanted._replace(bias=like(scoring.bias.numbers.array))
    assert_forward(packed, scoring)
    for knows_out in (True, False):
        assert_backward(packed, scoring, wanted, 4 if has_bias else 2, knows_out)


@pytest.mark.parametrize(("lengths", "heads", "shared", "widths", "kind"), CASES[1:3])
def test_a_softcap_before_the_bias(cupy, dtype, lengths, heads, shared, widths, kind):
    packed = packed_of(dtype, lengths, widths, shared)
    capped = scoring_of(dtype, lengths, heads, kind, widths[0], shared)._replace(softcap=0.6)
    for scoring in (capped, biased(capped)):
        assert_forward(packed, scoring)
        assert_backward(packed, scoring, wanted_of(packed))


def test_all_or_nothing_may_be_dropped(cupy, dtype):
    packed, scoring = packed_of(dtype, SHORT, (3, 2)), scoring_of(dtype, SHORT)
    for p in (1.0, 2.0**-40):
        assert_forward(packed, dropping(scoring, p))
        assert_backward(packed, dropping(scoring, p), wanted_of(packed))


def of_pairs(scoring, lengths, kind, by_head):
    """A bias of a number for each pair, or of one for each feature of one, two or four bytes."""
    rng, dtype = np.random.default_rng(4), scoring.scales.dtype
    columns = scoring.heads if by_head else 1
    if kind == "matrix":
        starts = offsets_of([columns * a * b for a, b in lengths])
        numbers, rule = rng.standard_normal(starts[-1]), PairStarts(starts)
    else:
        features = [rng.integers(0, 7, pair).astype(kind) for pair in lengths]
        numbers, rule = rng.standard_normal((7, columns)), FeatureRows(features)
    return scoring._replace(bias=ScoreBias(Values(numbers.astype(dtype)), rule))


@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("kind", ["matrix", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize(("lengths", "heads", "shared", "widths", "mask"), CASES[1:3])
def test_a_bias_of_pairs(cupy, dtype, lengths, heads, shared, widths, mask, kind, by_head):
    packed = packed_of(dtype, lengths, widths, shared)
    scoring = dropping(scoring_of(dtype, lengths, heads, mask, widths[0], shared), 0.2)
    scoring = of_pairs(scoring, lengths, kind, by_head)
    assert_forward(packed, scoring)
    name = "pairs" if kind == "matrix" else "bias"
    wanted = wanted_of(packed)._replace(**{name: like(scoring.bias.numbers.array)})
    assert_backward(packed, scoring, wanted, 3 if kind == "matrix" else 4)
