"""`BlockCall`: a block applied to one sentence, as one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dynbatch.backend import Array
from dynbatch.blocks.arguments import Arguments
from dynbatch.blocks.operators import Told
from dynbatch.blocks.program import BlockProgram
from dynbatch.blocks.sizes import Sizes
from dynbatch.nodes.node import Node, Owner
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.signature import intern_signature
from dynbatch.parameter import Parameter


class ResultPlace(NamedTuple):
    """The place of a result: the packed values of its operator, its position and first element."""

    block: Any
    position: int
    start: int


class BlockCall(Operation):
    """A block applied to one sentence; its value is the first result that the block computes.

    A batch of calls runs as the batches of its operators. Each block has a subtype with its own
    name.

    Shape:  what the block is given -> its first result's.
    Batches with:  every other call of the same program.
    Kernels:  those of the operators in the block, a batch of them after the other.

    Attributes:
        program:  the operators.
        arrays:   that it was given.
        free:     its sizes that vary.
        told:     what does not follow from these sizes.
        stream:   where it is random, its number.
        places:   of all results, once it is in a batch.
    """

    __slots__ = ("arrays", "free", "places", "program", "stream", "told")
    any_length = True
    is_sentence = True
    program: BlockProgram
    arrays: Sequence[Array]
    free: Sizes
    stream: int
    told: Told
    places: Sequence[ResultPlace]

    def size_of(self, operator: int) -> tuple[int, int]:
        return self.program.operators[operator].size_at(self.free, self.told, operator)

    def lie_at(self, places: Sequence[ResultPlace]) -> None:
        """Have its results lie there, and its own value where that of its main result does."""
        self.places = places
        self._block, self._position, self._start = places[self.program.main]

    @property
    def elements(self) -> int:
        sizes = [self.size_of(operator) for operator in range(len(self.program.operators))]
        return sum([rows * width for rows, width in sizes])

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        return ["program"]

    def content(self) -> bytes:
        return b"".join([array.tobytes() for array in self.arrays])

    def all_parameters(self) -> tuple[Parameter, ...]:
        return self.program.all_parameters

    def parameters(self) -> tuple[Parameter, ...]:
        return tuple([p for p in self.program.all_parameters if not p.frozen])


class BlockResult(Operation):
    """A further result of a block that returns several.

    Shape:  a block's call -> that result's.
    Batches with:  every other one.
    Kernels:  none: it is a view of what the block left.
    """

    __slots__ = ("number",)
    any_length = True
    number: int

    @property
    def call(self) -> BlockCall:
        (call,) = self.inputs
        assert isinstance(call, BlockCall)
        return call

    def signature(self) -> int:
        return RESULT

    def take_place(self) -> None:
        self._block, self._position, self._start = self.call.places[self.number]


RESULT = intern_signature((BlockResult,))


def results_of(
    call_type: type[BlockCall],
    program: BlockProgram,
    arguments: Arguments,
    free: Sizes,
    told: Told,
    graph: Owner,
) -> Any:
    """The results of a new call: a node, or a tuple of nodes as the function returned it."""
    made: dict[int, Node] = {-1 - k: x for k, x in enumerate(arguments.nodes)}
    if program.main >= 0:
        call = call_type.__new__(call_type)
        call.program, call.arrays, call.free, call.told = program, arguments.arrays, free, told
        call.stream = 0
        position = program.results[program.main]
        (rows, width), main = call.size_of(position), program.operators[position].node
        inputs = tuple(arguments.nodes)
        call.complete_as(inputs, graph, main.ndim, rows, width, main.ragged, program.sig)
        if program.is_random:
            call.stream = graph.stream(call)
        made[program.results[program.main]] = call
        for number, position in enumerate(program.results):
            if position not in made:
                made[position] = _further_result(call, number)
    results = tuple([made[position] for position in program.results])
    return results if program.returns_tuple else results[0]


def _further_result(call: BlockCall, number: int) -> BlockResult:
    """A node whose shape is known; made without what `__init__` would find out."""
    position = call.program.results[number]
    (rows, width), node = call.size_of(position), call.program.operators[position].node
    result = BlockResult.__new__(BlockResult)
    result.number = number
    result.complete_as((call,), call.graph, node.ndim, rows, width, node.ragged, RESULT)
    return result
