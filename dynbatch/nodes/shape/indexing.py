"""Parts of a value: slices, single rows, rows by integer ids, and the transpose."""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Never

import numpy as np

from dynbatch.errors import DtypeError, VocabularyError
from dynbatch.kernels import arrays
from dynbatch.kernels.move import row_index
from dynbatch.kernels.segment import gather_rows as gather_kernel
from dynbatch.kernels.segment import scatter_rows
from dynbatch.nodes.arguments import as_ids, require_nodes
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH, Node, Shape, same_width
from dynbatch.nodes.operation import INDEX_BYTES, Operation
from dynbatch.nodes.shape.axes import TOKENS, axis
from dynbatch.nodes.shape.structure import Rectangle, Structural, unsqueeze
from dynbatch.nodes.signature import intern_signature
from dynbatch.nodes.syntax.registry import FUNCTIONS
from dynbatch.parameter import Array
from dynbatch.ragged import Ragged

Part = int | builtins.slice | None


class Slice(Structural):
    """Some tokens and some features of x, as Python's slices mean them.

    `tokens` and `features` are a slice, one index, or None for all. An index into the tokens drops
    the dimension: a row is a vector. One feature of a vector is a scalar, one of every token is a
    column (T, 1).

    Shape:  (T, D) -> (T', D'), (D',) for one token;  (D,) -> (D',), () for one feature.
    Batches with:  every other Slice, whatever is cut from what.
    """

    __slots__ = ("features", "taken", "tokens")
    tokens: Part
    features: Part
    taken: tuple[range, range]

    def is_rowwise(self) -> bool:
        return self.tokens is None

    def infer_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        self.require(
            bool(shape) and (len(shape) == 2 or self.tokens is None),
            f"a value of shape {shape} has no {'tokens' if shape else 'parts'}",
            "tokens are cut from a matrix (T, D), features from a matrix or a vector",
            "index a vector by its features alone, as x[2:5]",
        )
        rows = self._range(self.tokens, shape[0] if len(shape) == 2 else 1, "token")
        columns = self._range(self.features, shape[-1], "feature")
        self.require(
            (len(columns) > 0 or bool(self.inputs[0].ragged & WIDTH)) and columns.step == 1,
            f"features {columns.start}:{columns.stop}:{columns.step} of {shape[-1]}",
            "at least one feature is taken, and neighbours",
            "slice features without a step; tokens may have one",
        )
        self.taken = (rows, columns)
        if len(shape) == 2 and not isinstance(self.tokens, int):
            return (len(rows), len(columns))
        return () if isinstance(self.features, int) else (len(columns),)

    def _range(self, part: Part, size: int, what: str) -> range:
        if isinstance(part, int):
            if not -size <= part < size:
                problem, rule = f"{what} {part} of {size}", f"{-size} <= index < {size}"
                fix = f"check the number of {what}s first"
                self.require(False, problem, rule, fix, VocabularyError)
            return range(part % size, part % size + 1)
        return range(size) if part is None else range(size)[part]

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangle]:
        for node in batch.nodes:
            (x,) = node.inputs
            rows, columns = node.taken
            yield Rectangle(
                x, rows.start, rows.step, columns.start, node, 0, 1, 0, len(rows), len(columns)
            )


