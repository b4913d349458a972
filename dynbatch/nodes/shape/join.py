"""Join several values: side by side, one after the other, or as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Never

from dynbatch.errors import DtypeError, EmptyBatchError
from dynbatch.nodes.arguments import nodes_of
from dynbatch.nodes.batch import Batch, sizes_of
from dynbatch.nodes.node import WIDTH, Node, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.axes import TOKENS, axis, require_integer
from dynbatch.nodes.shape.permute import permute
from dynbatch.nodes.shape.reshape import reshape, unsqueeze
from dynbatch.nodes.shape.structure import Rectangles, Structural
from dynbatch.nodes.signature import intern_signature
from dynbatch.nodes.syntax.registry import FUNCTIONS, not_an_argument


class Concat(Structural):
    """Inputs side by side (`dim=-1`) or one after the other (`dim=0`).

    Shape:  dim=-1: (T, D_1), …, (T, D_n) -> (T, ΣD); vectors (D_i,) -> (ΣD,), scalars too.
            dim=0:  (T_1, D), …, (T_n, D) -> (ΣT, D); a vector counts as one row.
    Batches with:  every other Concat along the same, whatever the number, widths and lengths of its
        inputs: a multi-length concat is one launch.
    """

    __slots__ = ("along",)
    static = ("along",)
    moves_all = True
    any_rank = True
    along: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        if self.along == -1:
            if len({s[:-1] for s in shapes}) > 1:
                self.refuse(
                    f"inputs of different lengths {[s[:-1] for s in shapes]}",
                    "concat along features needs equal numbers of tokens",
                    "give inputs of one sentence, or use dim=0 to concatenate along tokens",
                )
            return (*shapes[0][:-1], sum([s[-1] if s else 1 for s in shapes]))
        if any([len(s) > 2 for s in shapes]):
            if len({s[1:] for s in shapes}) > 1:
                self.refuse(
                    f"inputs of shapes {sorted(set(shapes))}",
                    "concat along the first dimension needs the others equal",
                    "F.unsqueeze or F.permute some of them",
                )
            return (sum([s[0] for s in shapes]), *shapes[0][1:])
        widths = {s[-1] for s in shapes if s}
        if len(widths) != 1 or not all(shapes):
            self.refuse(
                f"inputs of different widths {sorted(widths)}",
                "concat along tokens needs equal numbers of features",
                "project the inputs to one width first, or use dim=-1",
            )
        return (sum([s[0] if len(s) == 2 else 1 for s in shapes]), widths.pop())

    def is_rowwise(self) -> bool:
        return self.along == -1

    def infer_ragged(self) -> int:
        of_scalars = self.along == -1 and not self.inputs[0].ndim  # as many as there are of them
        return super().infer_ragged() | (WIDTH if of_scalars else 0)

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangles]:
        along_tokens, counts = batch.first.along == 0, batch.counts()
        if len(counts) < max(counts):  # few nodes of many inputs
            for node in batch.nodes:
                rows, widths = sizes_of(node.inputs)
                at = list(accumulate(rows if along_tokens else widths, initial=0))[:-1]
                yield Rectangles(
                    node.inputs, [node] * len(at), rows, widths,
                    target_row=at if along_tokens else 0, target_column=0 if along_tokens else at,
                )  # fmt: skip
            return
        filled = [0] * len(counts)
        for position in range(max(counts)):  # input by input, so that neighbours of a block merge
            if min(counts) > position:
                nodes, sources = batch.nodes, batch.input_nodes(position)
                chosen: Sequence[int] = range(len(counts))
            else:
                chosen = [k for k, count in enumerate(counts) if count > position]
                nodes = [batch.nodes[k] for k in chosen]
                sources = [node.inputs[position] for node in nodes]
            rows, widths = sizes_of(sources)
            at = [filled[k] for k in chosen]
            if along_tokens:
                yield Rectangles(sources, nodes, rows, widths, target_row=at)
            else:
                yield Rectangles(sources, nodes, None, widths, target_column=at)
            for k, size in zip(chosen, rows if along_tokens else widths, strict=True):
                filled[k] += size


SIDE_BY_SIDE = intern_signature((Concat, -1))


def concat(inputs: Sequence[Node], dim: int = -1, **habits: Never) -> Node:
    """Concatenate nodes along features (`dim=-1`, default) or tokens (`dim=0`), as `torch.cat`.

    Vectors have features only, so any `dim` joins them to one longer vector; `stack` makes rows.
    A scalar counts as a vector of one feature.

    Raises:
        ShapeError: the other dimension differs.
        EmptyBatchError: `inputs` is empty.
        DtypeError: `inputs` is not a list of nodes.
    """
    inputs = _nodes("concat", inputs, habits)
    if type(dim) is int and dim == -1:
        rows, width, ragged = inputs[0].rows, 0, 0
        for x in inputs:
            if x.ndim != 2 or x.rows != rows:
                break
            width += x.width
            ragged |= x.ragged
        else:
            node = Concat.__new__(Concat)
            node.along = -1
            node.complete_as(tuple(inputs), inputs[0].graph, 2, rows, width, ragged, SIDE_BY_SIDE)
            return node
    widest = inputs[0]
    for x in inputs:
        if x.ndim > widest.ndim:
            widest = x
    if widest.ndim == 0 and dim in (0, -1):
        return Concat(*inputs, along=-1)
    if widest.ndim > 2 and dim in (0, -widest.ndim):
        return Concat(*inputs, along=0)
    return Concat(*inputs, along=0 if axis("concat", widest, dim) == TOKENS else -1)


def stack(inputs: Sequence[Node], dim: int = 0, **habits: Never) -> Node:
    """K vectors (D,) as rows of a matrix (K, D), or K scalars as a vector (K,), as `torch.stack`.

    With `dim=-1` vectors are columns, (D, K). K matrices (T, D) become (K, T, D); their rows are
    joined by `concat(..., dim=0)`.

    Raises:
        ShapeError: the inputs' shapes differ, or there is no such dim.
        EmptyBatchError: `inputs` is empty.
        DtypeError: `inputs` is not a list of nodes.
    """
    inputs = _nodes("stack", inputs, habits)
    first = inputs[0]
    if dim:
        require_integer("stack", dim)
        if not -first.ndim - 1 <= dim <= first.ndim:
            first.refuse(
                f"stack(dim={dim}) of values of shape {first.shape}",
                "the new dimension is one of those that the result has",
                "leave dim out",
            )
    is_columns = first.ndim == 1 and dim in (1, -1)
    if not is_columns and not any([isinstance(x, Operation) for x in inputs]):  # of calls
        rows: Node = FUNCTIONS["stack_calls"](inputs)
        return rows
    for x in inputs:
        if x.shape != first.shape:
            x.refuse(
                f"shape {x.shape} beside {first.shape} in stack",
                "stack takes values of one shape",
                "F.concat(…, dim=0) joins matrices along their tokens",
            )
    if first.ndim > 1:
        return _stacked(inputs, dim)
    if is_columns:
        return concat([unsqueeze(x, -1) for x in inputs])
    return Concat(*inputs, along=0 if first.ndim else -1)


def _stacked(inputs: Sequence[Node], dim: int) -> Node:
    """K values of one shape (T, D) as one of (K, T, D); with another `dim` the K lies there."""
    shape = inputs[0].shape
    joined = reshape(concat(inputs, dim=0), (len(inputs), *shape))
    position = dim if dim >= 0 else dim + joined.ndim
    order = [*range(1, position + 1), 0, *range(position + 1, joined.ndim)]
    return permute(joined, order)


def _nodes(what: str, inputs: Any, habits: Mapping[str, Any]) -> Sequence[Node]:
    """The nodes to join, at least one."""
    if habits:
        raise not_an_argument(what, habits)
    if isinstance(inputs, Node) or not isinstance(inputs, Iterable):
        raise DtypeError.at_caller(
            f"{what}: a list of nodes expected, got {type(inputs).__name__}.\n"
            f"  fix:  F.{what}([a, b])"
        )
    nodes: Sequence[Node] = inputs if isinstance(inputs, list | tuple) else list(inputs)
    nodes = nodes_of(what, *nodes)
    if not nodes:
        raise EmptyBatchError.at_caller(
            f"{what}: at least one input is needed.\n  fix:  skip the call where the list is empty"
        )
    return nodes
