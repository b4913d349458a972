"""Prints a nest as C: its loops, and the function of one vector of its last axis.

The last axis is cut into vectors, and the one before it is taken four rows at a time where columns
are summed, so that their sums are loaded and stored once for four rows. The order of each sum is
that of its elements, whatever the rows of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynbatch.compiler.expressions import C
from dynbatch.compiler.heads import Heads
from dynbatch.compiler.ir import Value
from dynbatch.compiler.nests import Access, IsKept, NestGroup, accesses, is_sum
from dynbatch.compiler.places import Pointer

# Rows at a time where columns are summed.
ROWS = 4


class NestText:
    """A nest's text.

    Args:
        group:   with the heads as its first axis, if there are several.
        is_kept: whether a value is read by anything but the nest.

    Attributes:
        function: the source of the function of one vector.
        lines:    the loops.
    """

    def __init__(
        self, group: NestGroup, name: str, place: Callable[[Value], Pointer],
        is_kept: IsKept, heads: Heads,
    ) -> None:  # fmt: skip
        self._group = group
        self._heads = heads
        self._sizes = group.sizes
        self.reads, self.writes, self._operands = accesses(group, is_kept)
        self._of_rows = [w for w in self.writes if self._is_sum(w) and not w.strides[-1]]
        columns = [w for w in self.writes if self._is_column_sum(w)]
        self._rows = ROWS if columns and self._sizes[-2] % ROWS == 0 else 1
        self._fixed = [each for each in self.reads if not each.strides[-1]]
        pointers = [("const REAL*", each) for each in self.reads if each not in self._fixed]
        pointers += [("REAL*", each) for each in self.writes if each not in self._of_rows]
        fixed = [f"vector {name}" for name, _ in self._splats()]
        parameters = ", ".join([*fixed, *[f"{kind} {each.name}" for kind, each in pointers]])
        head = f"INLINE void {name}(ptrdiff_t j, ptrdiff_t m, vector* sums, {parameters}) {{"
        self.function = "\n".join([head, *[f"    {line}" for line in self._body()], "}", ""])
        self.lines = self._loops(name, [each for _, each in pointers], place)

    def _splats(self) -> list[tuple[str, str]]:
        """Values that are the same along the last axis, loaded once for all vectors, by name."""
        return [
            (f"x{k}_{row}", f"splat(*({self._at(each, row)}))")
            for k, each in enumerate(self.reads)
            for row in range(self._rows_of(each))
            if each in self._fixed
        ]

    def _rows_of(self, access: Access) -> int:
        """Count the rows at a time that differ in a value."""
        return self._rows if len(self._sizes) > 1 and access.strides[-2] else 1

    def _is_sum(self, access: Access) -> bool:
        return is_sum(self._sizes, access.strides)

    def _is_column_sum(self, access: Access) -> bool:
        is_inner = len(self._sizes) > 1 and access.strides[-1] and not access.strides[-2]
        return bool(is_inner and self._is_sum(access))

    def _body(self) -> list[str]:
        loads: list[str] = []
        lines: list[str] = []
        stores: list[str] = []
        added: list[list[tuple[int, list[str]]]] = [[] for _ in self.writes]
        for k, each in enumerate(self.reads):
            if each not in self._fixed:
                for row in range(self._rows_of(each)):
                    loads.append(f"const vector x{k}_{row} = {self._load(each, row)};")
        of_reads = {each.name: self._rows_of(each) for each in self.reads}
        for row in range(self._rows):
            for k, (op, operands) in enumerate(zip(self._group.ops, self._operands, strict=True)):
                xs = [f"{x}_{row if of_reads.get(x, self._rows) > 1 else 0}" for x in operands]
                out = next((w for w in self.writes if w.op is op), None)
                if out is None or not self._is_sum(out):
                    lines.append(f"const vector v{k}_{row} = {C.expression(op, xs)};")
                    if out is not None:
                        stores.append(self._store(out, row, f"v{k}_{row}"))
                else:
                    added[self.writes.index(out)].append((row, xs))
        for out, terms in zip(self.writes, added, strict=True):
            lines += self._sums(out, terms)
        return [*loads, *lines, *stores]

    def _sums(self, out: Access, terms: Sequence[tuple[int, list[str]]]) -> list[str]:
        if out in self._of_rows:
            first, count = self._of_rows.index(out), len(self._of_rows)
            lines = []
            for row, xs in terms:
                total = f"sums[{row * count + first}]"
                lines.append(f"{total} = {_added([f'fill({x}, m, 0)' for x in xs], total)};")
            return lines
        lines = []
        for at, (row, xs) in enumerate(terms):
            is_last = at + 1 == len(terms) or not self._is_column_sum(out)
            if not at or not self._is_column_sum(out):
                lines.append(f"vector {out.name}_{row} = {self._load(out, row)};")
                total = f"{out.name}_{row}"
            lines.append(f"{total} = {_added(xs, total)};")
            if is_last:
                lines.append(self._store(out, row, total))
        return lines

    def _load(self, access: Access, row: int) -> str:
        at, step = self._at(access, row), access.strides[-1]
        if step == 1:
            return f"get({at} + j, m)"
        return f"get_every({at} + j * {step}, {step}, m)"

    def _store(self, access: Access, row: int, name: str) -> str:
        at, step = self._at(access, row), access.strides[-1]
        if step == 1:
            return f"put({at} + j, {name}, m);"
        return f"put_every({at} + j * {step}, {step}, {name}, m);"

    def _at(self, access: Access, row: int) -> str:
        return f"{access.name} + {row * access.strides[-2]}" if row else access.name

    def _loops(
        self, name: str, pointers: Sequence[Access], place: Callable[[Value], Pointer]
    ) -> list[str]:
        *outer, size = self._sizes
        lines = ["for (ptrdiff_t i = 0; i < n; i++) {"]
        for each in (*self.reads, *self.writes):
            at, kind = place(each.value), "const REAL*" if each.op is None else "REAL*"
            lines.append(f"    {kind} {each.name}_row = {at.pointer} + i * {at.stride};")
            if self._is_sum(each) and each.op is not None:
                width = each.value.width // self._heads.count
                lines.append(f"    memset({each.name}_row, 0, {width} * sizeof(REAL));")
        pad = "    "
        for axis, count in enumerate(outer):
            step = self._rows if axis == len(outer) - 1 else 1
            at_k = f"k{axis} = 0; k{axis} < {count}; k{axis} += {step}"
            is_head = not axis and self._heads.count > 1
            lines.append(f"{pad}{{" if is_head else f"{pad}for (ptrdiff_t {at_k}) {{")
            pad += "    "
        for each in (*self.reads, *self.writes):
            kind = "const REAL*" if each.op is None else "REAL*"
            steps = [f" + k{axis} * {s}" for axis, s in enumerate(each.strides[:-1]) if s]
            if self._heads.count > 1 and each.strides[0]:
                steps[0] = self._heads.offset(each.value.base, each.strides[0])
            lines.append(f"{pad}{kind} {each.name} = {each.name}_row{''.join(steps)};")
        num_sums = max(1, self._rows * len(self._of_rows))
        splats = self._splats()
        call = ", ".join(["sums", *[x for x, _ in splats], *[each.name for each in pointers]])
        lines += [
            f"{pad}vector sums[{num_sums}] = {{{{0}}}};",
            *[f"{pad}const vector {x} = {splat};" for x, splat in splats],
            f"{pad}ptrdiff_t j = 0;",
            f"{pad}for (; j + LANES <= {size}; j += LANES) {name}(j, LANES, {call});",
            f"{pad}if ({size} % LANES) {name}(j, {size} % LANES, {call});",
        ]
        for row in range(self._rows):
            for k, each in enumerate(self._of_rows):
                partial = f"sums[{row * len(self._of_rows) + k}]"
                lines.append(f"{pad}*({self._at(each, row)}) += sum_lanes({partial});")
        for axis in range(len(outer), -1, -1):
            lines.append("    " * axis + "}")
        return lines


def _added(xs: Sequence[str], total: str) -> str:
    return f"multiply_add({', '.join(xs)}, {total})" if len(xs) == 2 else f"{total} + {xs[0]}"
