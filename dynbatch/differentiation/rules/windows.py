"""Rules of windows, pools and convolutions: rows of x are gathered by place, and added back."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.differentiation.repeated import rows_of, sum_of_rows
from dynbatch.differentiation.rules.selection import equals
from dynbatch.differentiation.rules.shape import reshaped
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.indexing import repeat
from dynbatch.kernels.images import window_patches
from dynbatch.nodes.images.convolution import Convolution
from dynbatch.nodes.images.pooling import AvgPooling2d, MaxPooling2d
from dynbatch.nodes.images.transposed_convolution import TransposedConvolution
from dynbatch.nodes.images.windows import Sliding
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.kmax_pool import KMaxPool
from dynbatch.nodes.shape.scatter import scattered
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.shape.topk import TopK, TopKPlaces
from dynbatch.nodes.shape.windows import MaxPool, MeanPool, Windowed, Windows

AnyWindows: TypeAlias = "Windowed | Sliding"


def _places(y: AnyWindows) -> Array:
    """The row of x at each place of each window, (windows, places); x.rows is padding.

    The windows of a transposed convolution are on y, one for each row of x; y.rows is padding.
    """
    if isinstance(y, Windowed):
        sides = np.array([(1, y.inputs[0].rows)])
        windows = window_patches(sides, (1, y.span), (1, y.stride), (0, y.padding))
    else:
        windows = y.windows_of(np.array([y.sides]))
    places = np.stack(list(windows.rows(slice(0, int(windows.offsets[-1])))), axis=1)
    return np.where(places < 0, windows.reads[-1], places)


def _with_padding(x: Node) -> Node:
    return F.concat([rows_of(x), F.constant(x.graph, 0.0, (1, x.width))], dim=0)


def _added_back(dy: Node, places: Array, x: Node) -> Node:
    rows = scattered(dy, places.reshape(-1), x.rows + 1)
    return reshaped(Slice(rows, tokens=slice(0, x.rows), features=None), x)


@rule(Windows)
def _windows(y: Windows, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: _added_back(F.reshape(dy, (y.rows * y.span, x.width)), _places(y), x),)


@rule(MeanPool, AvgPooling2d)
def _mean_pool(y: AnyWindows, dy: Node) -> tuple[Made, ...]:
    def shared() -> Node:
        places = _places(y)
        rows = repeat(np.arange(y.rows), places.shape[1])
        of_places = F.gather_rows(rows_of(dy) / places.shape[1], rows)
        return _added_back(of_places, places, y.inputs[0])

    return (shared,)


@rule(MaxPool, MaxPooling2d)
def _max_pool(y: AnyWindows, dy: Node) -> tuple[Made, ...]:
    def of_first_maxima() -> Node:
        (x,) = y.inputs
        places, padded, largest = _places(y), _with_padding(x), rows_of(y)
        left = F.constant(y.graph, 1.0, (y.rows, x.width))  # 1 where no maximum came before
        parts = []
        for at in places.T:
            is_inside = F.input(y.graph, (at < x.rows).astype(float).reshape(-1, 1))
            is_first = equals(F.gather_rows(padded, at), largest) * is_inside * left
            left = left - is_first
            parts.append(rows_of(dy) * is_first)
        return _added_back(F.concat(parts, dim=0), places.T, x)

    return (of_first_maxima,)


@rule(KMaxPool)
def _kmax_pool(y: KMaxPool, dy: Node) -> tuple[Made, ...]:
    def of_places() -> Node:
        (x,) = y.inputs
        left = F.constant(y.graph, 1.0, x.shape)  # 1 where no number of y was found before
        parts = []
        for j in range(y.k):
            is_equal = equals(x, y[j]) * left
            is_first = is_equal * F.equal(F.cumsum(is_equal, 0), 1.0)
            left = left - is_first
            parts.append(is_first * dy[j])
        return functools.reduce(operator.add, parts)

    return (of_places,)


@rule(TopK)
def _topk(y: TopK, dy: Node) -> tuple[Made, ...]:
    def of_places() -> Node:
        (x,) = y.inputs
        ids, dys = rows_of(TopKPlaces(x, k=y.k)), rows_of(dy)
        places = F.input(y.graph, np.arange(x.width, dtype=float))
        parts = [F.equal(ids[:, j], places) * dys[:, j] for j in range(y.k)]
        return reshaped(functools.reduce(operator.add, parts), x)

    return (of_places,)


def _by_group(x: Node, groups: int) -> list[Node]:
    return [x] if groups == 1 else list(F.chunk(x, groups))


def _joined(parts: list[Node], dim: int) -> Node:
    return parts[0] if len(parts) == 1 else F.concat(parts, dim=dim)


def _windows_by_group(x: Node, places: Array, groups: int) -> list[Node]:
    """The rows of each window side by side, for each group of columns."""
    parts = _by_group(F.gather_rows(_with_padding(x), places.reshape(-1)), groups)
    return [F.reshape(part, (len(places), places.shape[1] * part.width)) for part in parts]


def _matrices(y: Convolution | TransposedConvolution) -> list[Node]:
    """The rows of the weight of each group, channels last, as in windows."""
    weight = F.parameter(y.graph, y.weight)
    order = (0, *range(2, weight.ndim), 1)
    matrix = F.reshape(F.permute(weight, order), (weight.shape[0], -1))
    rows = weight.shape[0] // y.groups
    return [matrix[g * rows : (g + 1) * rows] for g in range(y.groups)]


def _weight_gradient(
    y: Convolution | TransposedConvolution, of_windows: Node, of_rows: Node
) -> Node:
    """Σ_m rows_m window_mᵀ, in the layout of the weight."""
    windows = _windows_by_group(of_windows, _places(y), y.groups)
    pairs = zip(_by_group(rows_of(of_rows), y.groups), windows, strict=True)
    products = [F.transpose(rows) @ of_group for rows, of_group in pairs]
    first, second, *kernel = y.weight.shape
    product = F.reshape(_joined(products, 0), (first, *kernel, second))
    return F.permute(product, (0, product.ndim - 1, *range(1, product.ndim - 1)))


@rule(Convolution)
def _convolution(y: Convolution, dy: Node) -> tuple[Made, ...]:
    def of_windows() -> Node:
        (x,) = y.inputs
        places = _places(y)
        pairs = zip(_by_group(rows_of(dy), y.groups), _matrices(y), strict=True)
        of_places = [
            F.reshape(part @ matrix, (places.size, y.weight.shape[1])) for part, matrix in pairs
        ]
        return _added_back(_joined(of_places, -1), places, x)

    return (of_windows,)


@rule(TransposedConvolution)
def _transposed_convolution(y: TransposedConvolution, dy: Node) -> tuple[Made, ...]:
    def of_pixels() -> Node:
        windows = _windows_by_group(dy, _places(y), y.groups)
        pairs = zip(windows, _matrices(y), strict=True)
        parts = [of_group @ F.transpose(matrix) for of_group, matrix in pairs]
        return reshaped(_joined(parts, -1), y.inputs[0])

    return (of_pixels,)


@parameter_rule(Convolution)
def _of_convolution(y: Convolution, dy: Node) -> Mapping[str, Callable[[], Node]]:
    return {
        "weight": lambda: _weight_gradient(y, y.inputs[0], dy),
        "bias": lambda: sum_of_rows(dy),
    }


@parameter_rule(TransposedConvolution)
def _of_transposed_convolution(
    y: TransposedConvolution, dy: Node
) -> Mapping[str, Callable[[], Node]]:
    return {
        "weight": lambda: _weight_gradient(y, dy, y.inputs[0]),
        "bias": lambda: sum_of_rows(dy),
    }
