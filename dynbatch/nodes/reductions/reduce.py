"""Reductions: over a list of scalars, over tokens, over features, over a whole value.

A sentence without tokens gives, over its tokens (`dim=0`) or as a whole (`dim=None`):

    sum          0       the empty sum
    mean         0       PyTorch: NaN, which would spread to the whole mini-batch's loss
    logsumexp    -inf    the logarithm of the empty sum, as in PyTorch
    max, min     ShapeError when the node is made, as in PyTorch: no number would be right
    argmax       ShapeError, likewise

Over features (`dim=-1`) every reduction of it is an empty (0, 1). One token is no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar, Never

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DtypeError, EmptyBatchError
from dynbatch.kernels import arrays
from dynbatch.kernels import reduce as kernels
from dynbatch.kernels.segment import spread_segments, sum_segments
from dynbatch.nodes.arguments import node_of, not_a_node
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.shape.axes import (
    ALL,
    FEATURES,
    TOKENS,
    Along,
    axis,
    require_integer,
    segments,
)
from dynbatch.nodes.shape.permute import permute
from dynbatch.nodes.shape.reshape import reshape
from dynbatch.nodes.syntax.registry import not_an_argument
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged, offsets_of

Dims = int | tuple[int, ...] | None
"""One dimension, several, or all."""


class Total(Operation):
    """factor · Σ x_i for any number of scalars.

    Shape:  any number of () -> ().
    Batches with:  every other Total. Its gradient needs no value, so it is known before forward.
    """

    __slots__ = ("number",)
    exact = True
    any_shape = True
    variadic = True
    number: float

    def infer_shape(self, *shapes: Shape) -> Shape:
        if any(shapes):
            self.refuse(
                f"shapes {[s for s in shapes if s][:3]} among {len(shapes)} inputs",
                "a list is reduced only if it holds scalars",
                "reduce each sentence to a scalar first",
            )
        return ()

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        sum_segments(xs[0].flat[:, None], cls.ends(batch), y.flat[:, None])
        arrays.scale_segments(y.flat, *cls.numbers(batch), y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            each = batch.xp.empty(dy.flat.shape, batch.dtype)
            arrays.scale_segments(dy.flat, *cls.numbers(batch), each)
            spread_segments(each[:, None], cls.ends(batch), dxs[0].flat[:, None])

    @classmethod
    def ends(cls, batch: Batch) -> Array:
        """(K + 1,) the offset of each node's inputs among all inputs."""
        return offsets_of(batch.counts())

    @classmethod
    def numbers(cls, batch: Batch) -> tuple[Array, Array]:
        """Each node's number, and the offset of its one element."""
        return batch.array("number", batch.dtype), np.arange(len(batch.nodes) + 1)


class Reduction(Along):
    """Base of reductions within one sentence.

    Shape:  over tokens (T, D) -> (D,);  over features (T, D) -> (T, 1), (D,) -> ();  all -> ().
    Batches with:  every other one of its type, width and dim, whatever the lengths; the width may
        be a length too, if its type says so.
    """

    __slots__ = ()
    any_rank = True
    needs_tokens: ClassVar[bool] = False
    kernel: ClassVar[staticmethod[..., None]]
    backward_kernel: ClassVar[staticmethod[..., None]]

    def infer_ragged(self) -> int:
        """Over tokens the width is that of x; over features it is 1."""
        return ROWS | (self.inputs[0].ragged & WIDTH if self.over == TOKENS else 0)

    def infer_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        if self.needs_tokens:
            self._require_elements(shape)
        if self.over == TOKENS:
            return shape[1:]
        return (*shape[:-1], 1) if self.over == FEATURES and len(shape) > 1 else ()

    def _require_elements(self, shape: Shape) -> None:
        name = type(self).__name__.lower()
        if self.over != FEATURES and len(shape) == 2 and not shape[0]:
            self.refuse(
                f"a sentence without tokens has no {name}",
                "at least one token",
                "skip empty sentences, or F.concat a row for an empty one (dim=0)",
            )
        if self.over != TOKENS and shape and not shape[-1] and shape[:-1] != (0,):
            self.refuse(
                f"a row of length 0 has no {name}",
                "at least one element, where the width is a length",
                "skip empty sentences, or F.concat a column for an empty one",
            )

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        x, offsets = segments(xs[0], batch.first.over)
        cls.kernel(x, offsets, y.table)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            dx, offsets = segments(dxs[0], batch.first.over)
            cls.backward_kernel(dy.table, offsets, dx)


class Sum(Reduction):
    """y = Σ_i x_i. dx_i = dy."""

    __slots__ = ()
    any_length = True
    kernel = staticmethod(sum_segments)
    backward_kernel = staticmethod(spread_segments)


class Mean(Reduction):
    """y = Σ_i x_i / n, 0 for n = 0. dx_i = dy / n."""

    __slots__ = ()
    any_length = True
    kernel = staticmethod(kernels.mean_segments)
    backward_kernel = staticmethod(kernels.mean_segments_backward)


