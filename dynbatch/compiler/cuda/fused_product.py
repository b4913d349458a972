"""Prints products of few rows, and the group that reads them, as one CUDA kernel.

A decoder's step has a row a sentence: a product and a kernel for the gates are two launches for
what a device does in a few microseconds, and what one writes the other reads. Here a block makes
the columns of a product that some elements of the group are made from, all gates of some units of
an LSTM say, and goes on with the group. The product is written only where others read it too.

A block has `TILE_ROWS` rows and up to `TILE_COLUMNS` columns, some of each of a lane's pieces:

    an LSTM's gates, H wide     j … j + 7,  H + j … H + j + 7,  2H + j … ,  3H + j …

Where a lane adds several products, of the state and of what the decoder feeds back, one sum takes
all of them. A row's bits depend neither on the rows beside it nor on their number.

Up to `FEW_ROWS` rows, and for weights of `WEIGHT_BYTES` at most, these kernels do a step; beyond,
cuBLAS, whose larger tiles then read weights less often. No card has measured either limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from dynbatch.compiler.buffers import Role
from dynbatch.compiler.cuda.emit import STEP, Kernel
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.cuda.pieces import Pieces, pieces_of
from dynbatch.compiler.ir import Op, Value
from dynbatch.compiler.lanes import Lane, LaneNames

FEW_ROWS = 128
WEIGHT_BYTES = 4 << 20
TILE_ROWS, TILE_COLUMNS = 16, 32
MOST_TERMS = 8  # products of lanes that are printed in one kernel


class ProductLane(NamedTuple):
    """A lane of a kernel.

    lines: what follows the products for an element, whose sum k is `m<k>`.
    guard: where it is not empty, the condition for which the lane runs.
    """

    width: int
    terms: list[tuple[Op, list[int]]]
    lines: list[str]
    guard: str = ""

    @property
    def columns(self) -> int:
        return TILE_COLUMNS // len(self.terms[0][1]) if self.terms else TILE_COLUMNS

    @property
    def tiles(self) -> int:
        return -(-self.width // self.columns)


class FusedProduct(Kernel):
    """The text of one kernel for a run of products, with the group behind them or without.

    Attributes:
        fits:        whether this way is open: where lanes need too many columns, or some products
                     for some sums only, it is not.

    Args:
        first, last: the numbers of the items that it does; the last is a group, or a product.
    """

    block = 512

    rows = "n"  # of the products

    def __init__(
        self, loop: Loop, name: str, step: DevicePass, products: Sequence[Op], first: int, last: int
    ) -> None:
        self.first, self.last = first, last
        self.fits = True
        self._pass = step
        self._products = {id(self._value(op)): op for op in products}
        self._pieces = Pieces({}, set(), [])
        self._made: set[tuple[int, int]] = set()  # columns of products that lanes have
        self.tile_lanes: list[ProductLane] = []
        super().__init__(loop, name, step, self.last)
        for op in self._products.values():
            self._add_rest(op)
            self.fits = self.fits and self._has_room(op)
        self.fits = self.fits and sum([len(x.terms) for x in self.tile_lanes]) <= MOST_TERMS

    def grid(self, rows: int) -> int:
        return -(-rows // TILE_ROWS) * sum([lane.tiles for lane in self.tile_lanes])

    # Lanes ----------------------------------------------------------------------------------------

    def _add_lane(self, lane: Lane, names: LaneNames) -> None:
        """A lane of the group, which stores what others read of its products too."""
        products = [x for _, x in names.loads if id(x.base) in self._products]
        pieces = self._pieces = pieces_of(lane, products, self._products, self._leaves)
        counts = {len(firsts) for _, firsts in pieces.terms}
        if counts - {len(pieces.heads)} or len(pieces.heads) > TILE_COLUMNS:
            self.fits = False
            return
        left = [x for x in products if self._leaves(x)]
        # All loads come first: what a product is added to may lie where the sum is stored.
        loads = [f"const REAL s{k} = {self._sum(x, True)};" for k, x in enumerate(left)]
        stores = [self._store(f"s{k}", x) for k, x in enumerate(left)]
        self._made |= {(id(x.base), x.column + c) for x in products for c in range(x.width)}
        lines = [*loads, *self._lines(names), *stores]
        self.tile_lanes.append(ProductLane(lane.width, pieces.terms, lines))

    def _add_rest(self, op: Op) -> None:
        """Lanes that only store: the columns of a product that no lane of the group has."""
        value = self._value(op)
        left = [c for c in range(value.width) if (id(value), c) not in self._made]
        left = [c for c in left if self._leaves(Value.columns(value, c, 1))]
        for _, each in groupby(enumerate(left), lambda pair: pair[1] - pair[0]):
            columns = [c for _, c in each]
            segment = Value.columns(value, columns[0], len(columns))
            self._pieces = Pieces({segment.key: 0}, {segment.key}, [(op, [columns[0]])])
            line = self._store(self._sum(segment, True), segment)
            guard = self._guard(op)
            self.tile_lanes.append(ProductLane(len(columns), self._pieces.terms, [line], guard))

    def _value(self, op: Op) -> Value:
        return op.output

    def _needed(self, op: Op) -> str:
        """The condition without which a product adds nothing."""
        return self._given(op) if op.is_linear else ""

    def _guard(self, op: Op) -> str:
        """The condition for which a product is made that lanes only store."""
        return "" if op.is_linear else self._given(op)

    def _has_room(self, op: Op) -> bool:
        return all(
            [self.loop.places.of(x) == self.loop.places.of(op.output) for x in op.inputs[1:]]
        )

    def _leaves(self, x: Value) -> bool:
        """Whether anything but this kernel's group reads some columns."""
        return self._pass.leaves(x, self.last)

    # Expressions ----------------------------------------------------------------------------------

    def _load(self, segment: Value) -> str:
        return self._sum(segment) if id(segment.base) in self._products else super()._load(segment)

    def _is_there(self, lane: Lane, segment: Value) -> bool:
        sources = [x for s in lane.ops if s.output.key == segment.key for x in s.inputs]
        is_made = any([id(x.base) in self._products for x in sources])
        return not is_made and super()._is_there(lane, segment)

    def _sum(self, segment: Value, stored: bool = False) -> str:
        """Columns of a product: with its bias, unless they are stored for others that add it."""
        op, key = self._products[id(segment.base)], segment.key
        terms = [f"m{self._pieces.numbers[key]}" if key in self._pieces.heads else "(REAL)0"]
        for base in op.inputs[1:]:
            view = Value.columns(base.base, base.column + segment.column, segment.width)
            terms.append(f"{self.arrays.address(view)}[j]")
        if op.is_linear and op.has_bias and not (stored and id(op.output) in self.loop.inline_maps):
            bias = self.arrays.name(Role.BIAS, self.loop.maps[id(op)])
            terms.append(f"{bias}[{segment.column} + j]")
        return " + ".join(terms)

    def _factor(self, op: Op) -> str:
        """The statements that give the address of what a product multiplies, in row r of a tile."""
        address = self.arrays.address(op.inputs[0])
        return f"const long long row = first_row + r; return {address};"

    def _given(self, op: Op) -> str:
        """The condition that the state is not all zeros that a product, or its map, multiplies."""
        source = op.source or op
        if not source.reads_state:
            return ""
        return f"p >= 0 || {self.arrays.name(Role.INITIAL_STATE, source.inputs[0].base.number)}"

    def _term(self, op: Op, firsts: Sequence[int], columns: int) -> str:
        """The call that adds a product to the sums of a tile."""
        source = op.source or op
        inner, outer = source.inputs[0].width, source.output.width
        weight = self.arrays.name(Role.WEIGHT, self.loop.maps[id(source)])
        column = f"({_chosen(firsts, f'c / {columns}')} + first + c % {columns})"
        depth, at, step = outer, column, inner
        if op.is_linear:
            depth, at, step = inner, f"(long long){column} * {inner}", 1
        condition = self._needed(op)
        length = f"{condition} ? {depth} : 0" if condition else str(depth)
        is_column = f"c < {len(firsts) * columns} && c % {columns} < width - first"
        return (
            f"multiply_tile<{'true' if op.is_linear else 'false'}, {step}>(sums, shared, {length}, "
            f"{self.rows} - first_row, [&](int r) -> const REAL* {{ {self._factor(op)} }}, "
            f"[&](int c) -> const REAL* {{ return {is_column} ? {weight} + {at} : nullptr; }});"
        )

    # The kernel -----------------------------------------------------------------------------------

    def text(self, prefix: str) -> str:
        body: list[str] = []
        for lane in self.tile_lanes:
            body += self._lane_text(lane)
        tiles = sum([lane.tiles for lane in self.tile_lanes])
        bounds = f"__launch_bounds__({self.block}, 2)"
        return "\n".join(
            [
                f'extern "C" __global__ void {bounds} {prefix}_{self.name}'
                f"({self.arrays.parameters()}const int* steps, int t) {{",
                "    __shared__ __align__(16) REAL shared[TILE_SHARED];",
                *[f"    {line}" for line in self._begin()],
                f"    const int first_row = blockIdx.x / {tiles} * TILE_ROWS;",
                f"    int tile = blockIdx.x % {tiles};",
                *[f"    {line}" for line in self.arrays.in_shared(body)],
                "}",
            ]
        )

    def _begin(self) -> list[str]:
        return [STEP.replace("long long", "int")]  # which take fewer registers

    def _lane_text(self, lane: ProductLane) -> list[str]:
        columns, guard = lane.columns, f" && ({lane.guard})" if lane.guard else ""
        products: list[str] = []
        if lane.terms:
            products = ["TileSums sums = {};"]
            products += [self._term(op, firsts, columns) for op, firsts in lane.terms]
            products.append("share_tile(sums, shared);")
        count = len(lane.terms[0][1]) if lane.terms else 0
        sums = [
            f"const REAL m{k} = tile_sum(shared, at / {columns}, {k * columns} + at % {columns});"
            for k in range(count)
        ]
        return [
            f"if (tile >= 0 && tile < {lane.tiles}{guard}) {{",
            f"    const int width = {lane.width}, first = tile * {columns};",
            *[f"    {line}" for line in products],
            f"    for (int at = threadIdx.x; at < TILE_ROWS * {columns}; at += TILE_THREADS) {{",
            f"        const long long row = first_row + at / {columns};",
            f"        const int j = first + at % {columns};",
            "        if (row >= n || j >= width) continue;",
            *[f"        {line}" for line in [*sums, *lane.lines]],
            "    }",
            "}",
            f"tile -= {lane.tiles};",
        ]


def fused_products(loop: Loop, step: DevicePass, name: str) -> list[FusedProduct]:
    """The kernels for the products of a pass, with the groups behind them where these fit."""
    kernels = []
    for run in step.runs:
        name_of_run = f"{name}_products_{run.first}"
        products = step.products(run)
        kernel = FusedProduct(loop, name_of_run, step, products, run.first, run.end)
        if run.group is not None and not kernel.fits:
            kernel = FusedProduct(loop, name_of_run, step, products, run.first, run.last)
        if kernel.fits and kernel.tile_lanes:
            kernels.append(kernel)
    return kernels


def _chosen(numbers: Sequence[int], index: str) -> str:
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    if all([number == numbers[0] + k * step for k, number in enumerate(numbers)]):
        return f"{numbers[0]} + {index} * {step}" if step else str(numbers[0])
    cases = [f"{index} == {k} ? {number}" for k, number in enumerate(numbers[:-1])]
    return f"({' : '.join([*cases, str(numbers[-1])])})"
