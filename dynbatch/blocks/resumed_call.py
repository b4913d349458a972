"""`ResumedCall`: the next rows of many sentences, as one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynbatch.backend import Array
from dynbatch.blocks.call import BlockCall
from dynbatch.blocks.operators import NOTHING
from dynbatch.blocks.program import BlockProgram
from dynbatch.nodes.node import ROWS, Owner


class ResumedCall(BlockCall):
    """A block that goes on with N sentences; its value (N, D) has a result of each.

    What its operators read beside their inputs may be told anew before the node runs again; the
    sentences' numbers of rows are those that it was made with.

    Attributes:
        lengths: (N,) rows of each sentence.
        columns: attributes by operator and name: one of each sentence, or one of all.
        made:    what each operator that takes the ids makes of them, likewise.
    """

    __slots__ = ("columns", "lengths", "made")
    lengths: Array
    columns: Mapping[tuple[int, str], Sequence[Any]]
    made: Sequence[Sequence[Sequence[Any]]]

    @classmethod
    def of(cls, program: BlockProgram, lengths: Array, graph: Owner) -> ResumedCall:
        call = cls.__new__(cls)
        call.program, call.lengths, call.arrays = program, lengths, ()
        call.free, call.told, call.stream = (0,) * len(program.free), NOTHING, 0
        call.columns, call.made = {}, ()
        main = program.operators[program.results[program.main]].node
        call.complete_as((), graph, 2, len(lengths), main.width, ROWS, program.sig)
        return call