class Row(Slice):
    """One token of a sentence, x[i]: made fast, since a step-by-step loop makes one a word.

    It is cut only if something reads it: a call of a cell reads the row where it lies, unless it is
    to be kept.
    See `cells.calls.table` for the attributes beside those of a node.
    """

    __slots__ = ("form_id", "origin", "ready", "row", "source", "token")
    ndim = 1
    rows = 1
    first = 0
    features = None
    origin: Node
    row: int
    form_id: int
    ready: int
    source: Node
    token: int

    def __init__(self, origin: Node, row: int) -> None:
        graph = self.graph = origin.graph
        self.origin = self.source = origin
        self.row = self.token = row
        try:
            self.form_id = origin.row_form
        except AttributeError:
            self.form_id = origin.row_form = graph.form_ids.of(origin.width)
        self.phase = origin.phase
        self.ready = origin.phase + 1
        self._block = None
        self.index = graph.add_light(self)

    @property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (self.source,)

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.source.width

    @property
    def ragged(self) -> int:  # type: ignore[override]
        return self.source.ragged

    def keep(self) -> Node:
        self.origin, self.row = self, 0
        return super().keep()

    @property
    def sig(self) -> int:  # type: ignore[override]
        return SLICE

    @property
    def tokens(self) -> int:  # type: ignore[override]
        return self.token

    @property
    def taken(self) -> tuple[range, range]:  # type: ignore[override]
        return range(self.token, self.token + 1), range(self.source.width)

    def signature(self) -> int:
        return SLICE

    def rebuild(self, *inputs: Node) -> Node:
        return Slice(inputs[0], tokens=self.token, features=None)


SLICE = intern_signature((Slice,))


class GatherRows(Operation):
    """Rows of x by their numbers, y_m = x_{ids_m}; any order, duplicates allowed.

    Shape:  x (T, D), ids (M,) -> (M, D).  A vector counts as one row.
    Batches with:  every other GatherRows of its width, which may be a length.
    Backward:  dx_i = Σ dy_m over the m with ids_m = i.
    """

    __slots__ = ("ids",)
    any_length = True
    ids: Array

    def infer_ragged(self) -> int:
        return ROWS | (self.inputs[0].ragged & WIDTH)

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        of_elements = 0 if same_width(batch.nodes) else INDEX_BYTES * batch.elements
        return super().index_bytes(batch) + of_elements

    def infer_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        self.require(
            bool(shape),
            "a scalar has no rows",
            "rows are gathered from a matrix (T, D) or a vector (D,)",
            "F.stack scalars to a vector first",
        )
        rows = shape[0] if len(shape) == 2 else 1
        wrong = np.flatnonzero((self.ids < 0) | (self.ids >= rows))
        if wrong.size:
            place = int(wrong[0])
            problem = f"row {self.ids[place]} at position {place} of {self.ids.size} ids"
            fix = "number the sentence's own tokens"
            self.require(False, problem, f"0 <= id < {rows}", fix, VocabularyError)
        return (self.ids.size, shape[-1])

    @classmethod
    def packed_ids(cls, batch: Batch, x: Ragged) -> Array:
        """Ids as rows of the packed x, or of its elements where widths differ."""
        sizes = batch.sizes("ids")
        ids: Array = batch.concat("ids")
        if x.widths is None:
            ids = ids + np.repeat(x.offsets[:-1], sizes)
            return ids
        widths = np.repeat(x.widths, sizes)
        return row_index(np.repeat(x.starts[:-1], sizes) + ids * widths, widths)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        gather_kernel(xs[0].table, cls.packed_ids(batch, xs[0]), y.table)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            scatter_rows(dy.table, cls.packed_ids(batch, dx), dx.table)


