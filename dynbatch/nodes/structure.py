"""Structural nodes: their value is made of rectangles of their inputs. No arithmetic.

All of them are one kernel: a table of moves for the whole mini-batch, whatever the widths and
lengths. Backward is the same table read the other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from dynbatch.errors import EmptyBatchError
from dynbatch.nodes.base import Node, Shape
from dynbatch.nodes.batch import Batch


class Rectangle(NamedTuple):
    """`rows` x `width` elements of a source node that become a part of a target node.

    Row i comes from source row `source_row + i * source_step` and goes to target row
    `target_row + i * target_step`; columns start at `source_column` and `target_column`.
    """

    source: Node
    source_row: int
    source_step: int
    source_column: int
    target: Node
    target_row: int
    target_step: int
    target_column: int
    rows: int
    width: int


class Structural(Node):
    """Base of structural nodes. Subclasses give `rectangles`, injective on the inputs.

    moves_all: every element of every input is moved exactly once, so that its gradient is written
        rather than added to.
    """

    __slots__ = ()
    any_shape = True
    variadic = True
    moves_all: ClassVar[bool] = False

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        """The moves of all nodes of the batch, neighbours next to each other."""
        raise NotImplementedError(f"{cls.__name__}.rectangles")


class Concat(Structural):
    """Inputs side by side (`dim=-1`) or one after the other (`dim=0`).

    Shape:  dim=-1: (T, D_1), …, (T, D_n) -> (T, ΣD); vectors (D_i,) -> (ΣD,).
            dim=0:  (T_1, D), …, (T_n, D) -> (ΣT, D); a vector counts as one row.
    Batches with:  every other Concat of the same dim, whatever the number, widths and lengths of
        its inputs.
    """

    __slots__ = ("dim",)
    static = ("dim",)
    moves_all = True
    dim: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        if self.dim == -1:
            self.require(
                all(len(s) == len(shapes[0]) > 0 and s[:-1] == shapes[0][:-1] for s in shapes),
                f"inputs of different lengths {[s[:-1] for s in shapes]}",
                "concat along features needs equal numbers of tokens",
                "give inputs of one sentence, or use dim=0 to concatenate along tokens",
            )
            return (*shapes[0][:-1], sum([s[-1] for s in shapes]))
        widths = {s[-1] for s in shapes if s}
        self.require(
            len(widths) == 1 and all(shapes),
            f"inputs of different widths {sorted(widths)}",
            "concat along tokens needs equal numbers of features",
            "project the inputs to one width first, or use dim=-1",
        )
        return (sum([s[0] if len(s) == 2 else 1 for s in shapes]), widths.pop())

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        along_tokens = batch.first.dim == 0
        most = max(batch.counts())
        filled = [0] * len(batch.nodes)
        for position in range(most):  # input by input, so that neighbours of a block merge
            for k, node in enumerate(batch.nodes):
                if position >= len(node.inputs):
                    continue
                x, at = node.inputs[position], filled[k]
                row, column = (at, 0) if along_tokens else (0, at)
                filled[k] += x.rows if along_tokens else x.width
                yield Rectangle(x, 0, 1, 0, node, row, 1, column, x.rows, x.width)


def concat(inputs: Sequence[Node], dim: int = -1) -> Node:
    """Concatenate nodes along features (`dim=-1`, default) or tokens (`dim=0`), as `torch.cat`.

    Vectors have features only, so any `dim` joins them to one longer vector; `stack` makes rows.

    Raises:
        ShapeError: the other dimension differs.
        EmptyBatchError: `inputs` is empty.
    """
    if not inputs:
        raise EmptyBatchError("concat: at least one input is needed.")
    along_tokens = dim == 0 and any([x.ndim == 2 for x in inputs])
    return Concat(*inputs, dim=0 if along_tokens else -1)
