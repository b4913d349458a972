"""Softmax, log-softmax and sparsemax of one sentence, over features or over tokens."""

from __future__ import annotations

from typing import ClassVar, Never

from dynbatch.kernels import softmax as kernels
from dynbatch.kernels import sparsemax as sparse
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Retain
from dynbatch.nodes.shape.axes import Along, axis, segments
from dynbatch.ragged import Ragged


class Normalised(Along):
    """Base of all: x normalised over the features of each token, or the tokens of each feature.

    Batches with:  every other one of its type, width and dim, whatever the lengths; the width may
        be a length too.
    """

    __slots__ = ()
    shape_rule = "x (…) -> (…)"
    any_length = True
    retains = Retain(output=True)
    inplace_forward = True
    kernel: ClassVar[staticmethod[..., None]]
    backward_kernel: ClassVar[staticmethod[..., None]]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        over = batch.first.over
        x, offsets = segments(xs[0], over)
        cls.kernel(x, offsets, y.values.reshape(x.shape))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            y, offsets = segments(batch.result(), batch.first.over)
            cls.backward_kernel(dy.values.reshape(y.shape), y, offsets, dx.values.reshape(y.shape))


class Softmax(Normalised):
    """y_i = exp(x_i) / Σ_j exp(x_j). dx = y ⊙ (dy - Σ_j dy_j y_j)."""

    __slots__ = ()
    kernel = staticmethod(kernels.softmax)
    backward_kernel = staticmethod(kernels.softmax_backward)


class LogSoftmax(Normalised):
    """y_i = x_i - log Σ_j exp(x_j). dx_i = dy_i - exp(y_i) Σ_j dy_j."""

    __slots__ = ()
    exact = True
    kernel = staticmethod(kernels.log_softmax)
    backward_kernel = staticmethod(kernels.log_softmax_backward)


class Sparsemax(Normalised):
    """y_i = max(x_i - τ, 0) with Σ_i y_i = 1. dx = dy less its mean, where y is not 0."""

    __slots__ = ()
    kernel = staticmethod(sparse.sparsemax)
    backward_kernel = staticmethod(sparse.sparsemax_backward)


def softmax(x: Node, dim: int = -1, **habits: Never) -> Node:
    """Softmax over features (`dim=-1`), or for each feature over the tokens (`dim=0`).

    Raises:
        ShapeError: x has no such dim.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.softmax(F.input(graph, [0.0, 0.0])).value.tolist()
        [0.5, 0.5]
    """
    return Softmax(x, over=axis("softmax", x, dim, habits))


def log_softmax(x: Node, dim: int = -1, **habits: Never) -> Node:
    """log(softmax(x)), more precise than the two functions in turn.

    Raises:
        ShapeError: x has no such dim.
    """
    return LogSoftmax(x, over=axis("log_softmax", x, dim, habits))


def sparsemax(x: Node, dim: int = -1, **habits: Never) -> Node:
    """The point of the probability simplex nearest to x: as `softmax`, and often with zeros.

    y_i = max(x_i - τ, 0), with τ such that Σ_i y_i = 1. What is more than 1 below the maximum is 0.

    Raises:
        ShapeError: x has no such dim.

    Source: Martins & Astudillo 2016, arXiv:1602.02068.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.sparsemax(F.input(graph, [1.0, 0.5, -1.0])).value.tolist()
        [0.75, 0.25, 0.0]
    """
    return Sparsemax(x, over=axis("sparsemax", x, dim, habits))
