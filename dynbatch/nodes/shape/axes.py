"""The meaning of `dim`, and the segments of packed rows that it selects.

A matrix (T, D) has tokens (`dim=0`) and features (`dim=-1`); a vector (D,) has features only, so
its `dim=0` is its `dim=-1`, as in PyTorch; a scalar has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.indexing import repeat
from dynbatch.kernels.matrices import Matrices, Segments
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import INDEX_BYTES, Operation
from dynbatch.nodes.syntax.registry import not_an_argument
from dynbatch.ragged import Ragged, offsets_of

TOKENS = "tokens"
FEATURES = "features"
ALL = "all"

NO_HABITS: Mapping[str, Any] = MappingProxyType({})


def axis(what: str, x: Node, dim: int, habits: Mapping[str, Any] = NO_HABITS) -> str:
    """TOKENS or FEATURES, for the dimension `dim` of x.

    Args:
        habits: keyword arguments that the function does not have.

    Raises:
        ShapeError: x has no such dimension.
        DtypeError: x is not a node, dim not an integer, or there are `habits`.
    """
    if habits:
        raise not_an_argument(what, habits)
    x = node_of(what, x)
    require_integer(what, dim)
    ndim = x.ndim
    if -ndim <= dim < ndim and (ndim < 3 or dim in (-1, ndim - 1)):
        return TOKENS if ndim == 2 and dim in (0, -2) else FEATURES
    if ndim > 2:
        x.refuse(
            f"{what} along dim {dim}",
            "along the last dim of a value of more than two dimensions",
            "F.permute moves another dim there",
        )
    sentence = x.graph.sentence(x)
    where = "" if sentence is None else f", sentence {sentence}"
    raise ShapeError.at_caller(
        f"{what}{where}: {x.label()} of shape {x.shape} has no dim {dim}.\n"
        "  rule: dim=0 means tokens, dim=-1 features; a vector has features only\n"
        "  fix:  give the dim of a matrix (T, D) or of a vector (D,)"
    )


def require_integer(what: str, dim: Any) -> None:
    """Raise `DtypeError` if a dim is not an integer."""
    if not isinstance(dim, (int, np.integer)):
        raise DtypeError.at_caller(
            f"{what}: dim={dim!r} is not an integer.\n"
            "  rule: dim is one of 0 (tokens) and -1 (features)\n"
            "  fix:  to reduce over all dimensions leave it out, if it may be None"
        )


def segments(x: Ragged, over: str) -> tuple[Array, Segments]:
    """Packed rows and the offsets of segments: one segment for each reduction over `over`.

    TOKENS:   (N, D) rows, a sentence each; (elements, 1), a matrix each, where widths differ.
    FEATURES: (N·D, 1) elements, a row each.
    ALL:      (elements, 1), a sentence each.
    """
    if over == TOKENS:
        return x.table, x.offsets if x.widths is None else Matrices(x.lengths, x.widths)
    flat = x.flat[:, None]
    if over == ALL:
        return flat, x.starts
    if x.widths is not None:
        return flat, offsets_of(repeat(x.widths, x.lengths))
    rows, width = x.values.shape
    return flat, np.arange(0, rows * width + 1, width)


def segment_bytes(batch: Batch, over: str) -> int:
    """Bytes of the table of segment offsets; where widths differ, a segment is a row."""
    rows, widths = batch.input_rows(0), batch.input_widths(0)
    per_row = over == FEATURES and widths.count(widths[0]) < len(widths)
    return INDEX_BYTES * (sum(rows) + 1 if per_row else len(rows) + 1)


class Along(Operation):
    """Base of types that work along the tokens, along the features, or over all elements."""

    __slots__ = ("over",)
    __slots__ = ("over",)
    static: ClassVar[tuple[str, ...]] = ("over",)
    over: str

    def is_rowwise(self) -> bool:
        return self.over == FEATURES

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return segment_bytes(batch, batch.first.over)
