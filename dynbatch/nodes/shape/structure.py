"""Structural nodes: their value is made of rectangles of their inputs. No arithmetic.

All of them are one kernel: a table of moves for the whole mini-batch, whatever the widths and
lengths. Backward is the same table read the other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Never

from dynbatch.errors import DtypeError, EmptyBatchError
from dynbatch.nodes.arguments import require_nodes
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape, in_order
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.axes import TOKENS, axis
from dynbatch.nodes.syntax.registry import FUNCTIONS, not_an_argument


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


class Structural(Operation):
    """Base of structural nodes. Subclasses give `rectangles`, injective on the inputs."""

    __slots__ = ()
    any_shape = True
    variadic = True

    def is_rowwise(self) -> bool:
        return getattr(self, "along", 0) == -1

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        """The moves of all nodes of the batch, neighbours next to each other."""
        raise NotImplementedError(f"{cls.__name__}.rectangles")


class PortPlace:
    """Where one node's port lies: enough of a node for a move to start from."""

    __slots__ = ("_block", "_position", "_start", "rows", "width")

    def __init__(self, owner: Node, part: int) -> None:
        self._block = owner._block.ports[part]
        self._position = owner._position
        self.width: int = self._block.width
        self.rows = 1
        self._start = owner._position * self.width


class Port(Structural):
    """A further output of a node, as a vector: the last state of a scan, for instance.

    Batches with:  every other Port.
    """

    __slots__ = ("part",)
    moves_all = True
    part: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        (owner,) = self.inputs
        assert isinstance(owner, Operation)
        return (owner.port_widths()[self.part],)

    def reads(self) -> Sequence[PortPlace]:
        return (PortPlace(self.inputs[0], self.part),)

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        for node in batch.nodes:
            (place,) = node.reads()
            yield Rectangle(place, 0, 1, 0, node, 0, 1, 0, 1, node.width)


class Concat(Structural):
    """Inputs side by side (`dim=-1`) or one after the other (`dim=0`).

    Shape:  dim=-1: (T, D_1), …, (T, D_n) -> (T, ΣD); vectors (D_i,) -> (ΣD,), scalars too.
            dim=0:  (T_1, D), …, (T_n, D) -> (ΣT, D); a vector counts as one row.
    Batches with:  every other Concat along the same, whatever the number, widths and lengths of its
        inputs.
    """

    __slots__ = ("along",)
    static = ("along",)
    moves_all = True
    along: int

    def infer_shape(self, *shapes: Shape) -> Shape:
        if self.along == -1:
            if len({s[:-1] for s in shapes}) > 1:
                self.require(
                    False,
                    f"inputs of different lengths {[s[:-1] for s in shapes]}",
                    "concat along features needs equal numbers of tokens",
                    "give inputs of one sentence, or use dim=0 to concatenate along tokens",
                )
            return (*shapes[0][:-1], sum([s[-1] if s else 1 for s in shapes]))
        widths = {s[-1] for s in shapes if s}
        self.require(
            len(widths) == 1 and all(shapes),
            f"inputs of different widths {sorted(widths)}",
            "concat along tokens needs equal numbers of features",
            "project the inputs to one width first, or use dim=-1",
        )
        return (sum([s[0] if len(s) == 2 else 1 for s in shapes]), widths.pop())

    def infer_ragged(self) -> int:
        of_scalars = self.along == -1 and not self.inputs[0].ndim  # as many as there are of them
        return super().infer_ragged() | (WIDTH if of_scalars else 0)

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        along_tokens = batch.first.along == 0
        most = max(batch.counts())
        filled = [0] * len(batch.nodes)
        for position in range(most):  # input by input, so that neighbours of a block merge
            if not along_tokens and len(batch.nodes) > 1 and len(set(filled)) == 1:
                joined = _one_rectangle(batch.nodes, position, filled[0])
                if joined is not None:
                    filled = [filled[0] + joined.width] * len(filled)
                    yield joined
                    continue
            for k, node in enumerate(batch.nodes):
                if position >= len(node.inputs):
                    continue
                x, at = node.inputs[position], filled[k]
                row, column = (at, 0) if along_tokens else (0, at)
                filled[k] += x.rows if along_tokens else x.width
                yield Rectangle(x, 0, 1, 0, node, row, 1, column, x.rows, x.width)


