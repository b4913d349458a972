"""Prints a program's forward pass as one function of C.

    forward(count, steps, given, ahead, at, product)

runs `count` steps of one shard, rows in prefix layout: `steps` holds four numbers for each, the
first row, the end row, the number of rows, and the first row of the step before, or -1. The initial
state is zeros unless `given`; `ahead` asks for the wide maps of the streams too, which are made for
as many rows at once as lie in the cache. `at` holds two numbers for each array of `slots`: its
address, and the elements from one of its rows, or planes, to the next. `product` is the function
of `kernels/c/panels.c`, whose tiles are compiled once for all cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from dynbatch.compiler.arrays import panel_portions
from dynbatch.compiler.buffers import Storage
from dynbatch.compiler.c.expressions import expression
from dynbatch.compiler.c.groups import items, loaded
from dynbatch.compiler.c.places import Place, Places, place_in
from dynbatch.compiler.ir import Op, Value
from dynbatch.compiler.lanes import ColumnRange, KernelGroup, Lane
from dynbatch.compiler.lowering import LoopProgram
from dynbatch.compiler.program import numbered

# Bytes of the maps of streams that are made at once: what stays in the second-level cache.
BLOCK_BYTES = 1 << 19

HEAD = """\
#include "elementwise.h"

typedef void product_function(ptrdiff_t M, ptrdiff_t K, ptrdiff_t N, const REAL* a, ptrdiff_t lda,
    const REAL* panels, const REAL* base, ptrdiff_t base_stride, REAL* c, ptrdiff_t ldc);

// Panels of N columns begin at whole cache lines, on any processor.
#define LINE ((ptrdiff_t)(64 / sizeof(REAL)))
#define WHOLE(N) (((N) + LINE - 1) / LINE * LINE)

