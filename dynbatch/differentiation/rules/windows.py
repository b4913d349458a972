"""Rules of windows, pools and convolutions: rows of x are gathered by place, and added back."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from dynbatch import nodes as F
from dynbatch.differentiation.repeated import rows_of, sum_of_rows
from dynbatch.differentiation.rules.shape import reshaped
from dynbatch.differentiation.table import Made, parameter_rule, rule
from dynbatch.kernels.images import count_patches
from dynbatch.nodes.images.convolution import Convolution
from dynbatch.nodes.images.pooling import AvgPooling2d, MaxPooling2d
from dynbatch.nodes.images.windows import Sliding
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.kmax_pool import KMaxPool
from dynbatch.nodes.shape.scatter import scattered
from dynbatch.nodes.shape.slice import Slice
from dynbatch.nodes.shape.windows import MaxPool, MeanPool, Windowed, Windows
from dynbatch.parameter import Array

AnyWindows: TypeAlias = "Windowed | Sliding"


def _places(y: AnyWindows) -> Array:
    """The row of x at each place of each window, (windows, places); x.rows is padding."""
    if isinstance(y, Windowed):
        sides, size = (1, y.inputs[0].rows), (1, y.span)
        stride, padding, dilation = (1, y.stride), (0, y.padding), (1, 1)
        behind = padding
    else:
        sides, size = y.sides, y.kernel_size()
        stride, padding, dilation = y.stride, y.padding, y.dilation
        behind = y.behind or padding
    height, width = [
        np.arange(count_patches(side, k, s, p + q, d))[:, None] * s - p + np.arange(k) * d
        for side, k, s, p, q, d in zip(sides, size, stride, padding, behind, dilation, strict=True)
    ]
    lines, columns = height[:, None, :, None], width[None, :, None, :]
    inside = (lines >= 0) & (lines < sides[0]) & (columns >= 0) & (columns < sides[1])
    places: Array = np.where(inside, lines * sides[1] + columns, y.inputs[0].rows)
    return places.reshape(y.rows, size[0] * size[1])


def _with_padding(x: Node) -> Node:
    """The rows of x, and one of zeros behind them."""
    return F.concat([rows_of(x), F.constant(x.graph, 0.0, (1, x.width))], dim=0)


def _added_back(dy: Node, places: Array, x: Node) -> Node:
    """A row for each place added to the row of x there."""
    found = scattered(dy, places.reshape(-1), x.rows + 1)
    return reshaped(Slice(found, tokens=slice(0, x.rows), features=None), x)


@rule(Windows)
def _windows(y: Windows, dy: Node) -> tuple[Made, ...]:
    (x,) = y.inputs
    return (lambda: _added_back(F.reshape(dy, (y.rows * y.span, x.width)), _places(y), x),)


@rule(MeanPool, AvgPooling2d)
def _mean_pool(y: AnyWindows, dy: Node) -> tuple[Made, ...]:
    def shared() -> Node:
        places = _places(y)
        rows = np.repeat(np.arange(y.rows), places.shape[1])
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
            is_first = F.equal(F.gather_rows(padded, at), largest) * is_inside * left
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
            is_equal = F.equal(x, y[j]) * left
            is_first = is_equal * F.equal(F.cumsum(is_equal, 0), 1.0)
            left = left - is_first
            parts.append(is_first * dy[j])
        return functools.reduce(operator.add, parts)

    return (of_places,)


def _by_group(x: Node, groups: int) -> list[Node]:
    """The columns of each group."""
    return [x] if groups == 1 else list(F.chunk(x, groups))


def _joined(parts: list[Node], dim: int) -> Node:
    return parts[0] if len(parts) == 1 else F.concat(parts, dim=dim)


@rule(Convolution)
def _convolution(y: Convolution, dy: Node) -> tuple[Made, ...]:
    def of_windows() -> Node:
        (x,) = y.inputs
        places = _places(y)
        weight = F.parameter(y.graph, y.weight)
        order = (0, *range(2, weight.ndim), 1)  # channels last, as in windows
        matrix = F.reshape(F.permute(weight, order), (weight.shape[0], -1))
        outputs, inputs = weight.shape[0] // y.groups, weight.shape[1]
        of_places = [
            F.reshape(part @ matrix[g * outputs : (g + 1) * outputs], (places.size, inputs))
            for g, part in enumerate(_by_group(rows_of(dy), y.groups))
        ]
        return _added_back(_joined(of_places, -1), places, x)

    return (of_windows,)


@parameter_rule(Convolution)
def _of_convolution(y: Convolution, dy: Node) -> Mapping[str, Callable[[], Node]]:
    def of_weight() -> Node:
        (x,) = y.inputs
        places = _places(y)
        rows = F.gather_rows(_with_padding(x), places.reshape(-1))
        outputs, inputs, *kernel = y.weight.shape
        pairs = zip(_by_group(rows_of(dy), y.groups), _by_group(rows, y.groups), strict=True)
        products = [
            F.transpose(dy_g) @ F.reshape(x_g, (y.rows, places.shape[1] * inputs))
            for dy_g, x_g in pairs
        ]
        product = F.reshape(_joined(products, 0), (outputs, *kernel, inputs))
        return F.permute(product, (0, product.ndim - 1, *range(1, product.ndim - 1)))

    return {"weight": of_weight, "bias": lambda: sum_of_rows(dy)}