def _one_rectangle(nodes: Sequence[Node], position: int, column: int) -> Rectangle | None:
    """All inputs at one position, if they are neighbours in one block as the nodes are in theirs.

    This spares the common case, the two directions of an LSTM, a table of moves by sentence.
    """
    if min([len(node.inputs) for node in nodes]) <= position:
        return None
    inputs = [node.inputs[position] for node in nodes]
    first, target = inputs[0], nodes[0]
    if not (first._block.width and target._block.width and in_order(inputs)):
        return None
    rows = sum([x.rows for x in inputs])
    return Rectangle(first, 0, 1, 0, target, 0, 1, column, rows, first.width)


class Reverse(Structural):
    """The rows of a sentence, the last one first: y_t = x_{T-1-t}.

    Shape:  (T, D) -> (T, D).
    Batches with:  every other Reverse.
    """

    __slots__ = ()
    moves_all = True

    def infer_shape(self, *shapes: Shape) -> Shape:
        self.require(
            len(shapes[0]) == 2,
            f"a sentence (T, D) expected, not {shapes[0]}",
            "rows are reversed",
            "F.stack vectors to rows first; a vector has one row",
        )
        return shapes[0]

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        for node in batch.nodes:
            (x,) = node.inputs
            yield Rectangle(x, x.rows - 1, -1, 0, node, 0, 1, 0, x.rows, x.width)


class Reshape(Structural):
    """The same elements in the same order, in another shape.

    Batches with:  every other Reshape.
    """

    __slots__ = ("lengths", "target")
    moves_all = True
    target: Shape
    lengths: int  # as `Node.ragged`, which a shape alone does not tell

    def infer_ragged(self) -> int:
        return self.lengths

    def infer_shape(self, *shapes: Shape) -> Shape:
        rows, width = _extent(shapes[0])
        target_rows, target_width = _extent(self.target)
        self.require(
            rows * width == target_rows * target_width,
            f"shape {shapes[0]} cannot become {self.target}",
            "a reshape keeps the number of elements, and at least one feature",
            "multiply the sizes out; -1 stands for the one that follows from the others",
        )
        return self.target

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        for node in batch.nodes:
            (x,) = node.inputs
            # One row of all elements: steps do not matter, and neighbours merge to one copy.
            yield Rectangle(x, 0, 0, 0, node, 0, 0, 0, 1, x.rows * x.width)


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
    widest = max(inputs, key=lambda x: x.ndim)
    if widest.ndim == 0 and dim in (0, -1):
        return Concat(*inputs, along=-1)
    return Concat(*inputs, along=0 if axis("concat", widest, dim) == TOKENS else -1)


def stack(inputs: Sequence[Node], dim: int = 0, **habits: Never) -> Node:
    """K vectors (D,) as rows of a matrix (K, D), or K scalars as a vector (K,), as `torch.stack`.

    With `dim=-1` vectors are columns, (D, K). `concat(..., dim=0)` joins matrices by their rows.

    Raises:
        ShapeError: the vectors' widths differ, an input is a matrix, or there is no such dim.
        EmptyBatchError: `inputs` is empty.
        DtypeError: `inputs` is not a list of nodes.
    """
    inputs = _nodes("stack", inputs, habits)
    first = inputs[0]
    if dim:
        first.require(
            -first.ndim - 1 <= dim <= first.ndim,
            f"stack(dim={dim}) of values of shape {first.shape}",
            "dim=0 makes rows of vectors, dim=-1 columns",
            "leave dim out",
        )
    is_columns = first.ndim == 1 and dim in (1, -1)
    if not is_columns and not any([isinstance(x, Operation) for x in inputs]):  # of calls
        rows: Node = FUNCTIONS["stack_calls"](inputs)
        return rows
    for x in inputs:
        x.require(
            x.shape == first.shape and x.ndim < 2,
            f"shape {x.shape} beside {first.shape} in stack",
            "stack takes vectors of one width, or scalars; a value has at most two dimensions",
            "F.concat(…, dim=0) joins matrices along their tokens",
        )
    if is_columns:
        return concat([unsqueeze(x, -1) for x in inputs])
    return Concat(*inputs, along=0 if first.ndim else -1)


