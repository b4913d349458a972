"""A value in another shape: its elements in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Never

from dynbatch.nodes.arguments import LEAST_0, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape
from dynbatch.nodes.shape.axes import TOKENS, axis, require_integer
from dynbatch.nodes.shape.structure import Rectangles, Structural
from dynbatch.nodes.syntax.registry import not_an_argument


class Reshape(Structural):
    """x in another shape, its elements in the same order.

    Shape:  x of any shape -> one of as many elements.
    Batches with:  every other Reshape.
    """

    __slots__ = ("lengths", "target")
    moves_all = True
    any_rank = True
    target: Shape
    lengths: int  # as `Node.ragged`, which a shape alone does not tell

    def infer_ragged(self) -> int:
        return self.lengths

    def follows_sizes(self) -> bool:
        return False

    def infer_shape(self, *shapes: Shape) -> Shape:
        if prod(shapes[0]) != prod(self.target) or min(self.target, default=0) < 0:
            problem = f"shape {shapes[0]} cannot become {self.target}"
            if -1 in self.target and not prod(shapes[0]):
                rule = "-1 stands for a size that follows from the others, unless one of them is 0"
                self.refuse(problem, rule, f"give every size; {LEAST_0}")
            self.refuse(
                problem,
                "a reshape keeps the number of elements, and at least one feature",
                "give sizes with the same product; -1 stands for a size that follows from the "
                "others",
            )
        return self.target

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangles]:
        elements = [n * width for n, width in zip(batch.lengths, batch.widths, strict=True)]
        # One row of all elements, without a step: neighbours merge to one copy.
        yield Rectangles(batch.input_nodes(0), batch.nodes, 1, elements, source_step=0)


def reshape(x: Node, shape: int | Sequence[int]) -> Node:
    """The elements of x, row by row, in another shape; -1 is worked out.

    A column (M, 1) can hold a number for each pair of tokens. `F.reshape(x, (T_q, T_k))` makes the
    matrix of it, whose width counts as a length, so that sentences of all lengths share a batch; in
    `F.reshape(x, (-1, D))` the width counts as features.

    Raises:
        ShapeError: the number of elements would change.
    """
    x = node_of("reshape", x)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    is_of_pairs = x.ndim == 2 == len(shape) and x.width == 1 and shape[0] != -1
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    if -1 in shape and known > 0:
        shape = tuple([x.rows * x.width // known if size == -1 else size for size in shape])
    lengths = x.ragged
    if x.ndim > 1 and len(shape) < 2:  # of all elements, or of the tokens of one column
        lengths |= WIDTH
    if shape and not shape[-1]:  # a width that is 0 here must be a length
        lengths |= WIDTH
    if is_of_pairs and (shape != x.shape or x.rows == 1):
        lengths |= WIDTH
    return _reshape(x, shape, lengths)


def _reshape(x: Node, shape: Shape, lengths: int) -> Node:
    # Pairs of one token, (1, 1), have the target's shape by chance.
    by_chance = x.ndim == 2 and lengths & WIDTH
    if shape == x.shape and lengths == x.ragged and not by_chance:
        return x
    return Reshape(x, target=shape, lengths=lengths)


def squeeze(x: Node, dim: int | None = None, **habits: Never) -> Node:
    """x without dimensions of size 1, or without `dim` if that has size 1, as `torch.squeeze`.

    Give `dim` where a sentence may have one token: (T, 1) with `dim=-1` is always (T,), and (1, D)
    with `dim=0` always (D,).

    Raises:
        ShapeError: x has no such dim, or is (0, 1): a vector without features.
    """
    if dim is None:
        if habits:
            raise not_an_argument("squeeze", habits)
        x = node_of("squeeze", x)
        return reshape(x, tuple([size for size in x.shape if size != 1]))
    if isinstance(x, Node) and x.ndim > 2 and not habits and dim in range(-x.ndim, x.ndim):
        require_integer("squeeze", dim)
        position = dim % x.ndim
    else:
        position = 0 if axis("squeeze", x, dim, habits) == TOKENS else x.ndim - 1
    if x.shape[position] != 1:
        return x
    left = x.ragged if position < x.ndim - 1 else ROWS | (WIDTH if x.ragged & ROWS else 0)
    return _reshape(x, (*x.shape[:position], *x.shape[position + 1 :]), left)


def unsqueeze(x: Node, dim: int = 0, **habits: Never) -> Node:
    """x with a dimension of size 1 more: (D,) -> (1, D), or (D, 1) for `dim=-1`; () -> (1,).

    Raises:
        ShapeError: x has no such dim.
    """
    if habits:
        raise not_an_argument("unsqueeze", habits)
    x = node_of("unsqueeze", x)
    require_integer("unsqueeze", dim)
    position = dim if dim >= 0 else dim + x.ndim + 1
    if not 0 <= position <= x.ndim:
        x.refuse(
            f"unsqueeze(dim={dim}) of a value of shape {x.shape}",
            "dim is between -ndim - 1 and ndim",
            f"give one from {-x.ndim - 1} to {x.ndim}",
        )
    shape = (*x.shape[:position], 1, *x.shape[position:])
    is_column = 0 < x.ndim == position
    return _reshape(x, shape, (ROWS if x.ragged & WIDTH else 0) if is_column else x.ragged)
