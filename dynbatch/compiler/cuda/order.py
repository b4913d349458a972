"""The order of a step on a GPU: each item is a launch, so it has as few as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynbatch.compiler.ir import PRODUCTS, Op, OpCode, Value
from dynbatch.compiler.lanes import FUSED, Item, KernelGroup, find_cuts, is_read, lanes_of, ops_of
from dynbatch.compiler.program import Program
from dynbatch.kernels.unary import arithmetic


class ProductRun(NamedTuple):
    """Products that follow each other and do not read each other, so that one kernel can do all.

    first, last: the numbers of the first and of the last.
    group:       the group behind them, which that kernel can do too, if there is one.
    """

    first: int
    last: int
    group: int | None

    @property
    def end(self) -> int:
        return self.last if self.group is None else self.group


class DevicePass(Program):
    """A pass of a loop as a GPU runs it.

    Attributes:
        items: of a step, in order: operators that stand alone, and groups of the others.
        kept:  values that are read after the step.
        runs:  its products, those that one kernel can do together.
    """

    def __init__(self, program: Program, kept: Sequence[Value]) -> None:
        super().__init__()
        self.following = program.following
        self.ahead = program.ahead
        self.kept = kept
        self.items = _items(_add_to_sums(_copy_apart(program.ops), kept))
        self.runs = _runs(self.items)
        self.ops = [op for item in self.items for op in ops_of(item)]

    def products(self, run: ProductRun) -> list[Op]:
        return [op for item in self.items[run.first : run.last + 1] for op in ops_of(item)]

    def leaves(self, value: Value, number: int) -> bool:
        """Whether anything but an item reads columns of a value that the item makes."""
        return is_read(value, self.ops, ops_of(self.items[number]), self.kept)

    def reads(self, value: Value) -> bool:
        """Whether an item reads any column of a value that another one makes."""
        groups = map(ops_of, self.items)
        made = [ops for ops in groups if any([op.output is value for op in ops])]
        return any([is_read(value, self.ops, ops, []) for ops in made])


def _items(ops: Sequence[Op]) -> list[Item]:
    """The items of a step, as few as the order of operators allows."""
    outputs = {id(value) for op in ops for value in op.outputs}
    done: set[int] = set()
    waiting = [*ops]
    rounds: list[list[Op]] = []

    def is_ready(op: Op) -> bool:
        return all([id(x.base) not in outputs or id(x.base) in done for x in op.inputs])

    while waiting:
        ready = [op for op in waiting if op.opcode not in FUSED and is_ready(op)]
        if ready:
            rounds += [[op] for op in ready]
            done |= {id(value) for op in ready for value in op.outputs}
        else:
            for op in waiting:  # in order, so that what an operator reads has been seen before it
                if op.opcode in FUSED and is_ready(op):
                    ready.append(op)
                    done.add(id(op.output))
            rounds.append(ready)
        waiting = [op for op in waiting if op not in ready]
    cuts = find_cuts(ops)
    return [
        KernelGroup(tuple(each), lanes_of(each, cuts)) if each[0].opcode in FUSED else each[0]
        for each in rounds
    ]


def _runs(items: Sequence[Item]) -> list[ProductRun]:
    """The products of a step, those together that follow each other and do not read each other."""
    runs: list[ProductRun] = []
    made: set[int] = set()
    for number, item in enumerate(items):
        follows = bool(runs) and runs[-1].end == number - 1 and runs[-1].group is None
        if isinstance(item, KernelGroup):
            if follows:
                runs[-1] = runs[-1]._replace(group=number)
        elif item.opcode in PRODUCTS:
            if follows and not made & {id(x.base) for x in item.inputs}:
                runs[-1] = runs[-1]._replace(last=number)
            else:
                runs.append(ProductRun(number, number, None))
                made = set()
            made.add(id(item.output))
    return runs


def _reads(op: Op, other: Op) -> bool:
    return any([x.base is other.output for x in op.inputs])


def _copy_apart(ops: Sequence[Op]) -> list[Op]:
    """Have gradients that own kernels read as whole rows copied early to where they are parts."""
    whole = {id(op.inputs[0].base) for op in ops if op.opcode is OpCode.GENERIC_GRADIENT}
    result: list[Op] = []
    for op in ops:
        if op.opcode is OpCode.COPY and any([id(x.base) in whole for x in op.inputs]):
            copies = [Op.copy(x, Value(x.width)) for x in op.inputs if id(x.base) in whole]
            of = {id(copy.inputs[0]): copy.output for copy in copies}
            joined = op.like([of.get(id(x), x) for x in op.inputs], op.output)
            joined.columns = op.columns
            result += [*copies, joined]
        else:
            result.append(op)
    return result


def _add_to_sums(ops: Sequence[Op], kept: Sequence[Value]) -> list[Op]:
    """Have products dy W added to the other operand of a sum, where that saves a launch.

    Such a product has this operand as its second, made in a group where it is no other product. It
    saves none where a group reads the sum.
    """
    result = list(ops)
    for add in [op for op in reversed(ops) if op.is_add or op.is_subtract]:
        makers = {id(value): op for op in result for value in op.outputs}
        readers = [op for op in result if _reads(op, add)]
        is_read = any([op.opcode in FUSED and op.opcode is not OpCode.COPY for op in readers])
        # Only the first operand of a difference: the second one's product would have to be negated.
        for x, other in (add.inputs, add.inputs[::-1])[: 1 + add.is_add]:
            product = _product(x, makers, result, kept)
            beside = _product(other, makers, result, kept) if add.is_add else None
            if product is None or product is beside or (is_read and beside is None):
                continue
            at = result.index(add)
            result[at] = product.like([*product.inputs, other], add.output)
            if beside is None:
                term = result[at].inputs[1] = Value(other.width)
                negated = Op(OpCode.UNARY, [other], term, kernel=arithmetic.negative)
                result.insert(at, Op.copy(other, term) if add.is_add else negated)
            result.remove(product)
            break
    return result


def _product(
    x: Value, makers: dict[int, Op], ops: Sequence[Op], kept: Sequence[Value]
) -> Op | None:
    """The product dy W that an operand is, if nothing else reads it."""
    op = makers.get(id(x.base))
    if op is None or op.opcode is not OpCode.LINEAR_GRADIENT or not x.is_whole():
        return None
    is_kept = any([value.base is x.base for value in kept])
    return op if not is_kept and sum([_reads(each, op) for each in ops]) == 1 else None
