"""Parts of a value by Python's keys: slices, single rows, one element."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterable
from math import prod
from typing import Any, Never

import numpy as np

from dynbatch.errors import DtypeError, VocabularyError
from dynbatch.nodes.arguments import require_nodes
from dynbatch.nodes.batch import Batch, sizes_of
from dynbatch.nodes.node import WIDTH, Node, Owner, Shape
from dynbatch.nodes.shape.axes import TOKENS, axis
from dynbatch.nodes.shape.gather import gather_rows
from dynbatch.nodes.shape.reshape import reshape, unsqueeze
from dynbatch.nodes.shape.structure import Column, Rectangles, Structural
from dynbatch.nodes.signature import intern_signature
from dynbatch.nodes.syntax.registry import FUNCTIONS

Part = int | builtins.slice | None


class Slice(Structural):
    """Some tokens and some features of x, as Python's slices mean them.

    `tokens` and `features` are a slice, one index, or None for all. An index into the tokens drops
    the dimension: a row is a vector. One feature of a vector is a scalar, one of every token is a
    column (T, 1).

    Shape:  (T, D) -> (T', D'), (D',) for one token;  (D,) -> (D',), () for one feature.
    Batches with:  every other Slice, whatever the shapes and keys.
    """

    __slots__ = ("features", "taken", "tokens")
    tokens: Part
    features: Part
    taken: tuple[range, range]

    def is_rowwise(self) -> bool:
        return self.tokens is None

    def follows_sizes(self) -> bool:
        return self.tokens is None and not self.inputs[0].ragged & WIDTH

    def infer_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        tokens, features, is_matrix = self.tokens, self.features, len(shape) == 2
        if not shape or not (is_matrix or tokens is None):
            self.refuse(
                f"a value of shape {shape} has no {'tokens' if shape else 'parts'}",
                "tokens are taken from a matrix (T, D), features from a matrix or a vector",
                "index a vector by its features alone, as x[2:5]",
            )
        length, width = shape[0] if is_matrix else 1, shape[-1]
        rows = range(length) if tokens is None else self._range(tokens, length, "token")
        columns = range(width) if features is None else self._range(features, width, "feature")
        if columns.step != 1 or not (columns or self.inputs[0].ragged & WIDTH):
            self.refuse(
                f"features {columns.start}:{columns.stop}:{columns.step} of {width}",
                "at least one feature is taken, and features are adjacent",
                "slice features without a step; tokens may have one",
            )
        self.taken = (rows, columns)
        if is_matrix and not isinstance(tokens, int):
            return (len(rows), len(columns))
        return () if isinstance(features, int) else (len(columns),)

    def _range(self, part: int | builtins.slice, size: int, what: str) -> range:
        if isinstance(part, int):
            if not -size <= part < size:
                problem, rule = f"{what} {part} of {size}", f"{-size} <= index < {size}"
                fix = f"check the number of {what}s first"
                self.refuse(problem, rule, fix, VocabularyError)
            return range(part % size, part % size + 1)
        return range(size)[part]

    @classmethod
    def rectangles(cls, batch: Batch) -> Iterable[Rectangles]:
        for part in batch.by_operator():
            sources = part.input_nodes(0)
            lengths, widths = sizes_of(sources)
            row, step = _first_of(part.column("tokens"), lengths)
            column, _ = _first_of(part.column("features"), widths)
            if part.lengths == lengths and (step == 1 or step == [1] * len(lengths)):
                yield Rectangles(sources, part.nodes, None, part.widths, source_column=column)
            else:
                shape = part.lengths, part.widths
                yield Rectangles(sources, part.nodes, *shape, row, step, column)

    @classmethod
    def moves_all_of(cls, batch: Batch) -> bool:
        """Whether the batch cuts all of what it reads into columns, as `split` does in a block."""
        parts = batch.by_operator()
        if len(parts) < 2:
            return False
        cuts: dict[Any, list[tuple[int, int]]] = {}
        for r in cls.rectangles(batch):
            block = getattr(r.sources, "block", None)  # where they are nodes of one step
            column, widths = r.source_column, r.width
            if r.rows is not None or block is None or not isinstance(column, int):
                return False
            width = widths if isinstance(widths, int) else widths[0]
            if not isinstance(widths, int) and widths.count(width) < len(widths):
                return False
            place = block, getattr(r.sources, "first", 0)
            cuts.setdefault(place, []).append((column, width))
        return all([is_all(sorted(found), block.width) for (block, _), found in cuts.items()])


def is_all(parts: Iterable[tuple[int, int]], size: int) -> bool:
    """Whether parts, each a start and a size, follow each other from 0 to the whole size."""
    end = 0
    for start, elements in parts:
        if start != end:
            return False
        end += elements
    return end == size


def _first_of(parts: list[Part], sizes: list[int]) -> tuple[Column, Column]:
    """The first of the tokens or features that each part takes of so many, and the step."""
    if parts.count(parts[0]) == len(parts) and (
        parts[0] is None or sizes.count(sizes[0]) == len(sizes)
    ):
        return _first(parts[0], sizes[0])
    found = list(map(_first, parts, sizes))
    return [first for first, _ in found], [step for _, step in found]


def _first(part: Part, size: int) -> tuple[int, int]:
    if part is None:
        return 0, 1
    if isinstance(part, int):
        return part % size, 1
    first, _, step = part.indices(size)
    return first, step


class Row(Slice):
    """One token of a sentence, x[i]; cheap to make, since a loop over the words makes many.

    The row is copied only if it is kept or a node reads it: a call of a cell reads it in place. See
                                                             `cells.calls.table` for its further
                                                             attributes.
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

    @property
    def graph(self) -> Owner:  # type: ignore[override]
        return self.source.graph

    @property
    def phase(self) -> int:  # type: ignore[override]
        return self.source.phase

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
new_row = Row.__new__


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


