"""Values repeated over tokens or features, as arithmetic between different shapes needs it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.indexing import repeat
from dynbatch.kernels import arrays
from dynbatch.kernels.matrices import Matrices, Segments
from dynbatch.kernels.segment import spread_segments, sum_segments
from dynbatch.nodes.arguments import LEAST_0, SIZES, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.axes import FEATURES, TOKENS
from dynbatch.nodes.shape.broadcast import broadcast_shape, rows_repeated
from dynbatch.nodes.shape.reshape import squeeze
from dynbatch.ragged import Ragged, offsets_of


class Repeated(Operation):
    """Base of both: x repeated to a given shape, over tokens, features, or both.

    Shape:  (D,) -> (…, D);  (…, 1) -> (…, D);  () or (1,) -> any. dx sums over what was repeated.
    """

    __slots__ = ("target",)
    only_moves = True
    any_rank = True
    target: Shape

    def infer_shape(self, *shapes: Shape) -> Shape:
        shape, target = shapes[0], self.target
        if min(target, default=0) < 0:
            self.refuse(f"shape {shape} cannot be repeated to {target}", SIZES, LEAST_0)
        fits_rows = len(shape) < 2 or len(target) < 2 or shape[:-1] == target[:-1]
        width = shape[-1] if shape else 1
        if not (target and len(shape) <= len(target) and fits_rows and width in (1, target[-1])):
            self.refuse(
                f"shape {shape} cannot be repeated to {target}",
                "a vector (D,), a row (1, D), a column (T, 1) or a number, against a matrix (T, D)",
                "check which operand belongs to another sentence, or project it to the same width",
            )
        return target


class Expand(Repeated):
    """x repeated to a shape whose width is a number of features.

    Batches with:  those of the same widths, whatever the lengths.
    """

    __slots__ = ()
    rowwise = True

    def rebuild(self, *inputs: Node) -> Node:
        return expand(inputs[0], (*inputs[0].shape[:-1], self.target[-1]))

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        arrays.expand(x.values, cls.repeats(x, y), y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            arrays.expand_backward(dy.values, cls.repeats(dx, dy), dx.values)

    @classmethod
    def repeats(cls, x: Ragged, y: Ragged) -> Array | None:
        """The count of each row of x in y: once for each token; None where each stands once."""
        before, after = np.asarray(x.lengths), np.asarray(y.lengths)
        if (before == after).all():
            return None
        return repeat(np.where(before == after, 1, after), before)


class ExpandToLength(Repeated):
    """x repeated to a shape whose width is a length, such as scores (T_q, T_k).

    Batches with:  every other one that also repeats rows, or also single numbers.
    """

    __slots__ = ("over",)
    static = ("over",)
    any_shape = True
    over: str  # TOKENS: x is a row of the matrix; FEATURES: each number of x is repeated

    def infer_ragged(self) -> int:
        return ROWS | WIDTH

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        spread_segments(xs[0].flat[:, None], cls.segments(batch), y.flat[:, None])

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            sum_segments(dy.flat[:, None], cls.segments(batch), dxs[0].flat[:, None])

    @classmethod
    def segments(cls, batch: Batch) -> Segments:
        """The parts of y that are one row, or one number, of x."""
        rows, widths = batch.lengths, batch.widths
        if batch.first.over == TOKENS:
            return Matrices(rows, widths)
        numbers = [n * width for n, width in batch.input_shapes(0)]
        sizes = np.multiply(rows, widths)
        return offsets_of(repeat(sizes // np.maximum(numbers, 1), numbers))


def expand(x: Node, shape: Shape) -> Node:
    """x repeated to `shape`, as NumPy's `broadcast_to`; x itself where it has that shape already.

    Raises:
        ShapeError: a size of x is neither 1 nor that of `shape`, or a size of `shape` is below 0.
    """
    x = node_of("expand", x)
    if x.shape == shape:
        return x
    if x.ndim > 1 and len(shape) > 2 and x.shape[:-1] != shape[:-1]:
        x = rows_repeated(x, shape)
    return x if x.shape == shape else Expand(x, target=shape)


def matched(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, broadcast to one shape as NumPy does.

    A vector (D,) or a row (1, D) is repeated over tokens, a column (T, 1) over features, a number
    over both: (T, 1) with (D,) makes (T, D). The width is a length if it is one in any of the
               widest nodes: so a mask given as an array follows the scores.

    Raises:
        ShapeError: they do not fit; names all of them.
    """
    if any([x.ndim > 2 for x in nodes]):
        shape = broadcast_shape(nodes)
        return [expand(x, shape) for x in nodes]
    widest = max(nodes, key=lambda x: (x.width != 1, x.width or np.inf, x.ndim))
    matrices = [x for x in nodes if x.ndim == 2]
    rows = [x.rows for x in matrices if x.rows != 1] or [x.rows for x in matrices]
    shape = (*rows[-1:], *[widest.width] * any([x.ndim for x in nodes]))
    is_length = any([x.ragged & WIDTH and x.width == widest.width for x in nodes])
    result = []
    for operand in nodes:
        x = squeeze(operand, 0) if operand.ndim == 2 and operand.rows == 1 != shape[0] else operand
        try:
            if x.shape == shape or not is_length:
                result.append(expand(x, shape))
            else:
                is_row = x.ndim == 1 and len(shape) == 2 and x.width == shape[1]
                result.append(ExpandToLength(x, target=shape, over=TOKENS if is_row else FEATURES))
        except ShapeError as error:
            others = [f"{node.label()} {node.shape}" for node in nodes if node is not operand]
            problem, lines = error.parts()
            message = f"{problem}.\n{lines}\n  beside {', '.join(others)}"
            raise ShapeError.at_caller(message) from None
    return result
