"""Layer and RMS normalisation of rows, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import layer_norm as kernels
from tests.kernels.table.call import Call, Scene, Values, case, normal, room

EPS = 1e-5
# A warp does rows of up to 1024, a block longer ones; of none, one and several vectors, with rests.
SHAPES = {
    f"{rows} of {width}": (rows, width)
    for rows, width in [(0, 5), (1, 1), (7, 5), (9, 31), (33, 32), (8, 33), (1, 37), (7, 16),
                        (7, 256), (3, 1024), (3, 1025)]
}  # fmt: skip
MANY = {f"{rows} of {width}": (rows, width) for rows, width in [(65, 3), (257, 33), (600, 1)]}


def statistics(x: Array, is_centred: bool) -> tuple[Array, Array, Array]:
    """n, the mean and 1/√(variance + eps), in float64; without a mean of what is not centred."""
    x = x.astype(np.float64)
    mean = x.mean(axis=1) if is_centred else np.zeros(len(x))
    centred = x - mean[:, None]
    rstd = 1 / np.sqrt((centred * centred).mean(axis=1) + EPS)
    return centred * rstd[:, None], mean, rstd


@case(
    shape=SHAPES, is_centred=[True, False], given=["both", "weight", "bias", "neither"],
    is_kept=[True, False],
)  # fmt: skip
def normalized_rows(
    dtype: Any, shape: tuple[int, int], is_centred: bool, given: str, is_kept: bool
) -> Scene:
    x = normal(dtype, *shape) + dtype.type(30)  # the variance is not the difference of two squares
    weight = normal(dtype, shape[1], seed=1) if given in ("both", "weight") else None
    bias = normal(dtype, shape[1], seed=2) if given in ("both", "bias") else None
    n, mean, rstd = statistics(x, is_centred)
    plain = n * (1 if weight is None else weight) + (0 if bias is None else bias)
    columns = [None if each is None else Values(each) for each in (weight, bias)]
    yield Call(
        kernels.layer_norm, Values(x), *columns, EPS, room(x),
        room(x[:, 0]) if is_centred else None, room(x[:, 0]), room(x) if is_kept else None,
        outputs=4, plain=(plain, mean if is_centred else None, rstd, x if is_kept else None),
        launches=int(len(x) > 0), rtol=1e-4, atol=5e-5, apart=not is_kept, near=1e-7,
    )  # fmt: skip


@case(width=[20, 33])
def rows_with_nan(dtype: Any, width: int) -> Scene:
    x = normal(dtype, 9, width)
    x[4, 7], x[6, 19] = np.nan, np.inf
    outputs = [room(x), room(x[:, 0]), room(x[:, 0])]
    y, _, _ = yield Call(
        kernels.layer_norm, Values(x), None, None, EPS, *outputs, outputs=3, rtol=1e-4, atol=5e-5
    )
    assert np.isnan(y).any(axis=1).tolist() == [row in (4, 6) for row in range(9)]


def normals(x: Array, is_centred: bool) -> tuple[kernels.Normals, Array, Array]:
    """The normals of an input on the device, n and rstd as numbers of x's type."""
    n, mean, rstd = statistics(x, is_centred)
    mean, rstd = [each.astype(x.dtype) for each in (mean, rstd)]
    shift = Values(mean[:, None]) if is_centred else None
    of_input: Any = Values(x), shift, Values(rstd[:, None])
    return kernels.Normals(*of_input), n, rstd


@case(shape=SHAPES, is_centred=[True, False], is_weighted=[True, False])
def gradients_of_rows(
    dtype: Any, shape: tuple[int, int], is_centred: bool, is_weighted: bool
) -> Scene:
    x, dy = [normal(dtype, *shape, seed=seed) for seed in range(2)]
    weight = normal(dtype, shape[1], seed=3) if is_weighted else np.ones(shape[1], dtype)
    of_input, n, rstd = normals(x, is_centred)
    g = dy.astype(np.float64) * weight
    along = n * (g * n).mean(axis=1, keepdims=True)
    centre = g.mean(axis=1, keepdims=True) if is_centred else 0
    # In a row of one element the terms cancel to rounding errors, times an rstd of 316.
    tolerance = 1e-3 if shape[1] == 1 else 1e-5
    yield Call(
        kernels.layer_norm_backward, Values(dy), of_input, Values(weight) if is_weighted else None,
        Values(rstd), is_centred, room(x), plain=rstd[:, None] * (g - centre - along), over=0,
        launches=int(len(x) > 0), rtol=tolerance, atol=tolerance,
    )  # fmt: skip


@case(shape={**SHAPES, **MANY}, is_centred=[True, False], wanted=["both", "dweight", "dbias"])
def gradients_of_parameters(
    dtype: Any, shape: tuple[int, int], is_centred: bool, wanted: str
) -> Scene:
    x, dy = [normal(dtype, *shape, seed=seed) for seed in range(2)]
    of_input, n, _ = normals(x, is_centred)
    sums = {"dweight": (dy * n).sum(axis=0), "dbias": dy.astype(np.float64).sum(axis=0)}
    plain = tuple([value if wanted in ("both", name) else None for name, value in sums.items()])
    outputs = [None if value is None else room(value.astype(dtype)) for value in plain]
    yield Call(
        kernels.layer_norm_parameters, Values(dy), of_input, *outputs, outputs=2, plain=plain,
        launches=1 + (len(x) > 256), rtol=5e-5, atol=5e-5,
    )  # fmt: skip