class Transpose(Operation):
    """y = xᵀ. Its width is a length: what reads it batches all the same if it takes `any_length`.

    Shape:  (T, D) -> (D, T).
    Batches with:  every other Transpose.
    """

    __slots__ = ()
    any_shape = True

    def infer_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        self.require(
            len(shape) == 2,
            f"shape {shape} has no transpose",
            "a matrix (T, D)",
            "F.unsqueeze a vector first",
        )
        return shape[::-1]

    def infer_ragged(self) -> int:
        (x,) = self.inputs
        return (ROWS if x.ragged & WIDTH else 0) | (WIDTH if x.ragged & ROWS else 0)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        shapes = [node.inputs[0].shape for node in batch.nodes]
        arrays.transpose_segments(xs[0].flat, shapes, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            shapes = [node.shape for node in batch.nodes]
            arrays.transpose_segments(dy.flat, shapes, dxs[0].flat)


def slice(
    x: Node,
    start: int | None = None,
    stop: int | None = None,
    dim: int = -1,
    step: int = 1,
    **habits: Never,
) -> Node:
    """x from `start` to before `stop` along `dim`; negative numbers count from the end.

    `x[start:stop]` is the same for a sentence's tokens and a vector's features, `x[:, start:stop]`
    for a sentence's features. Only tokens have a step.

    Raises:
        ShapeError: x has no such dim, or no feature would be left.
    """
    part = builtins.slice(start, stop, step)
    if axis("slice", x, dim, habits) == TOKENS:
        return Slice(x, tokens=part, features=None)
    return Slice(x, tokens=None, features=part)


def split(x: Node, sizes: int | Sequence[int], dim: int = -1, **habits: Never) -> list[Node]:
    """x cut along `dim` into parts: the reverse of `concat`, as `torch.split`.

    Args:
        sizes: of the parts, summing to the whole; or one size, with a smaller part at the end.

    Raises:
        ShapeError: the sizes do not sum to the number of tokens or features.
    """
    total = x.shape[0] if axis("split", x, dim, habits) == TOKENS else x.width
    if isinstance(sizes, int):
        x.require(
            sizes > 0 or total == sizes == 0,
            f"split of {total} into parts of {sizes}",
            "a part has a positive size",
            "give the size of one part, or a list of sizes",
        )
        sizes = [min(sizes, total - at) for at in range(0, total, sizes)] if total else [0]
    x.require(
        sum(sizes) == total,
        f"split of {total} into {list(sizes)}, which sum to {sum(sizes)}",
        "the parts make up the whole",
        "change the sizes, or F.slice what is wanted",
    )
    ends = itertools.accumulate(sizes, initial=0)
    return [slice(x, start, stop, dim) for start, stop in itertools.pairwise(ends)]


def chunk(x: Node, chunks: int, dim: int = -1, **habits: Never) -> list[Node]:
    """x cut along `dim` into at most `chunks` equal parts, the last one smaller, as `torch.chunk`.

    Raises:
        ShapeError: `chunks` is not positive, or x has no such dim.
    """
    total = x.shape[0] if axis("chunk", x, dim, habits) == TOKENS else x.width
    x.require(
        chunks > 0,
        f"{chunks} chunks",
        "there is at least one chunk",
        "give the number of parts; F.split takes their size",
    )
    return split(x, -(-total // chunks) if total else [0] * chunks, dim)


def gather_rows(x: Node, ids: Any) -> Node:
    """The rows of x with these numbers, (M, D), as `torch.index_select(x, 0, ids)`.

    Args:
        ids: M integers, 0 <= id < T; any order, duplicates allowed.

    Raises:
        VocabularyError: an id is not a row of x; names the first one and its position.
    """
    return GatherRows(x, ids=as_ids("gather_rows", ids))


def pick(x: Node, id: int) -> Node:
    """One row of a sentence as a vector, or one element of a vector as a scalar: `x[id]`.

    Raises:
        VocabularyError: `id` is out of range.
    """
    require_nodes("pick", x)
    return getitem(x, _index(id, id))


def repeat(x: Node, times: int) -> Node:
    """The rows of x `times` over, (T, D) -> (times · T, D); a vector becomes `times` equal rows.

    As `x.repeat(times, 1)` in PyTorch.

    Raises:
        ShapeError: `times` is negative, or x is a scalar.
    """
    require_nodes("repeat", x)
    x.require(
        times >= 0,
        f"repeat({times})",
        "a value is repeated a number of times, or 0",
        "give times >= 0",
    )
    return GatherRows(x, ids=np.tile(np.arange(x.rows), times))


def transpose(x: Node) -> Node:
    """xᵀ, (T, D) -> (D, T).

    Raises:
        ShapeError: x is not a matrix.
    """
    return Transpose(x)


def getitem(x: Node, key: Any) -> Node:
    """`x[key]`: an index or slice of tokens (of features, for a vector), or ids of rows.

    `x[tokens, features]` cuts both ways. A mask, T booleans, stands for the ids where it is True.
    `...` is all that the rest of the key leaves, and None a dimension of size 1 more of a vector:
    `x[..., None]` is `F.unsqueeze(x, -1)`.

    Raises:
        VocabularyError: an index is out of range.
        ShapeError:      x is a scalar, has fewer dimensions than the key, or another length than
                         the mask.
        DtypeError:      the key is neither index, slice, ids, mask, nor a pair of the first two.
    """
    if isinstance(key, list | np.ndarray) and np.ndim(key) == 1:
        return gather_rows(x, _ids_of(x, key))
    if key is None or key is Ellipsis or isinstance(key, tuple):
        return _parts(x, key if isinstance(key, tuple) else (key,))
    if x.ndim == 2:
        token = _part(key)
        if isinstance(token, int) and -x.rows <= token < x.rows:
            return _row(x, token % x.rows)
        return Slice(x, tokens=token, features=None)
    return Slice(x, tokens=None, features=_part(key))


def _parts(x: Node, key: tuple[Any, ...]) -> Node:
    """`x[key]` for a key of several parts: one for each dimension, `...` and None."""
    rest = [place for place, part in enumerate(key) if part is Ellipsis]
    more = [place for place, part in enumerate(key) if part is None]
    if len(rest) > 1 or len(more) > 1 or len(key) - len(rest) - len(more) > 2:
        raise _not_a_key(key)
    if rest:
        whole = [builtins.slice(None)] * (x.ndim - (len(key) - 1 - len(more)))
        return _parts(x, (*key[: rest[0]], *whole, *key[rest[0] + 1 :]))
    if more:
        before, behind = key[: more[0]], key[more[0] + 1 :]
        kept = [part for part in before if isinstance(part, builtins.slice)]
        return unsqueeze(_parts(x, (*before, *behind)), len(kept))
    if len(key) == 2:
        return Slice(x, tokens=_part(key[0]), features=_part(key[1]))
    return getitem(x, key[0]) if key else x


def _ids_of(x: Node, key: Any) -> Any:
    """Ids of rows, from ids or from a mask."""
    mask = np.asarray(key)
    if mask.dtype != bool:
        return key
    x.require(
        mask.size == x.rows and x.ndim == 2,
        f"a mask of {mask.size} for a value of shape {x.shape}",
        "a mask has one boolean for each token of a matrix (T, D)",
        "make the mask of this sentence's own length; features are cut with slices",
    )
    return np.flatnonzero(mask)


def _part(key: Any) -> Part:
    if not isinstance(key, builtins.slice):
        return _index(key, key)
    for bound in (key.start, key.stop, key.step):
        if bound is not None:
            _index(bound, key)
    if key.step == 0:
        raise _not_a_key(key)
    return key


def _index(part: Any, key: Any) -> int:
    if not isinstance(part, bool | np.bool_):
        try:
            return operator.index(part)
        except TypeError:
            pass
    raise _not_a_key(key)


def _not_a_key(key: Any) -> DtypeError:
    fix = "x[3], x[2:5], x[:, :64] or x[[0, 2, 2]]; a slice's step is not 0"
    if isinstance(key, Node):
        fix = "a key is known when the graph is built: x[key.value.astype(int)], which runs it"
    return DtypeError.at_caller(
        f"a node is indexed by an integer, a slice or a list of ids, not {key!r}.\n  fix:  {fix}"
    )


def _row(x: Node, row: int) -> Node:
    return Slice(x, tokens=row, features=None) if x.graph.is_trace else Row(x, row)


FUNCTIONS.update(getitem=getitem, row=_row)
