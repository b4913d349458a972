"""Running sums, variances and standard deviations of one sentence."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Never

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DtypeError
from dynbatch.kernels import arrays, elementwise
from dynbatch.kernels.cumulative import cumsum_segments
from dynbatch.kernels.matrices import Matrices, Segments, lengths_of
from dynbatch.kernels.reduce import mean_segments
from dynbatch.kernels.segment import sum_segments
from dynbatch.kernels.unary import arithmetic
from dynbatch.kernels.variance import spread_backward, squared_deviations
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Retain
from dynbatch.nodes.reductions.reduce import Dims, Reduction, reduced
from dynbatch.nodes.shape.axes import Along, axis, segments
from dynbatch.nodes.syntax.registry import not_an_argument
from dynbatch.ragged import Ragged, offsets_of


class CumSum(Along):
    """y_i = Σ_{j ≤ i} x_j. dx_i = Σ_{j ≥ i} dy_j.

    Batches with:  every other one of its width and dim, whatever the lengths; the width may be a
        length too.
    """

    __slots__ = ()
    shape_rule = "x (T, D)|(D,) -> (T, D)|(D,)"
    any_length = True
    inplace_forward = True
    inplace_backward = True

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        x, offsets = segments(xs[0], batch.first.over)
        cumsum_segments(x, offsets, False, y.values.reshape(x.shape))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            gradient, offsets = segments(dy, batch.first.over)
            cumsum_segments(gradient, offsets, True, dx.values.reshape(gradient.shape))


class Spread(Reduction):
    """Base of variance and standard deviation, in two passes: the mean, then the deviations.

    With no more elements than `correction` it divides by 0, as PyTorch does: no elements give NaN,
    and so does one element with the usual correction of 1.
    """

    __slots__ = ("correction",)
    static = ("over", "correction")
    any_length = True
    retains = Retain(inputs=True)
    root: ClassVar[bool]
    correction: float

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """The number of means, plus the deviations of all elements."""
        elements = [rows * width for rows, width in batch.input_shapes(0)]
        return cls.means(batch) + int(builtins.sum(elements))

    @classmethod
    def means(cls, batch: Batch) -> int:
        """The number of means: one for each output element."""
        return batch.elements

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        x, offsets = segments(xs[0], batch.first.over)
        mean, squares = batch.scratch[: y.values.size], batch.scratch[y.values.size :][: x.size]
        mean, squares = mean.reshape(y.table.shape), squares.reshape(x.shape)
        mean_segments(x, offsets, mean)
        squared_deviations(x, mean, offsets, squares)
        sum_segments(squares, offsets, y.table)
        cls.scale(y, offsets, batch.first.correction)
        if cls.root:
            elementwise.apply(arithmetic.sqrt, y.flat, y.flat)
        batch.launches += 3 + cls.root

    @classmethod
    def scale(cls, y: Ragged, offsets: Segments, correction: float) -> None:
        """Divide each segment's number by max(rows - correction, 0)."""
        if not y.values.size:
            return
        divisors = np.maximum(lengths_of(offsets) - correction, 0)
        widths = offsets.widths if isinstance(offsets, Matrices) else y.table.shape[1]
        with np.errstate(divide="ignore"):
            numbers = (1 / divisors).astype(y.values.dtype)
        ends = offsets_of(np.broadcast_to(widths, divisors.shape))
        arrays.scale_segments(y.flat, numbers, ends, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is None:
            return
        x, offsets = segments(batch.input(0), batch.first.over)
        mean: Array = batch.xp.empty(dy.table.shape, batch.dtype)
        mean_segments(x, offsets, mean)
        y = batch.result().table if cls.root else mean
        spread_backward(
            dy.table, x, mean, y, offsets, batch.first.correction, cls.root,
            dxs[0].values.reshape(x.shape),
        )  # fmt: skip
        batch.launches += 1


class Variance(Spread):
    """y = Σ_i (x_i - mean)² / max(n - correction, 0). dx_i = 2 dy (x_i - mean) / (n - correction).

    Batches with:  every other one of its width, dim and correction, whatever the lengths; the width
        may be a length too.
    """

    __slots__ = ()
    root = False


class StandardDeviation(Spread):
    """y = √variance. dx_i = dy (x_i - mean) / ((n - correction) y), and 0 where y is 0.

    Batches with:  every other one of its width, dim and correction, whatever the lengths; the width
        may be a length too.
    """

    __slots__ = ()
    retains = Retain(inputs=True, output=True)
    root = True


def cumsum(x: Node, dim: int | None = None, **habits: Never) -> Node:
    """Running sums over the tokens (`dim=0`) or over the features (`dim=-1`), as `torch.cumsum`.

    Shape:  that of x;  an empty sentence gives an empty y.

    Raises:
        ShapeError: x has no such dim.
        DtypeError: `dim` is missing: a running sum has no default, as in PyTorch.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [[1.0, 2.0], [3.0, 4.0]])
        ...     F.cumsum(x, dim=0).value.tolist(), F.cumsum(x, dim=-1).value.tolist()
        ([[1.0, 2.0], [4.0, 6.0]], [[1.0, 3.0], [3.0, 7.0]])
    """
    if dim is None and not habits:
        raise DtypeError.at_caller(
            "cumsum: dim is missing.\n  rule: a running sum goes along one dim\n"
            "  fix:  dim=0 for tokens, dim=-1 for features"
        )
    return CumSum(x, over=axis("cumsum", x, -1 if dim is None else dim, habits))


def var(x: Node, dim: Dims = None, correction: float = 1, **habits: Never) -> Node:
    """Variance over tokens (`dim=0`), over features (`dim=-1`), or of everything, as `torch.var`.

    Σ (x_i - mean)² / (n - correction), with n the number of elements: correction 1 is unbiased, 0
    the mean square. As in PyTorch, no elements give NaN, and so does one element with correction 1:
    where sentences may be so short, give correction=0, which gives 0 for one element.

    Shape:  (T, D) -> (D,), (T, 1) or ();  (D,) -> ().

    Raises:
        ShapeError: x has no such dim.
        DtypeError: correction is not a number.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [0.0, 2.0, 4.0])
        ...     float(F.var(x)), float(F.std(x)), float(F.var(x[:1], correction=0))
        (4.0, 2.0, 0.0)
    """
    return _spread("var", Variance, x, dim, correction, habits)


def std(x: Node, dim: Dims = None, correction: float = 1, **habits: Never) -> Node:
    """Standard deviation, √`var`, as `torch.std`; where it is 0, its gradient is 0.

    Raises:
        ShapeError: x has no such dim.
        DtypeError: correction is not a number.
    """
    return _spread("std", StandardDeviation, x, dim, correction, habits)


def _spread(
    what: str,
    node_type: type[Spread],
    x: Node,
    dim: Dims,
    correction: float,
    habits: Mapping[str, Any],
) -> Node:
    if habits:
        raise not_an_argument(what, habits)
    x = node_of(what, x)
    if isinstance(correction, bool) or not isinstance(correction, int | float | np.number):
        raise DtypeError.at_caller(
            f"{what}: correction={correction!r} is not a number.\n"
            "  fix:  correction=1 for unbiased=True, correction=0 for unbiased=False"
        )
    return reduced(what, partial(node_type, correction=float(correction)), x, dim, {})
