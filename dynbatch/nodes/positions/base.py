"""`Positioned`: base of the types that compute from each token's position."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dynbatch.arguments import refused, size
from dynbatch.backend import Array
from dynbatch.errors import VocabularyError
from dynbatch.kernels.frequencies import MOST_POSITIONS
from dynbatch.kernels.positions import Angles
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import INDEX_BYTES, Operation
from dynbatch.ragged import Ragged

LAYOUTS = ("halves", "interleaved")


class Positioned(Operation):
    """Base of types whose token t has the position `offset` + t, or `positions[t]`.

    `function` is the name of the function that makes nodes of the type.
    """

    __slots__ = ("angles", "has_positions", "layout", "offset", "positions")
    given_attributes = ("positions",)
    function: ClassVar[str]
    angles: Angles
    layout: str
    offset: int
    positions: Array | None
    has_positions: bool

    def check_shape(self, *shapes: Shape) -> None:
        rows = self.inputs[0].rows
        count = rows if self.positions is None else self.positions.size
        if count != rows:
            self.refuse(
                f"{count} position{'' if count == 1 else 's'} for {rows} tokens",
                "each token has one position",
                "give as many positions as tokens, or an offset",
            )
        positions = self.positions
        last = self.offset + rows - 1 if positions is None else int(positions.max(initial=0))
        if last >= self.angles.longest:
            raise outside(self.function, last, self.angles.longest)

    def given(self, array: Array) -> tuple[Array]:
        return (positions_of(self.function, array),)

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        return super().index_bytes(batch) + INDEX_BYTES * batch.rows

    @classmethod
    def runs(cls, batch: Batch, x: Ragged) -> tuple[Array, Array]:
        """The beginning of each run of neighbouring positions among the rows, and its position.

        Each of the positions that were given is a run.
        """
        if not batch.first.has_positions:
            return x.offsets, batch.array("offset", np.int64)
        positions = batch.concat("positions")
        return np.arange(positions.size + 1), positions


def position_attributes(what: str, layout: str, offset: int, positions: Any) -> dict[str, Any]:
    """The attributes of a `Positioned` node, but for its angles.

    Raises:
        ArgumentError:   the layout is unknown, the offset is not a number of tokens, or it is given
            together with positions.
        ShapeError:      the positions are not a list of integers.
        VocabularyError: a position is out of range.
    """
    if layout not in LAYOUTS:
        raise refused(
            what, f"layout is {layout!r}", "a layout is one of " + ", ".join(LAYOUTS),
            'layout="halves" is that of Llama and Marian, "interleaved" that of GPT-J',
        )  # fmt: skip
    offset = size(what, "offset", offset, 0)
    if positions is None:
        return {"layout": layout, "offset": offset, "positions": None, "has_positions": False}
    if offset:
        raise refused(
            what, f"offset is {offset}, and positions are given",
            "an offset is the position of the first token, and the others follow it",
            "add the offset to the positions",
        )  # fmt: skip
    return {
        "layout": layout,
        "offset": 0,
        "positions": positions_of(what, positions),
        "has_positions": True,
    }


def positions_of(what: str, ids: Any) -> Array:
    """Given positions as int64, checked."""
    positions = as_ids(what, ids)
    for position in (positions.min(initial=0), positions.max(initial=0)):
        if not 0 <= position < MOST_POSITIONS:
            raise outside(what, position)
    return positions


def outside(what: str, position: int, longest: int = MOST_POSITIONS) -> VocabularyError:
    """The error for a position that no table holds."""
    fix = "count positions from the beginning of the sentence"
    if longest < MOST_POSITIONS:
        fix = "give a part of the text; beyond that dynamic scaling would turn every key anew"
    return VocabularyError.at_caller(
        f"{what}: position {position}.\n  rule: 0 <= position < {longest}\n  fix:  {fix}"
    )