def pick(x: Node, id: int) -> Node:
    """One row of a sentence as a vector, or one element of a vector as a scalar: `x[id]`.

    Raises:
        VocabularyError: `id` is out of range.
    """
    require_nodes("pick", x)
    return getitem(x, _index(id, id))


def getitem(x: Node, key: Any) -> Node:
    """`x[key]`: an index or slice of tokens (of features, for a vector), or ids of rows.

    `x[tokens, features]` selects both. A mask, T booleans, selects the rows where it is True.
    `...` stands for the remaining dimensions, and None gives a vector one more dimension of size 1:
    `x[..., None]` is `F.unsqueeze(x, -1)`.

    Raises:
        VocabularyError: an index is out of range.
        ShapeError:      x is a scalar, has fewer dimensions than the key, or another length than
                         the mask.
        DtypeError:      the key is neither index, slice, ids, mask, nor a pair of the first two.
    """
    if x.ndim > 2:
        return _along_first(x, key)
    if isinstance(key, list | np.ndarray) and np.ndim(key) == 1:
        return gather_rows(x, _ids_of(x, key))
    if key is None or key is Ellipsis or isinstance(key, tuple):
        return _parts(x, key if isinstance(key, tuple) else (key,))
    if x.ndim == 2:
        token = _part(key)
        if isinstance(token, int) and -x.rows <= token < x.rows:
            return row_of(x, token % x.rows)
        return Slice(x, tokens=token, features=None)
    return Slice(x, tokens=None, features=_part(key))


def _along_first(x: Node, key: Any) -> Node:
    """`x[key]` of more than two dimensions: an index, a slice, ids or a mask of the first one."""
    if key is None or key is Ellipsis or isinstance(key, tuple):
        x.refuse(
            f"a key {key!r} for a value of shape {x.shape}",
            "an index, a slice, ids or a mask, along the first dimension",
            "F.permute another dimension to the front; F.unsqueeze adds one",
        )
    part = getitem(reshape(x, (x.shape[0], prod(x.shape[1:]))), key)
    return reshape(part, (*part.shape[:-1], *x.shape[1:]))


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
    if x.ndim != 2 or mask.size != x.rows:
        x.refuse(
            f"a mask of {mask.size} for a value of shape {x.shape}",
            "a mask has one boolean for each token of a matrix (T, D)",
            "give a mask of this sentence's own length; select features with slices",
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
        fix = "a key must be known when x is indexed: x[key.value.astype(int)] runs the graph"
    return DtypeError.at_caller(
        f"a node is indexed by an integer, a slice or a list of ids, not {key!r}.\n  fix:  {fix}"
    )


def row_of(x: Node, row: int) -> Node:
    """Row number `row` of a matrix, from 0."""
    graph = x.graph
    if graph.is_trace:
        return Slice(x, tokens=row, features=None)
    node = new_row(Row)
    node.origin = node.source = x
    node.row = node.token = row
    node.form_id = graph.form_ids[x.width]
    node.ready = x.phase + 1
    node._block = None
    node.index = graph.add_light(node)
    return node


FUNCTIONS.update(getitem=getitem, row=row_of)