static void fill_rows(ptrdiff_t n, ptrdiff_t N, const REAL* base, REAL* c, ptrdiff_t ldc) {
    for (ptrdiff_t i = 0; i < n; i++)
        if (base) memcpy(c + i * ldc, base, (size_t)N * sizeof(REAL));
        else memset(c + i * ldc, 0, (size_t)N * sizeof(REAL));
}
"""


class ForwardText:
    """The text of `forward`.

    Attributes:
        slots: names of the arrays that it gets, in order.
        text:  its source.
    """

    def __init__(self, program: LoopProgram, storage: Storage) -> None:
        self._program = program
        self._storage = storage
        self._places = Places(storage)
        self._maps = numbered(program.linear_maps)
        self._lanes: list[str] = []
        self.slots = [f"X{k}" for k in range(len(program.streams))]
        self.slots += [buffer.name for buffer in [*storage.packed, *storage.temporary]]
        self.slots += [f"W{number}" for number in self._maps.values()]
        self.slots += [f"b{self._maps[id(op)]}" for op in program.linear_maps if op.has_bias]
        self.slots += [f"I{k}" for k in range(len(program.states))]
        self.text = self._print()

    def _print(self) -> str:
        found = items(self._program.ops, self._places, self._is_kept)
        body = [line for item in found for line in self._item(item)]
        lines = ["EXPORT void forward(ptrdiff_t count, const int64_t* steps, int given, int ahead,"]
        lines += ["    const int64_t* at, const void* panel_product) {"]
        lines += ["    product_function* const product = (product_function*)panel_product;"]
        lines += [f"    {line}" for line in self._arrays()]
        if self._program.stream_maps:
            lines.append("    ptrdiff_t done = count ? steps[0] : 0;")
        lines += ["    for (ptrdiff_t t = 0; t < count; t++) {"]
        lines += ["        const int64_t* step = steps + 4 * t;"]
        lines += ["        const ptrdiff_t s = step[0], n = step[2], p = step[3];"]
        lines += ["        const int zero = p < 0 && !given;"]
        lines += [indent("\n".join([*self._ahead(), *self._states(), *body]), " " * 8)]
        lines += ["    }", "}", ""]
        return "\n".join([HEAD, *self._lanes, *lines])

    def _arrays(self) -> list[str]:
        lines = []
        for number, name in enumerate(self.slots):
            lines.append(f"REAL* const {name} = (REAL*)(intptr_t)at[{2 * number}];")
            lines.append(f"const ptrdiff_t {name}_step = at[{2 * number + 1}];")
        return lines

    def _is_kept(self, segment: ColumnRange, ops: Sequence[Op]) -> bool:
        value = Value.columns(*segment)
        others = [op for op in self._program.readers(value) if op not in ops]
        return bool(others) or self._storage.is_kept(value)

    # Products -------------------------------------------------------------------------------------

    def _ahead(self) -> list[str]:
        """The maps of streams, for the steps from this one on whose rows lie in the cache."""
        maps = self._program.stream_maps
        if not maps:
            return []
        row = sum([op.output.width for op in maps])
        lines = ["if (ahead && s >= done) {", f"    ptrdiff_t last = t, most = {BLOCK_BYTES} /"]
        lines[-1] += f" ({row} * (ptrdiff_t)sizeof(REAL));"
        lines += ["    while (last + 1 < count && steps[4 * last + 5] - s <= most) last++;"]
        lines += ["    done = steps[4 * last + 1];", "    const ptrdiff_t rows = done - s;"]
        for op in maps:
            lines += [f"    {line}" for line in self._products(op, "rows")]
        return [*lines, "}"]

    def _states(self) -> list[str]:
        """Where the state lies that a step finds."""
        lines = []
        for k, value in enumerate(self._program.following):
            buffer, column = self._storage.buffer_of(value)
            left = place_in(buffer, column, value.width, "p", "n")
            lines.append(f"const REAL* const h{k} = p < 0 ? I{k} : {left.pointer};")
            lines.append(f"const ptrdiff_t h{k}_row = p < 0 ? I{k}_step : {left.stride};")
        return lines

    def _products(self, op: Op, rows: str) -> list[str]:
        """One product for each portion of a map: see `panel_portions`."""
        number = self._maps[id(op)]
        x = self._places.whole(op.inputs[0])
        buffer, first = self._storage.buffer_of(op.output)
        lines = []
        inner: int = x.width
        before: list[str] = []
        for column, width, _, _ in panel_portions(op, buffer.plane):
            out = place_in(buffer, first + column, width, "s", rows)
            base = f"b{number} + {column}" if op.has_bias else "NULL"
            panels = f"W{number}" + (f" + {inner} * ({' + '.join(before)})" if before else "")
            lines.append(
                f"product({rows}, {inner}, {width}, {x.pointer}, {x.stride}, {panels}, "
                f"{base}, 0, {out.pointer}, {out.stride});"
            )
            if op.reads_state:  # before the first step it is zero, and so is every map of it
                zeros = f"fill_rows({rows}, {width}, {base}, {out.pointer}, {out.stride});"
                lines[-1] = f"if (zero) {zeros}\nelse {lines[-1]}"
            before.append(f"WHOLE({width})")
        return lines

    # Elementwise operators ------------------------------------------------------------------------

    def _item(self, item: Op | KernelGroup) -> list[str]:
        if isinstance(item, Op):
            return self._products(item, "n")
        return [line for lane in item.lanes for line in self._lane(lane, item.ops)]

    def _lane(self, lane: Lane, ops: Sequence[Op]) -> list[str]:
        """The loop over the rows of a lane; prints the function of one vector of it too."""
        names: dict[tuple[int, int], str] = {}
        sources: list[Place] = []
        targets: list[Place] = []
        body: list[str] = []
        for segment in loaded(lane, [x for scalar in lane.ops for x in scalar.inputs]):
            if segment.key not in names:
                names[segment.key] = f"v{len(names)}"
                body.append(f"const vector {names[segment.key]} = get(x{len(sources)} + j, m);")
                sources.append(self._places.of(*segment))
        stores: list[str] = []
        for scalar in lane.ops:
            code = expression(scalar.op, [names[x.key] for x in scalar.inputs])
            name = names[scalar.output.key] = f"v{len(names)}"
            body.append(f"const vector {name} = {code};")
            if self._is_kept(scalar.output, ops):
                stores.append(f"put(y{len(targets)} + j, {name}, m);")
                targets.append(self._places.of(*scalar.output))
        return self._rows_of_lane(lane.width, sources, targets, [*body, *stores])

    def _rows_of_lane(
        self, width: int, sources: list[Place], targets: list[Place], body: list[str]
    ) -> list[str]:
        number = len(self._lanes)
        xs = [f"x{k}" for k in range(len(sources))]
        ys = [f"y{k}" for k in range(len(targets))]
        parameters = [f"const REAL* {x}" for x in xs] + [f"REAL* {y}" for y in ys]
        head = f"INLINE void lane_{number}(ptrdiff_t j, ptrdiff_t m, {', '.join(parameters)}) {{"
        self._lanes.append("\n".join([head, *[f"    {line}" for line in body], "}", ""]))
        lines = ["for (ptrdiff_t i = 0; i < n; i++) {"]
        for kind, names, places in (("const ", xs, sources), ("", ys, targets)):
            for name, place in zip(names, places, strict=True):
                lines.append(f"    {kind}REAL* {name} = {place.pointer} + i * {place.stride};")
        call = f"lane_{number}(j, {{}}, {', '.join([*xs, *ys])});"
        lines += ["    ptrdiff_t j = 0;"]
        lines += [f"    for (; j + LANES <= {width}; j += LANES) {call.format('LANES')}"]
        lines += [f"    if ({width} % LANES) {call.format(f'{width} % LANES')}", "}"]
        return lines
