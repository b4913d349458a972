"""`resumed`: a causal block's program, changed to go on from what it has computed before.

What a sentence's next rows need of those before them are keys and values of attention, the states
of scans, and how many rows there were. Everything else is computed row by row, or follows from what
the sentence is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from dynbatch.backend import Array
from dynbatch.blocks.operators import BlockOperator, Given
from dynbatch.blocks.program import BlockProgram
from dynbatch.blocks.resumed_call import ResumedCall
from dynbatch.cells.scan.resumed import ResumedScan
from dynbatch.cells.scan.scan import Scan
from dynbatch.compiler.traced import Reads
from dynbatch.errors import GraphError
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED
from dynbatch.nodes.attention.cached import CachedAttention, MemoryAttention
from dynbatch.nodes.attention.dot_product import DotProductAttention
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.positions.absolute import PositionRows
from dynbatch.nodes.positions.base import Positioned
from dynbatch.nodes.shape.expand import Expand
from dynbatch.nodes.shape.last_row import LastRow
from dynbatch.parameter import Parameter


class SlotKind(Enum):
    """The kind of data that an operator keeps for later rows."""

    GROWN = "a row for each row so far"
    KEPT = "rows that follow from what the sentence is given"
    STATE = "one row, written over"


class CacheSlot(NamedTuple):
    """Rows that an operator reads and that outlive a call.

    operator: its number.
    kind:     what they are.
    widths:   of rows beside each other: of keys and values, or of the parts of a state.
    sources:  the operators, in the block's own program, that make KEPT rows, or the first STATE;
              None for zeros.
    reach:    a new row reads GROWN rows that are at most so many before it.
    """

    operator: int
    kind: SlotKind
    widths: tuple[int, ...]
    sources: tuple[int | None, ...] = ()
    reach: int = UNBOUNDED


@dataclass(frozen=True)
class Resumed:
    """A block that continues from kept rows.

    Args:
        program:   of the next rows. It gives the results of the last of them.
        slots:     what its operators keep.
        positions: its operators with an offset, and what that is at the beginning.
        beginning: the program of the slots' sources, one after the other, which follow from the
                   given nodes alone. None where there are none.
    """

    program: BlockProgram
    slots: Sequence[CacheSlot]
    positions: Sequence[tuple[int, int]]
    beginning: BlockProgram | None

    @property
    def width(self) -> int:
        return self.program.operators[self.program.results[0]].node.width

    @cached_property
    def parameters(self) -> Reads:
        reads = self.program.reads.items()
        return {path: value for path, value in reads if isinstance(value, Parameter)}

    def tell(
        self, call: ResumedCall, ids: Array, before: Array, pasts: Mapping[int, object]
    ) -> None:
        """Tell a call of the program what it reads next.

        Args:
            ids:    of all its rows.
            before: (N,) rows of each sentence before them.
            pasts:  what operators have kept of all sentences, by number.
        """
        columns: dict[tuple[int, str], Any] = {(k, "past"): [past] for k, past in pasts.items()}
        columns.update({(k, "offset"): offset + before for k, offset in self.positions})
        call.columns, call.made = columns, self.program.given_to_all(ids, call.lengths)


def resumed(program: BlockProgram) -> Resumed:
    """The block that continues from kept rows.

    Raises:
        GraphError: it computes a row from rows behind it, or cannot go on from those before; or it
            reads lengths, or looks into its arrays.
    """
    if not program.is_general:
        raise GraphError.at_caller(
            "the function reads lengths or shapes, or looks into its ids: what it builds may depend"
            " on them.\n  rule: what generates builds the same operators at any length, for any ids"
            "\n  fix:  write it without len, rows, shape and x[-1]; decide on ids outside of it;"
            "\n        logits are (T, V), a row for each id"
        )
    return _Resuming(program).result()


class _Resuming:
    """The operators of a program, changed one by one."""

    def __init__(self, program: BlockProgram) -> None:
        self._program = program
        self._operators = [copy(op) for op in program.operators]
        self._slots: list[CacheSlot] = []
        self._positions: list[tuple[int, int]] = []
        self._new = self._of_new_rows()

    def _of_new_rows(self) -> set[int]:
        """The operators that read the arrays of a call, whose rows are new each time.

        And those that repeat for such rows what is the same for all, as a parameter.
        """
        new: set[int] = set()
        counts: set[object] = set()  # rows that follow from the arrays' lengths
        for k, op in enumerate(self._operators):
            takes_array = any([isinstance(bound, Given) for bound in op.bound.values()])
            if takes_array and op.rows is not None and any(op.rows[:-1]):
                counts.add(op.rows)
            repeats = isinstance(op.node, Expand) and op.rows in counts and self._are_shared(op)
            if takes_array or repeats or not new.isdisjoint(op.inputs):
                new.add(k)
        return new

    def _are_shared(self, op: BlockOperator) -> bool:
        return all([x >= 0 and self._operators[x].is_shared for x in op.inputs])

    def result(self) -> Resumed:
        for k in sorted(self._new):
            self._change(k, self._operators[k])
        number_of, operators, results = self._of_last_rows()
        program = self._program.changed(operators, results)
        slots = [slot._replace(operator=number_of[slot.operator]) for slot in self._slots]
        positions = [(number_of[k], offset) for k, offset in self._positions]
        return Resumed(program, slots, positions, _beginning(self._program, slots))

    # Operators ------------------------------------------------------------------------------------

    def _change(self, number: int, op: BlockOperator) -> None:
        node = op.node
        if isinstance(node, DotProductAttention):
            self._change_attention(number, op, node)
        elif isinstance(node, Scan):
            self._change_scan(number, op, node)
        elif isinstance(node, Positioned | PositionRows) and "offset" in dict(op.constants):
            constants = dict(op.constants)
            self._positions.append((number, constants.pop("offset")))
            op.constants = list(constants.items())
            op.bound = {**op.bound, "offset": None}
        elif isinstance(node, Expand) and self._are_shared(op):
            pass  # its rows are as many as there are new ones
        elif op.inputs and not (node.is_rowwise() and self._are_beside(op)):
            raise self._refused(op)

    def _are_beside(self, op: BlockOperator) -> bool:
        """Whether an operator reads nothing but new rows and what is the same for all."""
        return all([x in self._new or (x >= 0 and self._operators[x].is_shared) for x in op.inputs])

    def _change_attention(self, number: int, op: BlockOperator, node: DotProductAttention) -> None:
        query, keys, values, *matrices = op.inputs
        if matrices or node.features is not None:
            raise self._refused(op, "a bias by distance, as of F.relative_bias, in place of pairs")
        to_itself = {keys, values} <= self._new
        to_memory = self._new.isdisjoint((keys, values))
        is_causal = node.mask.right == 0 and node.mask.visible is None
        sees_all = node.mask == NO_MASK and node.bias is None
        if query not in self._new or not ((to_itself and is_causal) or (to_memory and sees_all)):
            raise self._refused(op)
        op.node = _as_type(node, CachedAttention if to_itself else MemoryAttention)
        op.bound = {**op.bound, "past": None}
        if to_memory:
            op.inputs, op.node.inputs = (query,), node.inputs[:1]
        widths = (node.inputs[1].width, node.inputs[2].width)
        if to_itself:
            self._slots.append(CacheSlot(number, SlotKind.GROWN, widths, (), node.mask.left))
        else:
            self._slots.append(CacheSlot(number, SlotKind.KEPT, widths, (keys, values)))

    def _change_scan(self, number: int, op: BlockOperator, node: Scan) -> None:
        program, inputs = node.cell.program, iter(op.inputs[len(node.cell.program.streams) :])
        first = tuple([next(inputs) if is_given else None for is_given in node.given_states])
        memories = tuple(inputs)
        streams = op.inputs[: len(program.streams)]
        kept = [k for k in (*first, *memories) if k is not None]
        if node.reverse or not (self._new.issuperset(streams) and self._new.isdisjoint(kept)):
            raise self._refused(op, "leave reverse and bidirectional out" if node.reverse else "")
        going_on: ResumedScan = _as_type(node, ResumedScan)
        going_on.given_states, going_on.recompute = (True,) * len(first), 0
        going_on.inputs = node.inputs[: len(streams)]
        going_on.sig = going_on.signature()
        op.node, op.inputs = going_on, streams
        changed = {"given_states": going_on.given_states, "recompute": 0}
        op.constants = list({**dict(op.constants), **changed}.items())
        op.bound = {**op.bound, "past": None}
        widths = tuple([state.width for state in program.states])
        self._slots.append(CacheSlot(number, SlotKind.STATE, widths, first))
        if memories:
            rows = node.inputs[len(node.inputs) - len(memories) :]
            self._slots.append(
                CacheSlot(number, SlotKind.KEPT, tuple([x.width for x in rows]), memories)
            )

    def _refused(self, op: BlockOperator, fix: str = "") -> GraphError:
        fix = fix or "causal=True, if it is attention"
        return GraphError.at_caller(
            f"{op.node.label()} needs rows of a sentence that have not come yet, or that are gone."
            "\n  rule: what generates computes each row from that row, by causal attention from"
            "\n        those before, and from what the sentence is given"
            f"\n  fix:  {fix}; or write without a cache: call the"
            "\n        model on all ids for each new one"
        )

    # Last rows ------------------------------------------------------------------------------------

    def _of_last_rows(self) -> tuple[dict[int, int], list[BlockOperator], tuple[int, ...]]:
        """The new number of each old operator, the new operators, and the results among them.

        What only the last row of a result follows from is computed for the last row.
        """
        last = self._read_by_last_rows()
        free = len(self._program.free)
        number_of: dict[int, int] = {}
        last_of: dict[int, int] = {}
        operators: list[BlockOperator] = []
        for k, op in enumerate(self._operators):
            if k not in self._new and not op.is_shared:
                continue  # it follows from what is given, and is not computed again
            if k in last:
                for x in op.inputs:
                    if x in self._new and x not in last and x not in last_of:
                        last_of[x] = len(operators)
                        operators.append(_last_row(self._operators[x], number_of[x], free))
                op.rows = (*[0] * free, 1)
            where = {**number_of, **last_of} if k in last else number_of
            op.inputs = tuple([where.get(x, x) for x in op.inputs])
            number_of[k] = len(operators)
            operators.append(op)
        results = []
        for k in self._program.results:
            results.append(number_of[k] if k in last else len(operators))
            if k not in last:
                operators.append(_last_row(self._operators[k], number_of[k], free))
        return number_of, operators, tuple(results)

    def _read_by_last_rows(self) -> set[int]:
        """Row by row operators that nothing reads but a result, through such operators alone.

        One that reads an array of the call, or counts positions, needs all of its rows.
        """
        readers: dict[int, list[int]] = {}
        for k, op in enumerate(self._operators):
            for x in op.inputs:
                readers.setdefault(x, []).append(k)
        last: set[int] = set()
        for k in sorted(self._new, reverse=True):
            read_by, op = readers.get(k, []), self._operators[k]
            if last.issuperset(read_by) and type(op.node).rowwise and not op.bound:
                last.add(k)
        return last


def _beginning(program: BlockProgram, slots: Sequence[CacheSlot]) -> BlockProgram | None:
    wanted = [k for slot in slots for k in slot.sources if k is not None]
    if not wanted:
        return None
    live = {k for k in wanted if k >= 0}
    for k in range(len(program.operators) - 1, -1, -1):
        if k in live:
            live.update([x for x in program.operators[k].inputs if x >= 0])
    number_of = {k: number for number, k in enumerate(sorted(live))}
    operators = [copy(program.operators[k]) for k in number_of]
    for op in operators:
        op.inputs = tuple([number_of.get(x, x) for x in op.inputs])
    made = program.changed(operators, tuple([number_of.get(k, k) for k in wanted]))
    made.returns_tuple = True
    return made


def _as_type(node: Operation, node_type: type[Operation]) -> Any:
    changed = _beside(node, node_type, node.inputs)
    for name, value in node.attributes().items():
        setattr(changed, name, value)
    changed.sig = changed.signature()
    return changed


def _beside(node: Operation, node_type: type[Operation], inputs: tuple[Node, ...]) -> Any:
    changed = object.__new__(node_type)
    for name in ("graph", "index", "phase", "ndim", "rows", "width", "ragged"):
        setattr(changed, name, getattr(node, name))
    changed.inputs, changed._block = inputs, None
    return changed


def _last_row(source: BlockOperator, place: int, free: int) -> BlockOperator:
    node = _beside(source.node, LastRow, (source.node,))
    node.rows, node.sig = 1, node.signature()
    op = BlockOperator(node, (place,))
    op.rows, op.width = (*[0] * free, 1), source.width
    return op
