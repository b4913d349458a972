"""Prints nests and lanes as passes of one block of threads, between which are `barriers`.

A pass is a loop in which each thread makes elements of its own. A nest of `compiler/nests` is one
pass where it has no sum, and one for each set of axes that it sums over: the element of a sum is
made by a thread, which goes along these axes in order; or by a warp, whose lanes go along the last
axis and then add up in pairs, where that axis is summed. Where there are fewer sums than threads,
teams of threads take every so many terms of each, and a second pass adds their sums in order. So
the order of a sum follows from its axes alone, whatever else runs. What is made element by element
goes along with the last sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from dynbatch.compiler.cuda.barriers import BlockPass, Touch
from dynbatch.compiler.expressions import CUDA
from dynbatch.compiler.heads import Heads
from dynbatch.compiler.ir import Op, Value
from dynbatch.compiler.lanes import Lane, names_of
from dynbatch.compiler.nests import Access, IsKept, NestGroup, Strides, accesses, is_sum

WARP = 32
THREADS = 256
LEAST_TERMS = 4  # of a sum that each team of threads makes
SUMS = "sums_room"  # where teams leave theirs


class BlockPlace(NamedTuple):
    """The place of some columns of a value in the row of a block.

    pointer: to the first of them, of the heads of all blocks if it is in memory.
    space:   what tells memory that may be the same apart; None for what a pass only reads.
    column:  the first column there.
    is_part: whether it has the columns of the block's head alone: it is in shared memory.
    line:    declares the pointer; each pass has its own, so that few registers hold pointers.
    guard:   must be true where it is read, or zeros are; or where it is written, or nothing is.
    """

    pointer: str
    space: str | None
    column: int
    is_part: bool = False
    line: str = ""
    guard: str = ""


class BlockPlaces(NamedTuple):
    """Functions that find places.

    reads:    of a value that a pass reads.
    writes:   of a value that it makes: none, one or two.
    is_kept:  whether anything but some operators reads a segment that one of them made.
    heads:    of which a block does one: a part of each pass.
    """

    reads: Callable[[Value], BlockPlace]
    writes: Callable[[Value], Sequence[BlockPlace]]
    is_kept: IsKept
    heads: Heads


def lane_pass(lane: Lane, ops: Sequence[Op], places: BlockPlaces) -> BlockPass | None:
    """The pass of a lane; None if nothing reads what it makes."""
    names = names_of(lane, lambda segment: places.is_kept(segment, ops))
    elements: list[_Element] = []

    def element(segment: Value, at: BlockPlace, writes: bool) -> _Element:
        elements.append(_Element(places.heads.count, at, (lane.width,), (1,), True, writes))
        return elements[-1]

    lines = []
    for name, segment in names.loads:
        x = element(segment, places.reads(segment), False)
        lines.append(f"const REAL {name} = {x.load(['j'])};")
    lines += [_made(scalar.op, name, xs) for name, scalar, xs in names.makes]
    for name, segment in names.stores:
        for at in places.writes(segment):
            lines.append(element(segment, at, True).store(["j"], name))
    if not names.stores:
        return None
    return _pass([_each("j", lane.width // places.heads.count), *_inside(lines), "}"], elements)


def nest_passes(group: NestGroup, places: BlockPlaces) -> list[BlockPass]:
    """The passes of a nest, in order."""
    group = places.heads.group(group)

    reads, writes, operands = accesses(group, places.is_kept)
    by_axes: dict[tuple[int, ...], list[Access]] = {}
    for write in writes:
        axes = zip(group.sizes, write.strides, strict=True)
        summed = tuple([k for k, (size, step) in enumerate(axes) if size > 1 and not step])
        by_axes.setdefault(summed, []).append(write)
    by_element = by_axes.pop((), [])
    if by_element:  # behind all sums, which read what may be written over
        last = [*by_axes][-1] if by_axes else ()
        by_axes.setdefault(last, []).extend(by_element)
    nest = _Nest(group, reads, operands, places)
    return [one for summed, each in by_axes.items() for one in nest.make(summed, each)]


class _Element(NamedTuple):
    """An element of a place, by the indices of a nest.

    sizes, strides: of the nest, and of the place along its axes.
    is_flat: whether element e is that of thread e; `writes`, whether it is written.
    threads: see `Touch`.
    """

    heads: int
    place: BlockPlace
    sizes: Strides
    strides: Strides
    is_flat: bool
    writes: bool
    threads: object = None

    @property
    def of_block(self) -> Strides:
        """The sizes of a block's part: the first axis is that of heads, where there are several."""
        return (self.sizes[0] // self.heads, *self.sizes[1:])

    @property
    def touches(self) -> list[Touch]:
        space, first, strides = self.place.space, self.place.column, self.strides
        if space is None:
            return []
        axes = zip(self.of_block, strides, strict=True)
        end = first + 1 + sum([(size - 1) * step for size, step in axes])
        flat = first if self.is_flat else None
        return [Touch(space, first, end, flat, self.writes, strides, self.threads)]

    def at(self, indices: Sequence[str]) -> str:
        steps = [
            index if step == 1 else f"{index} * {step}"
            for index, step, size in zip(indices, self.strides, self.of_block, strict=True)
            if step and size > 1
        ]
        away = self.of_block[0] * self.strides[0]
        if self.heads > 1 and away and not self.place.is_part:
            steps.append("head" if away == 1 else f"head * {away}")
        return f"{self.place.pointer}[{' + '.join(steps) or '0'}]"

    def load(self, indices: Sequence[str]) -> str:
        value, guard = self.at(indices), self.place.guard
        return f"({guard} ? {value} : (REAL)0)" if guard else value

    def store(self, indices: Sequence[str], value: str) -> str:
        line = f"{self.at(indices)} = {value};"
        return f"if ({self.place.guard}) {line}" if self.place.guard else line


class _Nest:
    """A nest, whose passes are printed from it."""

    def __init__(
        self, group: NestGroup, reads: Sequence[Access], operands: Sequence[Sequence[str]],
        places: BlockPlaces,
    ) -> None:  # fmt: skip
        self._group = group
        self._sizes = (group.sizes[0] // places.heads.count, *group.sizes[1:])
        self._reads = {each.name: each for each in reads}
        self._operands = operands
        self._places = places

    def make(self, summed: Sequence[int], outs: Sequence[Access]) -> list[BlockPass]:
        """The passes that make some of what the nest writes, with the sums over some axes."""
        sizes = self._sizes
        kept = [k for k in range(len(sizes)) if k not in summed]
        by_warp = len(sizes) - 1 in summed
        count = prod([sizes[k] for k in kept])
        teams = 1
        if summed and not by_warp:
            teams = max(1, min(THREADS // count, sizes[summed[0]] // LEAST_TERMS))
        needed = self._needed(outs)
        self._elements: list[_Element] = []
        self._threads = sizes, tuple(kept), by_warp, teams
        self._flat_axes: Sequence[int] = [] if by_warp or teams > 1 else kept
        if by_warp and count == 1 and len(summed) == 1 and sizes[-1] <= WARP:
            self._flat_axes = [*summed]  # the first warp alone, each lane with one element
        ahead = self._index(kept)
        inside: list[str] = []
        behind: list[str] = []
        for read in [self._reads[name] for name in self._reads if name in needed]:
            element = self._element(read, self._places.reads(read.value), False)
            line = f"const REAL {read.name} = {element.load(self._indices)};"
            varies = any([read.strides[k] for k in summed])
            (inside if varies else ahead).append(line)
        for number, op in enumerate(self._group.ops):
            if f"v{number}" in needed:
                inside.append(_made(op, f"v{number}", self._operands[number]))
        for out in outs:
            self._add_out(out, ahead, inside)
        sums = [out for out in outs if is_sum(self._group.sizes, out.strides)]
        if teams > 1:
            loops = [*ahead, *self._along(summed, inside, False, teams)]
            return self._by_teams(teams, count, kept, sums, loops)
        for out in sums:
            behind += self._store_sum(out, by_warp)
        lines = [*ahead, *self._along(summed, inside, by_warp), *behind]
        return [_pass([_each("o", count, by_warp), *_inside(lines), "}"], self._elements)]

    def _by_teams(
        self, teams: int, count: int, kept: Sequence[int], sums: Sequence[Access],
        loops: Sequence[str],
    ) -> list[BlockPass]:  # fmt: skip
        """A pass in which each team makes a part of each sum, and one that adds these."""
        room = count * teams
        parts = [f"const int o = member % {count}, team = member / {count};", *loops]
        parts += [f"{SUMS}[{k * room} + member] = {out.name};" for k, out in enumerate(sums)]
        whole = Touch(SUMS, 0, room * len(sums), None, True, (), None)
        lines = [_each("member", room), *_inside(parts), "}"]
        first = _pass(lines, self._elements, [whole])
        self._elements, self._flat_axes = [], kept
        self._threads = self._sizes, tuple(kept), False, 1
        lines = self._index(kept)
        for k, out in enumerate(sums):
            part = f"{SUMS}[{k * room} + team * {count} + o]"
            lines.append(f"REAL {out.name} = 0;")
            lines.append(f"for (int team = 0; team < {teams}; ++team) {out.name} += {part};")
            lines += self._store_sum(out, False)
        lines = [_each("o", count), *_inside(lines), "}"]
        return [first, _pass(lines, self._elements, [whole._replace(writes=False)])]

    def _add_out(self, out: Access, ahead: list[str], inside: list[str]) -> None:
        """Add a term to a sum, or store what is made element by element."""
        number = next(k for k, op in enumerate(self._group.ops) if op is out.op)
        if not is_sum(self._group.sizes, out.strides):
            elements = [self._element(out, at, True) for at in self._places.writes(out.value)]
            inside += [each.store(self._indices, f"v{number}") for each in elements]
            return
        ahead.append(f"REAL {out.name} = 0;")
        inside.append(f"{out.name} += {' * '.join(self._operands[number])};")

    def _store_sum(self, out: Access, by_warp: bool) -> list[str]:
        elements = [self._element(out, at, True) for at in self._places.writes(out.value)]
        stores = [each.store(self._indices, out.name) for each in elements]
        if not by_warp:
            return stores
        total = f"{out.name} = warp_reduce<Add>({out.name});"
        return [total, "if (threadIdx.x % WARP == 0) {", *_inside(stores), "}"]

    def _needed(self, outs: Sequence[Access]) -> set[str]:
        """The names of all that some writes are made of."""
        names: set[str] = set()
        ops = self._group.ops
        waiting = [k for k, op in enumerate(ops) if any([out.op is op for out in outs])]
        sums = {id(out.op) for out in outs if is_sum(self._group.sizes, out.strides)}
        while waiting:
            number = waiting.pop()
            if id(ops[number]) not in sums:  # a sum has a register of its own
                names.add(f"v{number}")
            for name in self._operands[number]:
                if name in names:
                    continue
                names.add(name)
                if name.startswith("v"):
                    waiting.append(int(name[1:]))
        return names

    @property
    def _indices(self) -> list[str]:
        return [f"k{axis}" for axis in range(len(self._sizes))]

    def _index(self, kept: Sequence[int]) -> list[str]:
        """The index along each axis that is kept, of element `o`."""
        lines, inner = [], 1
        axes = [axis for axis in kept if self._sizes[axis] > 1]
        for axis in reversed(axes):
            at = f"o / {inner}" if inner > 1 else "o"
            wraps = "" if axis == axes[0] else f" % {self._sizes[axis]}"
            lines.append(f"const int k{axis} = {at}{wraps};")
            inner *= self._sizes[axis]
        return lines

    def _along(
        self, summed: Sequence[int], inside: list[str], by_warp: bool, teams: int = 1
    ) -> list[str]:
        """The loops along the axes that are summed; teams take turns along the first."""
        lines = inside
        for axis in reversed(summed):
            k, size = f"k{axis}", self._sizes[axis]
            first, step = "0", f"++{k}"
            if by_warp and axis == len(self._sizes) - 1:
                first, step = "threadIdx.x % WARP", f"{k} += WARP"
            elif teams > 1 and axis == summed[0]:
                first, step = "team", f"{k} += {teams}"
            head = f"for (int {k} = {first}; {k} < {size}; {step}) {{"
            lines = [head, *_inside(lines), "}"]
        return lines

    def _element(self, access: Access, at: BlockPlace, writes: bool) -> _Element:
        sizes, strides = self._sizes, access.strides
        dense = {axis: prod([sizes[k] for k in self._flat_axes if k > axis])
                 for axis in self._flat_axes}  # fmt: skip
        is_flat = bool(dense) and all(
            [step == dense.get(k, 0) or sizes[k] == 1 for k, step in enumerate(strides)]
        )
        by_warp = self._threads[2]
        threads = None if by_warp and not strides[-1] else self._threads  # the first lane, or all
        if writes and not any([s for s, size in zip(strides, sizes, strict=True) if size > 1]):
            is_flat = True  # one element, which the first thread writes
        heads, of_all = self._places.heads.count, self._group.sizes
        element = _Element(heads, at, of_all, strides, is_flat, writes, threads)
        self._elements.append(element)
        return element


def _pass(
    loop: list[str], elements: Sequence[_Element], touches: Sequence[Touch] = ()
) -> BlockPass:
    """A loop that reads and writes some elements, and touches what else is said."""
    declared = dict.fromkeys([each.place.line for each in elements if each.place.line])
    lines = ["{", *_inside([*declared, *loop]), "}"] if declared else loop
    return BlockPass(lines, [*touches, *[touch for each in elements for touch in each.touches]])


def _made(op: Op, name: str, xs: Sequence[str]) -> str:
    return f"const REAL {name} = {CUDA.expression(op, xs)};"


def _each(index: str, count: int, by_warp: bool = False) -> str:
    """The head of a loop in which each thread, or each warp, takes elements in turn."""
    first, step = ("threadIdx.x / WARP", "WARPS") if by_warp else ("threadIdx.x", "THREADS")
    return f"for (int {index} = {first}; {index} < {count}; {index} += {step}) {{"


def _inside(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
