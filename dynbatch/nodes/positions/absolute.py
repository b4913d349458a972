"""Vectors of positions, to be added to the words': sinusoids, or learned rows of a table."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dynbatch.arguments import number, size
from dynbatch.backend import Array
from dynbatch.errors import VocabularyError
from dynbatch.kernels import positions as kernels
from dynbatch.kernels.move import row_index
from dynbatch.nodes.arguments import check_parameter, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.positions.base import Positioned, position_attributes
from dynbatch.nodes.sources import TableRows
from dynbatch.nodes.unary.arithmetic import detach
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class Sinusoids(Positioned):
    """Sines and cosines of position · frequency; of x it reads the shape alone.

    Batches with:  every other one of its width, layout and base, whatever lengths and offsets.
    """

    __slots__ = ()
    static = ("layout", "angles", "has_positions")
    shape_rule = "x (T, D)|(D,) -> (T, D)|(D,)"
    shape_fix = "give the sentence whose positions these are"
    differentiable = False
    function = "sinusoidal"

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        node, runs = batch.first, cls.runs(batch, y)
        kernels.sinusoidal(*runs, node.angles, node.layout == "interleaved", y.values)


class PositionRows(TableRows):
    """Rows `offset`, `offset` + 1, … of a table for the tokens of x, of which it reads the length.

    Batches with:  every other one in the same table. Its gradient is row-sparse (`RowSparse`).
    """

    __slots__ = ("offset",)
    shape_rule = "x (T, D)|(D,), table (V, E) -> (T, E)|(E,)"
    shape_fix: ClassVar[dict[str, str]] = {
        "x": "give the sentence whose positions these are",
        "table": "give the parameter two dimensions",
    }
    offset: int

    def check_shape(self, *shapes: Shape) -> None:
        self.check_rows(self.inputs[0].rows)

    def check_rows(self, rows: int) -> None:
        """Raise an error if the table is too short for so many tokens."""
        held = self.table.shape[0]
        if self.offset + rows > held:
            self.refuse(
                f"{rows} tokens from position {self.offset} on, in a table of {held} rows",
                "offset + tokens <= rows of the table",
                "cut the sentence, or give the table more rows",
                VocabularyError,
            )

    @classmethod
    def gradient_rows(cls, batch: Batch) -> Array:
        offsets, lengths = batch.array("offset", np.int64), np.array(batch.lengths, np.int64)
        ends = offsets + lengths
        if int(ends.max(initial=0)) > batch.first.table.shape[0]:
            # A block knows its operators at any length without asking them.
            k = int(ends.argmax())
            batch.nodes[k].check_rows(int(lengths[k]))
        return row_index(offsets, lengths)


def positions(x: Node, table: Parameter, offset: int = 0) -> Node:
    """Learned positions: the first T rows of a table for the T tokens of x, (T, E).

    Only the length of x is read, and no gradient reaches it:
    `x + F.positions(x, table)` adds a vector to each word.

    Args:
        x:      (T, D), or (D,) for one token.
        table:  parameter (V, E). Its gradient is row-sparse, as `lookup`'s.
        offset: the row of the first token: 2 in RoBERTa; in generation, the length of what is
                cached.

    For positions that do not follow each other write `F.lookup(graph, table, ids)`.

    Raises:
        VocabularyError: offset + T is more than the table's rows.
        ShapeError:      the table is not a matrix, or x is a scalar.
        ArgumentError:   the offset is not an integer, or below 0.

    Source: Gehring et al. 2017, arXiv:1705.03122, section 3.1.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> table = db.Parameter([[0.0], [1.0], [2.0], [3.0]])
        >>> with db.Graph(dtype="float64") as graph:
        ...     x = F.input(graph, [[10.0], [20.0]])
        ...     (x + F.positions(x, table, offset=2)).value.tolist()
        [[12.0], [23.0]]
    """
    x = node_of("positions", x)
    check_parameter("positions", table, x.graph, short=True)
    return PositionRows(detach(x), table=table, offset=size("positions", "offset", offset, 0))


def sinusoidal(
    x: Node,
    base: float = 10000.0,
    *,
    layout: str = "interleaved",
    offset: int = 0,
    positions: Any = None,
) -> Node:
    """Sinusoidal positions of the tokens of x, of x's shape: sin pf_i and cos pf_i at position p.

    The frequencies are f_i = base^(-2i / D). Only the shape of x is read, and no gradient reaches
    it: `x * D**0.5 + F.sinusoidal(x)` is what the paper feeds to its first layer.

    Args:
        x:         (T, D), or (D,) for one token.
        layout:    "interleaved" has sin pf_0, cos pf_0, sin pf_1, … (the paper); "halves" all sines
                   before all cosines (Marian).
        offset:    the position of the first token: in generation, the length of what is cached.
        positions: T integers, instead of an offset.

    Raises:
        VocabularyError: a position is below 0, or 2^20 or more.
        ShapeError:      x is a scalar, or there is not one position for each token.
        ArgumentError:   the layout is unknown, or a number is out of range.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. fairseq and tensor2tensor have
        frequencies base^(-i / (D / 2 - 1)) instead.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph(dtype="float64") as graph:
        ...     F.sinusoidal(F.input(graph, [[7.0, 7.0], [7.0, 7.0]])).value.round(2).tolist()
        [[0.0, 1.0], [0.84, 0.54]]
    """
    x = node_of("sinusoidal", x)
    angles = kernels.Angles(x.width, number("sinusoidal", "base", base, "(0, inf)"))
    placed = position_attributes("sinusoidal", layout, offset, positions)
    return Sinusoids(x, angles=angles, **placed)
