"""`Slice`: some tokens and some features of a value."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

from dynbatch.errors import VocabularyError
from dynbatch.nodes.batch import Batch, sizes_of
from dynbatch.nodes.node import WIDTH, Shape
from dynbatch.nodes.shape.structure import Column, Rectangles, Structural

Part = int | builtins.slice | None
"""The part of one dimension that is taken; None for all."""


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
        for r in cls.moves(batch):
            block = getattr(r.sources, "block", None)  # where they are nodes of one step
            column, widths = r.source_column, r.width
            if r.rows is not None or block is None or not isinstance(column, int):
                return False
            width = widths if isinstance(widths, int) else widths[0]
            if not isinstance(widths, int) and widths.count(width) < len(widths):
                return False
            origin = block, getattr(r.sources, "first", 0)
            cuts.setdefault(origin, []).append((column, width))
        return all([covers(sorted(cut), block.width) for (block, _), cut in cuts.items()])


def covers(parts: Iterable[tuple[int, int]], size: int) -> bool:
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
    firsts_and_steps = list(map(_first, parts, sizes))
    return [first for first, _ in firsts_and_steps], [step for _, step in firsts_and_steps]


def _first(part: Part, size: int) -> tuple[int, int]:
    if part is None:
        return 0, 1
    if isinstance(part, int):
        return part % size, 1
    first, _, step = part.indices(size)
    return first, step
