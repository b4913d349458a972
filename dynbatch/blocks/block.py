"""`block`: makes a function over a sentence's matrices one node a sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, TypeAlias, TypeVar, cast

from dynbatch.arguments import refused, shown
from dynbatch.blocks.arguments import Arguments, sizes_of
from dynbatch.blocks.binding import ArraysAlike
from dynbatch.blocks.call import BlockCall, results_of
from dynbatch.blocks.given_arrays import NotTraceable
from dynbatch.blocks.program import BlockProgram, NotOneProgram
from dynbatch.blocks.sizes import Pattern, Sizes, looser, patterns_to_try
from dynbatch.blocks.trace import ARRAY_NAMES, Seen, TraceMaker
from dynbatch.compiler.recorder import recorded
from dynbatch.compiler.trace import parameters_in
from dynbatch.compiler.traced import Reads, Traced, check_reads
from dynbatch.nodes.losses.cross_entropy import folds
from dynbatch.nodes.node import Owner
from dynbatch.nodes.plain import is_plain

CACHED_PROGRAMS = 512
MOST_UNTOLD = 16
"""A block whose arrays are alike in more sentences than this is not traced again."""

Function = TypeVar("Function", bound=Callable[..., Any])

Program: TypeAlias = "BlockProgram | Inlined"

Entry = tuple[tuple[object, ...], list[Program]]
"""Parameters, and the programs of one graph for arguments of equal forms."""


class Inlined:
    """Stands for the program of a block that has none: its operators are nodes of each sentence.

    Args:
        reason:   why; for `explain()`.
        reads:    what was read of its parameters.
        is_known: whether that holds for other calls.
    """

    pattern: Pattern = ()

    def __init__(self, reason: str, reads: Reads | None = None, is_known: bool = True) -> None:
        self.reason = reason
        self.reads: Reads = {} if reads is None else reads
        self.is_known = is_known

    def takes(self, sizes: Sizes) -> bool:
        """Whether it holds for these sizes."""
        return self.is_known


class BlockFunction:
    """A function that is one node a sentence; `block` makes it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.__wrapped__ = function
        name = getattr(function, "__qualname__", "block").removesuffix(".__call__")
        self.name = name.rsplit(".", 1)[-1].strip("<>")
        self._call_type: type[BlockCall] = type(
            self.name, (BlockCall,), {"__slots__": (), "__module__": function.__module__}
        )
        self._programs: Traced[Program] = Traced(CACHED_PROGRAMS, function)
        self._untold = 0

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        arguments = Arguments(positional, named)
        graph = arguments.graph
        if graph is None:
            raise refused(
                f"block {self.name!r}", f"called with {shown(positional)}",
                "a block computes a sentence's nodes from others, in their graph",
                "give it a node, or the graph",
            )  # fmt: skip
        if graph.is_trace or is_plain.get():
            return self._inline(graph, positional, named)
        sizes = sizes_of(arguments.nodes, arguments.arrays)
        program = self._program(arguments, graph, sizes)
        if isinstance(program, BlockProgram):
            free = program.free_of(sizes)
            if program.needs_trace(sizes):
                maker = self._maker(arguments, recorded(tuple(arguments.params))[0], graph)
                told = program.traced(maker, sizes, arguments.arrays)
            else:
                told = program.given(free, arguments.arrays)
            if told is not None:
                if program.by_data:
                    graph.note_block(self.name, "traced again, since it looks into its arrays")
                return results_of(self._call_type, program, arguments, free, told, graph)
            program = Inlined("for some sizes or arrays it builds other operators")
        graph.note_block(self.name, f"inlined, since {program.reason}")
        return self._inline(graph, positional, named)

    def _inline(self, graph: Owner, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The function itself: its operators are nodes of the graph."""
        with parameters_in(graph):
            return self.__wrapped__(*positional, **named)

    def _program(self, arguments: Arguments, graph: Owner, sizes: Sizes) -> Program:
        """The program for arguments of these forms and sizes, looked up once a graph."""
        params = tuple(arguments.params)
        # What parameters hold is read once a graph, but for a module's mode, a part of its form.
        key = (self, arguments.forms, arguments.names, folds.get(), *map(id, params))
        # With the parameters, so that their ids stay their own.
        entry: Entry = graph.programs.setdefault(key, (params, []))
        for program in entry[1]:
            if program.takes(sizes):
                return program
        program = self._find(arguments, params, graph, sizes)
        check_reads(self.name, program.reads, graph, short=True)
        entry[1].append(program)
        return program

    def _find(
        self, arguments: Arguments, params: tuple[object, ...], graph: Owner, sizes: Sizes
    ) -> Program:
        begin = (arguments.forms, arguments.names, folds.get(), graph.dtype.char)
        for program in self._programs.fitting(begin, params):
            if program.takes(sizes):
                return program
        program = self._trace(arguments, params, graph, sizes)
        if isinstance(program, Inlined) and not program.is_known:
            return program
        return self._programs.add((*begin, program.pattern), params, program)

    def _trace(
        self, arguments: Arguments, params: tuple[object, ...], graph: Owner, sizes: Sizes
    ) -> Program:
        recorders, reads = recorded(params)
        maker, seen = self._maker(arguments, recorders, graph), Seen()
        try:
            trace = seen.watch(lambda: maker.on(sizes, arguments.arrays))
        except NotTraceable as error:
            return Inlined(str(error), reads)
        except Exception:  # it fails; the function itself will raise it
            return Inlined("it fails", reads, is_known=False)
        careful = seen.may_decide(trace)
        maker.is_touched |= bool(arguments.arrays) and not seen.names.isdisjoint(ARRAY_NAMES)

        def try_pattern(pattern: Pattern) -> BlockProgram | str:
            try:
                return BlockProgram(maker, pattern, sizes, careful, reads, self._call_type)
            except NotOneProgram as error:
                return str(error)

        program: BlockProgram | str = ""
        try:
            for pattern in patterns_to_try(sizes, len(sizes_of(arguments.nodes, ()))):
                program = try_pattern(pattern)
                if isinstance(program, BlockProgram):
                    break
            if isinstance(program, str):
                return Inlined(program, reads)
            return _loosest(program, try_pattern)
        except ArraysAlike as error:
            self._untold += 1
            return Inlined(str(error), reads, is_known=self._untold > MOST_UNTOLD)

    def _maker(self, arguments: Arguments, recorders: Any, graph: Owner) -> TraceMaker:
        return TraceMaker(self.__wrapped__, arguments, list(recorders), graph.dtype)


def _loosest(
    program: BlockProgram, try_pattern: Callable[[Pattern], BlockProgram | str]
) -> BlockProgram:
    """The program with as many free sizes as can be."""
    for pattern in looser(program.pattern):
        outcome = try_pattern(pattern)
        if isinstance(outcome, BlockProgram):
            return _loosest(outcome, try_pattern)
    return program


def block(function: Function) -> Function:
    """Make a function over a sentence's matrices one node a sentence.

    The function is traced a few times, on placeholders of several lengths; from then on a call is
    one node, and a mini-batch of calls runs as the function's operators do, each once over the
    packed rows of all sentences. Values, gradients and memory are those of the plain function; only
    the nodes and what it costs to make and schedule them are fewer.

    Args:
        function: a function, or a module's method such as `__call__`. It takes nodes; arrays of the
            sentence (NumPy arrays or lists of numbers: ids, masks, targets); modules and
            parameters, known by identity; the graph; and settings (numbers, strings, None), of
            which every value is traced anew: a label is an array of one. It returns a node, or a
            tuple of nodes.

    What a function builds must not depend on lengths or on values. Where it does, and where it
    reads a value, its operators are nodes of the sentence's own as if it was not decorated, and
    `graph.explain()` says why. A function may read lengths and look into its arrays: it is then
    traced at every new length, or in every call, which costs more than making its nodes. Arrays
    need none of it that go to `F.lookup` and `F.input`, to `F.gather_rows` and `x[ids]`, to
    `F.segment_sum` and `F.segment_mean` as lengths, to an attention as its mask, and to
    `F.cross_entropy`, `F.nll_loss`, `F.pointer_loss` and `F.crf` as targets; nor does what NumPy
    makes of them, as `ids[:-1]`, `ids.ravel()` and `np.where(ids < size, ids, unknown)`.
    `ids.max()`, `list(ids)` and `if 3 in ids` look into an array. A list is an array inside, if no
    operator joins it to others.

    What parameters hold is read at the first call of a graph: replacing one of them later holds
    from the next graph on, as with cells; a module's `train()` and `eval()` hold at once.

    It runs several times while it is traced: side effects happen that often. Inside another block,
    or a cell, a block is a part of it. Masks of dropout follow from the sentence, as everywhere,
    and are others than those of the plain function.

    Raises:
        ArgumentError: a call has neither a node nor a graph among its arguments.

    Example:
        >>> import numpy as np, dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> class Gated(models.Module):
        ...     def __init__(self, width):
        ...         self.gate, self.value = models.Linear(width, width), models.Linear(width, width)
        ...     @db.block
        ...     def __call__(self, x):
        ...         return x + F.sigmoid(self.gate(x)) * self.value(x)
        >>> gated = Gated(4)
        >>> with db.Graph() as graph:
        ...     sentences = [F.input(graph, np.ones((length, 4))) for length in (2, 7, 3)]
        ...     results = [gated(x) for x in sentences]
        ...     graph.forward()
        ...     len(graph), graph.statistics.batches
        (6, 6)
    """
    return cast(Function, BlockFunction(function))
