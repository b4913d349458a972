"""Linear maps: by a parameter (`linear`, `affine`), or between two values (`matmul`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dynbatch.kernels import arrays, blas
from dynbatch.nodes.arguments import check_parameter, node_of, nodes_of
from dynbatch.nodes.arithmetic import multiply
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops, map_flops, map_flops_backward
from dynbatch.nodes.linear_of_windows import LinearOfWindows
from dynbatch.nodes.node import ROWS, WIDTH, Node
from dynbatch.nodes.operation import INDEX_BYTES, Operation, Retain
from dynbatch.nodes.recorded import LENGTH
from dynbatch.nodes.reductions.reduce import sum as sum_elements
from dynbatch.nodes.shape.expand import expand
from dynbatch.nodes.shape.reshape import squeeze, unsqueeze
from dynbatch.nodes.shape.windows import Windows
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged

NOTHING_RETAINED = Retain()


class LinearMap(Operation):
    """y = x Wᵀ + b, row by row.

    Batches with:  every other Linear of the same W and b: one product for all tokens.
    Backward:  dx = dy W;  dW = dyᵀ x, one product a parameter;  db = Σ dy.
    """

    stream_name = "Linear"
    __slots__ = ("bias", "weight")
    static = ("weight", "bias")
    shape_rule = "x (…, I), weight (O, I), [bias (O,)] -> (…, O)"
    shape_fix: ClassVar[dict[str, str]] = {
        "x": "F.reshape(x, (1,)) makes a vector of a number",
        "weight": "give the parameter two dimensions",
        "bias": "give the bias one dimension",
        "I": "give {self.weight.name!r} {x[-1]} columns, or project x to {weight[1]}",
        "O": "make the bias of {weight[0]} elements",
    }
    retains = Retain(inputs=True)
    rowwise = True
    is_one_kernel = True
    adds_gradient = True
    weight: Parameter
    bias: Parameter | None

    def folded(self) -> Operation:
        """The map on what the windows slide over; these are never stored."""
        (windows,) = self.inputs
        assert isinstance(windows, Windows)
        return LinearOfWindows(
            self, *windows.inputs, weight=self.weight, bias=self.bias, span=windows.span,
            stride=windows.stride, padding=windows.padding,
        )  # fmt: skip

    @classmethod
    def reads_in_backward(cls, batch: Batch) -> Retain:
        """The input is read for the weight's gradient alone."""
        return NOTHING_RETAINED if batch.first.weight.frozen else cls.retains

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        return cls.is_built_in

    @classmethod
    def reads_narrow_input(cls, batch: Batch, backward: bool) -> bool:
        return cls.is_built_in and not batch.device.is_cuda

    @classmethod
    def outer_weight(cls, batch: Batch) -> Parameter:
        weight: Parameter = batch.first.weight
        return weight

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        return map_flops(sizes)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        return map_flops_backward(sizes, wanted)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        node = batch.first
        bias = None if node.bias is None else node.bias.value
        blas.matmul_rows(xs[0].values, node.weight.value.T, y.values, bias)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        node, gradients = batch.first, batch.parameter_gradients()
        if dxs[0] is not None:
            if batch.adds:
                blas.matmul_outer(node.weight.value, dy.values.T, dxs[0].values, add=True)
            else:
                blas.matmul_rows(dy.values, node.weight.value, dxs[0].values)
        if not node.weight.frozen:
            gradients.outer(node.weight, batch.input(0).values, dy.values)
        if node.bias is not None and not node.bias.frozen:
            arrays.sum_rows(dy.values, gradients.buffer(node.bias), gradients.later)


NUMBERS_OF_A_PRODUCT = 9
"""Integers that a GPU's kernel reads of it: first elements and sizes of its matrices."""


