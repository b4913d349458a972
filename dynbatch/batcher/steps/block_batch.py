"""`BlockBatch`: calls of one block that run together, as a table with a row for each call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.member_parts import MembersPart, StepMembers, places_of
from dynbatch.blocks.call import BlockCall
from dynbatch.blocks.operators import Coefficients, Given, Site, Sized
from dynbatch.blocks.program import BlockProgram
from dynbatch.blocks.resumed_call import ResumedCall
from dynbatch.kernels.dropout import GOLDEN_RATIO, MODULUS, hash32
from dynbatch.nodes.node import Node

ALL = slice(None)

Told: TypeAlias = "Given | None"
"""The origin of an attribute that follows neither from sizes nor from a random stream."""


class BlockBatch:
    """Calls of one program that run together.

    Attributes:
        calls:   the calls.
        members: for each operator the step's nodes that it is among, and which of the operators
            there it is.
    """

    def __init__(self, calls: Sequence[BlockCall]) -> None:
        self.calls = calls
        self.program: BlockProgram = calls[0].program
        self.members: dict[int, tuple[StepMembers, int]] = {}
        self._numbers: dict[Coefficients, list[int]] = {}
        self._streams: dict[Site, list[int]] = {}

    # Columns --------------------------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> Array:
        shape = len(self.calls), len(self.program.free)
        return np.array([call.free for call in self.calls], np.int64).reshape(shape)

    def numbers(self, coefficients: Coefficients) -> list[int]:
        known = self._numbers.get(coefficients)
        if known is None:
            *slopes, constant = coefficients
            known = (self._sizes @ np.array(slopes, np.int64) + constant).tolist()
            self._numbers[coefficients] = known
        return known

    def rows_and_widths(self, operator: int) -> tuple[list[int], list[int]]:
        """Rows and widths of an operator's values, for each call; once where it is shared."""
        op = self.program.operators[operator]
        if op.rows is None or op.width is None:
            sizes = [call.size_of(operator) for call in self.calls]
            return [rows for rows, _ in sizes], [width for _, width in sizes]
        rows, widths = self.numbers(op.rows), self.numbers(op.width)
        return (rows[:1], widths[:1]) if op.is_shared else (rows, widths)

    def column(self, operator: int, name: str, calls: slice = ALL) -> Sequence[Any]:
        """An attribute of an operator: of each call; once where the operator is shared."""
        op = self.program.operators[operator]
        if name not in op.bound:
            count = 1 if op.is_shared else len(self.calls[calls])
            return [getattr(op.node, name)] * count
        bound = op.bound[name]
        if isinstance(bound, Site):
            return self._stream_numbers(bound)[calls]
        if isinstance(bound, Sized):
            if isinstance(bound.form, int):
                return self.numbers(bound.coefficients[0])[calls]
            return [bound.at(free) for free in self._sizes[calls].tolist()]
        return self._told(operator, name, bound, calls)

    def _told(self, operator: int, name: str, bound: Told, calls: slice) -> Sequence[Any]:
        told = [call.told for call in self.calls[calls]]
        if bound is None:
            return [each.values[operator, name] for each in told]
        return [each.given[bound.site][bound.place] for each in told]

    def _stream_numbers(self, site: Site) -> list[int]:
        """32-bit numbers of an operator's random streams, one for each call."""
        known = self._streams.get(site)
        if known is None:
            calls = np.array([call.stream for call in self.calls], np.uint32)
            known = hash32(calls ^ np.uint32((site.number + 1) * GOLDEN_RATIO % MODULUS)).tolist()
            self._streams[site] = known
        return known

    # Nodes ----------------------------------------------------------------------------------------

    def part_of(self, operator: int) -> MembersPart | None:
        """The nodes of an operator, where they lie side by side."""
        if operator < 0:
            return None
        members, number = self.members[operator]
        return members.part(number)

    def nodes_of(self, operator: int) -> Sequence[Node]:
        """The value of an operator in each call, or the node argument k at -1 - k."""
        part = self.part_of(operator)
        if part is not None:
            return part
        return [self.node_of(operator, call) for call in range(len(self.calls))]

    def node_of(self, operator: int, call: int) -> Node:
        if operator < 0:
            return self.calls[call].inputs[-1 - operator]
        members, number = self.members[operator]
        node: Node = members[number * members.per_operator + call % members.per_operator]
        return node

    @cached_property
    def result_blocks(self) -> set[Any]:
        return {result.block.base for call in self.calls for result in call.places}

    def settle(self) -> None:
        """Tell the calls where their results lie."""
        columns = [places_of(self.nodes_of(operator)) for operator in self.program.results]
        for call, *places in zip(self.calls, *columns, strict=True):
            call.lie_at(places)

    def bind(self, calls: Sequence[BlockCall]) -> None:
        """Be the batch of other calls, whose sizes are those of the last ones."""
        self.calls = calls
        self._streams.clear()

    def forget(self) -> None:
        """Cut the references that lead in circles."""
        self.calls = ()
        self.members.clear()


class ResumedBatch(BlockBatch):
    """The next rows of many sentences, which are one node of the graph."""

    def __init__(self, call: ResumedCall) -> None:
        super().__init__([call] * len(call.lengths))
        self._call = call
        # What a sentence is given was read before: of the sizes, only that of its ids matters.
        of_one = self.program.free_of((*[0] * (len(self.program.pattern) - 1), 1))
        self._sizes = np.outer(call.lengths, of_one)

    def _told(self, operator: int, name: str, bound: Told, calls: slice) -> Sequence[Any]:
        """The values that a call sets at each step: of each sentence, or of all together."""
        call = self._call
        if bound is None:
            told = call.columns[operator, name]
        else:
            told = call.made[bound.site][bound.place]
        return told if len(told) == 1 else told[calls]

    def settle(self) -> None:
        nodes = self.nodes_of(self.program.results[self.program.main])
        self._call.lie_at(places_of(nodes[:1]))
