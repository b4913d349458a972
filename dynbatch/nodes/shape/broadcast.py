"""Values repeated to one shape where one of them has more than two dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.shape.gather import GatherRows
from dynbatch.nodes.shape.reshape import reshape


def broadcast_shape(nodes: Sequence[Node]) -> Shape:
    """The shape that NumPy repeats all of them to.

    Raises:
        ShapeError: a size differs, and is not 1.
    """
    shapes = [x.shape for x in nodes]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        nodes[0].refuse(
            f"shapes {' and '.join([str(shape) for shape in shapes])}",
            "sizes are equal from the last dimension on, or 1, or missing",
            "F.unsqueeze, F.reshape or F.permute one of them",
        )


def rows_repeated(x: Node, shape: Shape) -> Node:
    """x with its rows repeated to those of `shape`; its width stays.

    Shape:  (A, D), (T, 1, D), (1, D), … -> (T, A, D).

    Raises:
        ShapeError: its sizes are neither those of `shape` nor 1.
    """
    leading = x.shape[:-1]
    try:
        ids = np.broadcast_to(np.arange(x.rows).reshape(leading), shape[:-1]).reshape(-1)
    except ValueError:
        x.refuse(
            f"shape {x.shape} cannot be repeated to {shape}",
            "sizes are equal from the last dimension on, or 1, or missing",
            "F.unsqueeze, F.reshape or F.permute it",
        )
    rows = GatherRows(reshape(x, (x.rows, x.width)), ids=ids)
    return reshape(rows, (*shape[:-1], x.width))