class MatMul(Operation):
    """y = a b for two values of one sentence: a product for each pair of their matrices.

    Those with dimensions before the last two, as (heads, T, I) by (heads, I, O), have a matrix for
    each of their sizes; where b is one matrix, it multiplies all rows of a.

    Batches with:  every other MatMul of the same inner and outer width, with any number of
                   matrices. Either may be a length: in `q @ k.T` the outer width is one, in
                   `weights @ v` the inner.
    """

    __slots__ = ()
    shape_rule = "a (…, I)|(…, T, I), b (I, O)|(…, I, O) -> (…, O)|(…, T, O)"
    shape_fix: ClassVar[dict[str, str]] = {
        "…": "give both the same dimensions before the last two, or 1 where one is repeated, or "
        "make b one matrix for all rows of a",
        "I": "transpose one of them, or use F.linear for a weight",
        "": "F.unsqueeze(a, 0) makes a matrix of a vector; a * b multiplies by a number",
    }
    any_length = True
    multiplies_values = True
    retains = Retain(inputs=True)

    def infer_ragged(self) -> int:
        a, b = self.inputs
        return (a.ragged & ROWS) | (b.ragged & WIDTH)

    def signature_widths(self) -> list[int | str]:
        a, b = self.inputs
        inner = LENGTH if a.ragged & WIDTH or b.ragged & ROWS else a.width
        outer = LENGTH if b.ragged & WIDTH else b.width
        return [outer, inner, outer]

    @classmethod
    def operations(cls, batch: Batch) -> int:
        return cls._multiply_adds(batch) + super().operations(batch)

    @staticmethod
    def _multiply_adds(batch: Batch) -> int:
        sizes = zip(batch.lengths, batch.widths, batch.input_widths(0), strict=True)
        return sum([rows * width * inner for rows, width, inner in sizes])

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        return Flops(2 * cls._multiply_adds(sizes.batch))

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        return cls.flops(sizes).times(sum(wanted))

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return INDEX_BYTES * NUMBERS_OF_A_PRODUCT * sum(cls._counts(batch))

    @staticmethod
    def _counts(batch: Batch) -> list[int]:
        """The number of matrices in each b, whose rows are those of one, I, so many times."""
        sizes = zip(batch.input_rows(1), batch.input_widths(0), strict=True)
        # Without inner width there is nothing to add up: all rows of y are 0, at once.
        return [rows // inner if inner else 1 for rows, inner in sizes]

    @classmethod
    def _multiply(
        cls, batch: Batch, a: Ragged, b: Ragged, out: Ragged,
        transpose_a: bool = False, transpose_b: bool = False,
    ) -> None:  # fmt: skip
        """out = a b, matrix by matrix."""
        counts = cls._counts(batch)
        if counts.count(1) < len(counts):
            a, b, out = a.cut(counts), b.cut(counts), out.cut(counts)
        blas.matmul_segments(a, b, out, transpose_a, transpose_b)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        cls._multiply(batch, xs[0], xs[1], y)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        a, b = batch.input(0), batch.input(1)
        da, db = dxs
        if da is not None:
            cls._multiply(batch, dy, b, da, transpose_b=True)
        if db is not None:
            cls._multiply(batch, a, dy, db, transpose_a=True)


def linear(x: Node, weight: Parameter, bias: Parameter | None = None) -> Node:
    """x Wᵀ + b, as `torch.nn.functional.linear`.

    Raises:
        ShapeError: the last dimension of x is not the weight's second.
    """
    if not isinstance(x, Node):
        x = node_of("linear", x)
    graph = x.graph
    check_parameter("linear", weight, graph, short=True)
    if bias is not None:
        check_parameter("linear", bias, graph)
    width, ndim = weight._value.shape[0], x.ndim
    sig = graph.signatures.get((LinearMap, (weight, bias), width, x.width))
    if sig is None or not 0 < ndim < 3:
        node = LinearMap(x, weight=weight, bias=bias)
    else:
        node = LinearMap.__new__(LinearMap)
        node.weight, node.bias = weight, bias
        node.complete_as((x,), graph, ndim, x.rows, width, ROWS, sig)
    if type(x) is Windows and not weight.is_short:
        graph.absorb(x, node)
    return node


def affine(bias: Parameter | None, *terms: tuple[Parameter, Node]) -> Node:
    """b + W_1 x_1 + W_2 x_2 + …, each W (O, I_k): DyNet's affine transform."""
    (weight, x), *rest = terms
    total = linear(x, weight, bias)
    for weight, x in rest:
        total = total + linear(x, weight)
    return total


def matmul(a: Node, b: Node) -> Node:
    """a b of two values of one sentence, as `torch.matmul`.

    (T, I) (I, O) -> (T, O);  (I,) (I, O) -> (O,);  (T, I) (I,) -> (T,);  (I,) (I,) -> (), as `dot`.
    Of more dimensions, y_h = a_h b_h for each h: (H, T, I) (H, I, O) -> (H, T, O), and so on with
    equal dimensions before the last two; or a matrix, or a vector, for all rows of a:
    (H, T, I) (I, O) -> (H, T, O). Else dimensions before the last two are repeated as in `expand`,
    which copies: (T, I) (H, I, O) -> (H, T, O); (I,) (H, I, O) -> (H, O). Sentences that share a
    batch may have other H, T and O.

    Raises:
        ShapeError: the inner dimensions differ, or those before the last two do not fit; or one of
            the two is a scalar.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     m, v = F.input(graph, [[1.0, 2.0], [3.0, 4.0]]), F.input(graph, [1.0, -1.0])
        ...     (m @ v).value.tolist(), (v @ m).value.tolist(), float(v @ v)
        ([-1.0, -1.0], [-2.0, -2.0], 2.0)
    """
    a, b = nodes_of("matmul", a, b)
    if b.ndim == 1 and a.ndim:
        _require_inner(a, b)
        return dot(a, b) if a.ndim == 1 else squeeze(MatMul(a, unsqueeze(b, -1)), -1)
    if b.ndim < 3 or not a.ndim or a.shape[:-2] == b.shape[:-2] or a.width != b.shape[-2]:
        return MatMul(a, b)
    rows = unsqueeze(a, 0) if a.ndim == 1 else a
    try:
        heads = np.broadcast_shapes(rows.shape[:-2], b.shape[:-2])
    except ValueError:
        return MatMul(a, b)  # which names the shapes
    product = MatMul(expand(rows, heads + rows.shape[-2:]), expand(b, heads + b.shape[-2:]))
    return product if rows is a else squeeze(product, -2)


def dot(a: Node, b: Node) -> Node:
    """Σ_i a_i b_i of two vectors, a scalar, as `torch.dot`.

    Raises:
        ShapeError: they are not vectors, or of different widths.
    """
    a, b = nodes_of("dot", a, b)
    if not a.ndim == b.ndim == 1:
        a.refuse(
            f"dot of shapes {a.shape} and {b.shape}",
            "the dot product takes two vectors (D,)",
            "a @ b multiplies matrices; F.sum(a * b, dim=-1) gives the dot products of their rows",
        )
    _require_inner(a, b)
    return sum_elements(multiply(a, b))


def _require_inner(a: Node, b: Node) -> None:
    if a.width != b.width:
        a.refuse(
            f"inner dimensions of {a.shape} @ {b.shape} differ ({a.width} != {b.width})",
            "a.shape[-1] == b.shape[0]",
            "project one of them to the width of the other, or transpose the matrix",
        )
