"""`BlockBatch`: calls of one block that run together, and what their sizes and arrays tell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.member_parts import (
    MembersPart,
    PortsPart,
    StepMembers,
    joined,
    places_of,
)
from dynbatch.blocks.call import BlockCall, ResultPlace
from dynbatch.blocks.operators import BlockOperator, Coefficients, Given, Site, Sized
from dynbatch.blocks.program import BlockProgram
from dynbatch.blocks.resumed_call import ResumedCall
from dynbatch.kernels.dropout import GOLDEN_RATIO, MODULUS, hash32
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.structure import Port


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
        self._parts: dict[int, MembersPart] = {}

    @cached_property
    def result_blocks(self) -> set[Any]:
        return {result.block.base for call in self.calls for result in call.places}

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

    def value(self, operator: int, name: str, call: int) -> Any:
        bound = self.program.operators[operator].bound[name]
        if isinstance(bound, Sized):
            return bound.at(self.calls[call].free)
        if isinstance(bound, Site):
            return self.stream_numbers(bound)[call]
        told = self.calls[call].told
        if isinstance(bound, Given):
            return told.given[bound.site][bound.place]
        return told.values[operator, name]

    def column(self, operator: int, name: str) -> Sequence[Any]:
        """An attribute of an operator: of each call; once where the operator is shared."""
        op = self.program.operators[operator]
        bound = op.bound.get(name, op)
        count = 1 if op.is_shared else len(self.calls)
        if bound is op:
            return [getattr(op.node, name)] * count
        if isinstance(bound, Site):
            return self.stream_numbers(bound)
        if isinstance(bound, Given):
            site, argument = bound
            return [call.told.given[site][argument] for call in self.calls[:count]]
        if isinstance(bound, Sized) and isinstance(bound.form, int):
            return self.numbers(bound.coefficients[0])[:count]
        return [self.value(operator, name, k) for k in range(count)]

    def stream_numbers(self, site: Site) -> list[int]:
        """32-bit numbers of an operator's random streams, one for each call."""
        known = self._streams.get(site)
        if known is None:
            calls = np.array([call.stream for call in self.calls], np.uint32)
            known = hash32(calls ^ np.uint32((site.number + 1) * GOLDEN_RATIO % MODULUS)).tolist()
            self._streams[site] = known
        return known

    def nodes_of(self, operator: int) -> Sequence[Node]:
        if operator < 0:
            return [call.inputs[-1 - operator] for call in self.calls]
        members, number = self.members[operator]
        return members.of_operator(number)

    def inputs_of(self, operators: Sequence[int], position: int) -> Sequence[Node]:
        """The nodes that a step's operators read at a position; of one step where they lie so."""
        read = [self.program.operators[k].inputs[position] for k in operators]
        if min(read) >= 0:
            parts = [self.part_of(operator) for operator in read]
            if None not in parts:
                nodes: Sequence[Node] = joined(cast("list[MembersPart]", parts))
                return nodes
        if self.program.operators[operators[0]].is_shared:  # and so is what they read
            return [self.nodes_of(operator)[0] for operator in read]
        return [node for operator in read for node in self.nodes_of(operator)]

    def part_read(self, operator: BlockOperator, position: int) -> MembersPart | None:
        read = operator.inputs[position]
        part = self.part_of(read) if read >= 0 else None
        if part is not None and isinstance(operator.node, Port):
            return PortsPart(part.members, part.first, part.end, operator.node.part)
        return part

    def part_of(self, operator: int) -> MembersPart | None:
        part = self._parts.get(operator)
        if part is None:
            members, number = self.members[operator]
            if members.columns:
                columns: MembersPart = members.columns[number]
                return columns
            if members.block is None or members.is_shared:
                return None
            first = number * len(self.calls)
            part = self._parts[operator] = MembersPart(members, first, first + len(self.calls))
        return part

    def bind(self, calls: Sequence[BlockCall]) -> None:
        """Be the batch of other calls, whose sizes are those of the last ones."""
        self.calls = calls
        self._streams.clear()

    def forget(self) -> None:
        """Cut the references that lead in circles."""
        self.calls = ()
        self.members.clear()
        self._parts.clear()

    def settle(self) -> None:
        """Tell the calls where their results lie."""
        program, calls = self.program, self.calls
        places: list[list[ResultPlace]] = []
        for operator in program.results:
            if operator < 0:
                places.append(places_of(self.nodes_of(operator)))
            else:
                members, number = self.members[operator]
                places.append(members.places(number))
        for k, call in enumerate(calls):
            call.places = [of_result[k] for of_result in places]
            call._block, call._position, call._start = call.places[program.main]


class ResumedBatch(BlockBatch):
    """The next rows of many sentences, which are one node of the graph."""

    def __init__(self, call: ResumedCall) -> None:
        super().__init__([call] * len(call.lengths))
        self._call = call
        # What a sentence is given was read before: of the sizes, only that of its ids matters.
        of_one = self.program.free_of((*[0] * (len(self.program.pattern) - 1), 1))
        self._sizes = np.outer(call.lengths, of_one)

    def column(self, operator: int, name: str) -> Sequence[Any]:
        """An attribute of an operator: of each sentence, or of all together."""
        told = self._told(operator, name)
        return super().column(operator, name) if told is None else told

    def value(self, operator: int, name: str, call: int) -> Any:
        told = self._told(operator, name)
        if told is not None:
            return told[call if len(told) == len(self.calls) else 0]
        bound = self.program.operators[operator].bound[name]
        assert isinstance(bound, Sized)
        return bound.at(self._sizes[call].tolist())

    def _told(self, operator: int, name: str) -> Sequence[Any] | None:
        """The values that a call sets at each step; None for those that follow from sizes."""
        bound = self.program.operators[operator].bound.get(name, name)
        if isinstance(bound, Given):
            return self._call.made[bound.site][bound.place]
        return self._call.columns[operator, name] if bound is None else None

    def settle(self) -> None:
        members, number = self.members[self.program.results[self.program.main]]
        (first,) = places_of([members[number * len(self.calls)]])
        call = self._call
        call.places = [first]
        call._block, call._position, call._start = first