def reverse(x: Node) -> Node:
    """The rows of x, the last one first, as `torch.flip(x, [0])`.

    Raises:
        ShapeError: x is not a matrix.
    """
    return Reverse(x)


def reshape(x: Node, shape: int | Sequence[int]) -> Node:
    """The elements of x, row by row, in another shape of at most two dimensions; -1 is worked out.

    Raises:
        ShapeError: the number of elements would change, or a row would have no features.
    """
    require_nodes("reshape", x)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    if -1 in shape and known > 0:
        shape = tuple([x.rows * x.width // known if size == -1 else size for size in shape])
    lengths = x.ragged
    if x.ndim == 2 and len(shape) < 2:  # of all elements, or of the tokens of one column
        lengths |= WIDTH
    return _reshape(x, shape, lengths)


def _reshape(x: Node, shape: Shape, lengths: int) -> Node:
    return x if shape == x.shape else Reshape(x, target=shape, lengths=lengths)


def squeeze(x: Node, dim: int | None = None, **habits: Never) -> Node:
    """Without its dimensions of size 1, or without `dim` if that has size 1, as `torch.squeeze`.

    Give `dim` where a sentence may have one token: (T, 1) with `dim=-1` is always (T,), and (1, D)
    with `dim=0` always (D,).

    Raises:
        ShapeError: x has no such dim, or is (0, 1): a vector without features.
    """
    if dim is None:
        if habits:
            raise not_an_argument("squeeze", habits)
        require_nodes("squeeze", x)
        return reshape(x, tuple([size for size in x.shape if size != 1]))
    place = 0 if axis("squeeze", x, dim, habits) == TOKENS else x.ndim - 1
    if x.shape[place] != 1:
        return x
    left = x.ragged if place == 0 else ROWS | (WIDTH if x.ragged & ROWS else 0)
    return _reshape(x, (*x.shape[:place], *x.shape[place + 1 :]), left)


def unsqueeze(x: Node, dim: int = 0, **habits: Never) -> Node:
    """With a dimension of size 1 more: (D,) -> (1, D), or (D, 1) for `dim=-1`; () -> (1,).

    Raises:
        ShapeError: x is a matrix, or has no such dim.
    """
    if habits:
        raise not_an_argument("unsqueeze", habits)
    require_nodes("unsqueeze", x)
    place = dim if dim >= 0 else dim + x.ndim + 1
    x.require(
        x.ndim < 2 and 0 <= place <= x.ndim,
        f"unsqueeze(dim={dim}) of a value of shape {x.shape}",
        "a value has at most two dimensions; dim is between -ndim - 1 and ndim",
        "give a vector or a scalar",
    )
    shape = (*x.shape[:place], 1, *x.shape[place:])
    is_column = x.ndim == 1 and place == 1
    return _reshape(x, shape, (ROWS if x.ragged & WIDTH else 0) if is_column else x.ragged)


def _extent(shape: Shape) -> tuple[int, int]:
    if len(shape) > 2 or any(size < 0 for size in shape):
        return -1, 1
    return shape[0] if len(shape) == 2 else 1, shape[-1] if shape else 1


def _nodes(what: str, inputs: Any, habits: Mapping[str, Any]) -> Sequence[Node]:
    """The nodes that are to be joined: at least one."""
    if habits:
        raise not_an_argument(what, habits)
    if isinstance(inputs, Node) or not isinstance(inputs, Iterable):
        raise DtypeError.at_caller(
            f"{what}: a list of nodes expected, got {type(inputs).__name__}.\n"
            f"  fix:  F.{what}([a, b])"
        )
    nodes: Sequence[Node] = inputs if isinstance(inputs, list | tuple) else list(inputs)
    require_nodes(what, *nodes)
    if not nodes:
        raise EmptyBatchError.at_caller(
            f"{what}: at least one input is needed.\n  fix:  skip what is empty before joining it"
        )
    return nodes
