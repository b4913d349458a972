"""`kernels.linear_gradients` in C: what NumPy's computes; company does not change bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.linear_gradients import MapGradient, scatter_products, weight_gradients
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import (
    MANTISSA_BITS,
    SHORT,
    multiplying,
    round_to,
    upper_halves,
)
from tests.kernels.c.compare import assert_same

DTYPES = [np.float32, np.float64]


def random(*shape: int, dtype: Any) -> Array:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 8).astype(dtype)


def gradients(rows: int, widths: list[int], dtype: Any) -> list[MapGradient]:
    """Gradients of maps with 30, 5 and 70 outputs, columns of one array."""
    dy = random(rows, 110, dtype=dtype)
    return [
        MapGradient(
            dy[:, first : first + outputs],
            random(outputs, dtype=dtype) if with_bias else None,
            [
                random(outputs + 1, width, dtype=dtype)[1:] if width % 2 else None
                for width in widths
            ],
        )
        for first, outputs, with_bias in ((0, 30, True), (30, 5, False), (38, 70, True))
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("rows", [1, 60, 256, 600])
def test_weights_and_biases_are_numpys(rows: int, add: bool, dtype: Any) -> None:
    widths = [33, 16, 7, 65, 129, 301, 1]
    xs = [random(rows, width + 3, dtype=dtype)[:, 2:-1] for width in widths]
    skipped = [0, 0, rows - 1, rows // 2, min(rows - 1, 300), 0, 0]
    xs = [x[count:] for x, count in zip(xs, skipped, strict=True)]
    assert_same(weight_gradients, xs, gradients(rows, widths, dtype), add)


@pytest.mark.parametrize("precision", MANTISSA_BITS)
def test_upper_halves_of_inputs_give_the_bits_of_their_numbers(precision: str) -> None:
    widths, rows, found = [33, 65, 130, 1], 601, []
    numbers = [round_to(random(rows, width + 3, dtype=np.float32), SHORT) for width in widths]
    numbers[0][:9] *= np.float32(2) ** -124  # some are subnormal
    halves = [upper_halves(x) if k < 3 else x for k, x in enumerate(numbers)]
    for xs in (numbers, halves):
        inputs = [x[count:, 2:-1] for x, count in zip(xs, [0, 0, 301, 0], strict=True)]
        maps = gradients(rows, widths, np.float32)
        with multiplying(precision):
            weight_gradients(inputs, maps, True)
        found.append([x.tobytes() for _, _, weights in maps for x in weights if x is not None])
    assert found[0] == found[1]


@pytest.mark.parametrize("rows", [0, 4])
def test_what_no_row_is_summed_for_is_zero(rows: int) -> None:
    maps = [MapGradient(np.ones((rows, 3)), np.full(3, np.nan), [np.full((3, 2), np.nan)])]
    weight_gradients([np.empty((0, 2))], maps, False)
    assert (maps[0].weights[0] == 0).all()
    assert (maps[0].bias == rows).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_have_the_same_bits_for_any_threads(dtype: Any, same_threads: None) -> None:
    xs, found = [random(700, width, dtype=dtype) for width in (131, 260)], []
    for threads in (1, 2, 3):
        parallel.set_num_threads(threads)
        maps = gradients(700, [131, 261], dtype)
        maps = [gradient._replace(weights=[*gradient.weights[:1], None]) for gradient in maps]
        weight_gradients(xs, maps, True)
        found.append([[bias, *weights[:1]] for _, bias, weights in maps])
    for other in found[1:]:
        for mine, first in zip(other, found[0], strict=True):
            for a, b in zip(mine, first, strict=True):
                assert (a is None and b is None) or a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("width", [40, 300])
def test_products_are_added_up_in_rows_by_index(width: int, add: bool, dtype: Any) -> None:
    products = [
        (random(401, 12, dtype=dtype)[1:, 1:-2], random(9, columns, dtype=dtype), first)
        for first, columns in ((0, width), (3, 30), (width - 1, 1))
    ]
    start, out = random(400, width, dtype=dtype), random(500, width + 3, dtype=dtype)[:, 1:-2]
    index = np.random.default_rng(0).permutation(500)[:400]
    assert_same(scatter_products, products, None, index, out, add)
    assert_same(scatter_products, products[1:], start, index, out, add)
    assert_same(scatter_products, products, start, None, out[:400], add)
    assert_same(scatter_products, [], start, index, out, add)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_sum_of_products_has_the_same_bits_in_any_company(
    dtype: Any, same_threads: None
) -> None:
    x, weights = random(500, 132, dtype=dtype), random(4, 33, 70, dtype=dtype)
    whole = np.empty((500, 70), dtype)

    def products(rows: slice) -> list[tuple[Array, Array, int]]:
        return [(x[rows, 33 * k : 33 * k + 33], weights[k], 0) for k in range(4)]

    parallel.set_num_threads(2)
    scatter_products(products(slice(None)), None, None, whole, False)
    for rows in (slice(0, 1), slice(7, 8), slice(33, 120), slice(190, 500)):
        own = np.empty_like(whole[rows])
        scatter_products(products(rows), None, None, own, False)
        assert own.tobytes() == whole[rows].tobytes()