class LogSumExp(Reduction):
    """y = log Σ_i exp(x_i). dx_i = dy · exp(x_i - y)."""

    __slots__ = ()
    exact = True
    any_length = True
    retains = Retain(inputs=True, output=True)
    kernel = staticmethod(kernels.logsumexp_segments)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            x, offsets = segments(batch.input(0), batch.first.over)
            y, dx = batch.result().table, dxs[0].values.reshape(x.shape)
            kernels.logsumexp_segments_backward(dy.table, x, y, offsets, dx)


def sum(x: Node | Sequence[Node], dim: Dims = None, **habits: Never) -> Node:
    """Sum over tokens (`dim=0`), over features (`dim=-1`), of everything, or of a list of scalars.

    `dim` may be a tuple of dimensions, here as in `mean`, `max`, `min`, `logsumexp`, `var`, `std`.

    Raises:
        ShapeError:      x has no such dim, or the list holds something else than scalars.
        EmptyBatchError: the list is empty.
    """
    if isinstance(x, Node | Parameter):
        return reduced("sum", Sum, x, dim, habits)
    return _total("sum", x, dim, lambda count: 1.0, habits)


def mean(x: Node | Sequence[Node], dim: Dims = None, **habits: Never) -> Node:
    """Mean over tokens (`dim=0`), over features (`dim=-1`), of everything, or of a list of scalars.

    A mean over no tokens is 0, where PyTorch gives NaN (see `nodes.reduce`).

    Raises:
        ShapeError:      x has no such dim, or the list holds something else than scalars.
        EmptyBatchError: the list is empty.
    """
    if isinstance(x, Node | Parameter):
        return reduced("mean", Mean, x, dim, habits)
    return _total("mean", x, dim, lambda count: 1 / count, habits)


def logsumexp(x: Node, dim: Dims = None, **habits: Never) -> Node:
    """log Σ exp(x) over tokens (`dim=0`), over features (`dim=-1`), or of everything.

    Over no tokens it is -inf.

    Raises:
        ShapeError: x has no such dim.
    """
    return reduced("logsumexp", LogSumExp, x, dim, habits)


def reduced(
    what: str, make: Callable[..., Node], x: Node, dim: Dims, habits: Mapping[str, Any]
) -> Node:
    """Reduce a value over a dim, over several, or as a whole, for the function `what`.

    Args:
        make: (x, over=…) -> the node; a type of `Reduction`, say.
    """
    if habits:
        raise not_an_argument(what, habits)
    x = node_of(what, x)
    if dim is None:
        return make(x, over=FEATURES if x.ndim == 1 else ALL)
    several = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    if len(several) == 1 and (x.ndim < 3 or several[0] in (-1, x.ndim - 1)):
        return make(x, over=axis(what, x, several[0]))
    for each in several:
        require_integer(what, each)
    dims = sorted([d + x.ndim if d < 0 else d for d in several])
    if not dims or dims != [d for d in range(x.ndim) if d in dims] or len(dims) < len(several):
        x.refuse(
            f"{what}(dim={dim}) of a value of shape {x.shape}",
            "dim is a dimension, or a tuple of several, each once",
            f"give some of {tuple(range(x.ndim))}, or leave it out for all",
        )
    return make(x, over=ALL) if len(dims) == x.ndim else _over_some(make, x, dims)


def _over_some(make: Callable[..., Node], x: Node, dims: list[int]) -> Node:
    """Reduce a value of more than two dimensions over some of these, in ascending order."""
    left = [d for d in range(x.ndim) if d not in dims]
    sizes = [x.shape[d] for d in left]
    shape = prod(sizes), prod([x.shape[d] for d in dims])
    if dims == list(range(len(dims))):
        return reshape(make(reshape(x, shape[::-1]), over=TOKENS), sizes)
    is_in_order = left == list(range(len(left)))
    columns = reshape(x if is_in_order else permute(x, (*left, *dims)), shape)
    return reshape(make(columns, over=FEATURES), sizes)


def _total(
    what: str, x: Any, dim: object, number: Callable[[int], float], habits: Mapping[str, Any]
) -> Node:
    if habits:
        raise not_an_argument(what, habits)
    is_list = isinstance(x, Iterable) and not isinstance(x, str | np.ndarray)
    if not is_list or hasattr(x, "add_light"):  # a graph, which says how its nodes are iterated
        raise not_a_node(what, x)
    nodes = list(x)
    if dim is not None:
        raise DtypeError.at_caller(
            f"{what}: a list of scalars has no dim, got dim={dim}.\n"
            f"  fix:  F.{what}(F.stack(nodes), dim={dim}) for vectors"
        )
    if not nodes:
        raise EmptyBatchError(
            f"{what}: the list is empty.\n"
            "  rule: a loss needs at least one sentence\n"
            "  fix:  skip empty mini-batches"
        )
    return Total(*nodes, number=number(len(nodes)))
