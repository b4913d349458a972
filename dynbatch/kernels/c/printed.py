"""The C sources that are printed from the definitions of functions, beside those of `sources`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dynbatch.kernels import binary
from dynbatch.kernels.gated import GATES
from dynbatch.kernels.losses.elementwise import LOSSES
from dynbatch.kernels.scalar.c_printer import CPrinter, fused
from dynbatch.kernels.scalar.expressions import INFIX, Expression, parts, rebuild
from dynbatch.kernels.scalar.function import Function, every_function
from dynbatch.kernels.scalar.update import UPDATES, UpdateRule
from dynbatch.kernels.unary import activations, arithmetic, trigonometric

# One pass of NumPy's is as fast, or the C library would be called lane by lane.
_IN_NUMPY = (
    arithmetic.negative, arithmetic.detached, arithmetic.exp, arithmetic.log, arithmetic.sqrt,
    arithmetic.sign, trigonometric.sin, trigonometric.cos, trigonometric.tan, trigonometric.asin,
    trigonometric.acos, trigonometric.atan, trigonometric.sinh, trigonometric.cosh,
    trigonometric.asinh, trigonometric.acosh, trigonometric.atanh,
)  # fmt: skip
BACKWARD = dict.fromkeys([f for f in every_function() if f not in _IN_NUMPY])
_BACKWARD_ONLY = activations.tanh, arithmetic.absolute, arithmetic.clip
FORWARD = dict.fromkeys([f for f in BACKWARD if f not in _BACKWARD_ONLY])

_PASSES = 4
"""Passes of arithmetic that take NumPy longer than C; one of another function counts as two."""


def _is_fast(root: Expression) -> bool:
    ops = [part.op for part in parts(root) if part.operands]
    passes = sum([1 if op in INFIX or op == "negative" else 2 for op in ops])
    return passes >= _PASSES and "pow" not in ops


_OF_TWO = *binary.FUNCTIONS.values(), *LOSSES.values()
VALUES_OF_TWO = {f: f"{f.name}_of" for f in _OF_TWO if _is_fast(f.value())}
GRADIENTS_OF_TWO = tuple(
    [
        {f: f"{f.name}_back_{f.names[k]}" for f in _OF_TWO if _is_fast(f.gradients()[k])}
        for k in (0, 1)
    ]
)
"""Functions of two values that C does faster, and how their gradients are called there."""

LOOP = """
EXPORT void each_{name}(ptrdiff_t first, ptrdiff_t last, {pointers}, REAL* out{numbers}) {{
    EACH_VECTOR(i, part, last - first) put(out + first + i, {call}({values}), part);
}}
"""

GATED = """
// out = f(gate) value of rows first to last.
EXPORT void gated_{name}(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, ptrdiff_t stride,
    const REAL* gate, const REAL* value, REAL* out) {{
    EACH_ELEMENT {{
        vector x = AT(gate, stride);
        put(out + row * width + i, {name}_of(x) * AT(value, stride), part);
    }}
}}

// dgate = dy value f'(gate), dvalue = dy f(gate). Either may be NULL, or lie where dy lies.
EXPORT void gated_{name}_backward(ptrdiff_t first, ptrdiff_t last, ptrdiff_t width,
    ptrdiff_t stride, const REAL* dy, const REAL* gate, const REAL* value, REAL* dgate,
    REAL* dvalue) {{
    EACH_ELEMENT {{
        vector x = AT(gate, stride), above = AT(dy, width), dx = above * AT(value, stride);
        vector y = {name}_of(x);
        if (dgate) put(dgate + row * stride + i, {name}_back(dx, {saved}), part);
        if (dvalue) put(dvalue + row * stride + i, above * y, part);
    }}
}}
"""
GATED_HEAD = """\
// Gated units over rows; see kernels/gated.py.
#include "elementwise.h"

#define EACH_ELEMENT \\
    for (ptrdiff_t row = first; row < last; row++) EACH_VECTOR(i, part, width)
#define AT(ARRAY, STRIDE) get(ARRAY + row * STRIDE + i, part)
"""

UPDATE = """
static void step_of_{name}(ptrdiff_t start, ptrdiff_t n,
    const REAL* gradients, REAL* const* arrays, const double* numbers) {{
    {heads}
    ptrdiff_t i = 0, part = LANES;
    for (; i + LANES <= n; i += LANES) {{
        {body}
    }}
    if ((part = n - i)) {{
        {body}
    }}
}}

EXPORT void update_{name}(ptrdiff_t first, ptrdiff_t last, const double* numbers,
    const REAL* gradient, const int64_t* rows, ptrdiff_t num_rows, ptrdiff_t width,
    int every_row, {pointers}) {{
    REAL* const arrays[] = {{{arrays}}};
    over_units(step_of_{name}, numbers, first, last, gradient, rows, num_rows, width, every_row,
        arrays);
}}
"""


def unary() -> str:
    """The functions of one value, on vectors: a part of `elementwise.h`."""
    return CPrinter().text(every_function())


def pairs() -> str:
    """The functions of two values, on vectors: a part of `elementwise.h`."""
    return CPrinter().pairs(binary.FUNCTIONS.values())


def loops() -> str:
    """Loops over elements that lie side by side, named as what they compute of each."""
    texts = ['#include "elementwise.h"\n#include "bfloat16.h"\n']
    texts += [_loop(f"{f.name}_of", ("x",), f.names_of_arguments) for f in FORWARD]
    for f in BACKWARD:
        texts += [_loop(f"{f.name}_back", ("dy", "s"), f.names_of_arguments)]
        if f.reads == "input":
            texts += [_loop(f"{f.name}_back", ("dy", "s"), f.names_of_arguments, narrow="s")]
    texts += [CPrinter().pairs(LOSSES.values())]
    texts += [_loop(name, f.names) for f, name in VALUES_OF_TWO.items()]
    for names in GRADIENTS_OF_TWO:
        texts += [_loop(name, ("dy", *f.names)) for f, name in names.items()]
    return "".join(texts)


def _loop(
    call: str, arrays: tuple[str, ...], numbers: tuple[str, ...] = (), narrow: str = ""
) -> str:
    """A loop over arrays, of which one may lie in 16 bits: it is named after that."""
    kinds = {array: ("uint16_t", "get_short") for array in [narrow] if array}
    forms = {array: kinds.get(array, ("REAL", "get")) for array in arrays}
    elements = [f"{get}({array} + first + i, part)" for array, (_, get) in forms.items()]
    values = ", ".join([*elements, *[f"(REAL){number}" for number in numbers]])
    return LOOP.format(
        name=f"{call}_narrow" if narrow else call,
        call=call,
        pointers=", ".join([f"const {kind}* {array}" for array, (kind, _) in forms.items()]),
        numbers="".join([f", double {number}" for number in numbers]),
        values=values,
    )


def gated() -> str:
    """Loops over gated units, named after the gate's function."""
    return "".join([GATED_HEAD, *map(_gated, gates())])


def gates() -> Iterator[Function]:
    for gate in GATES:
        yield from gate.every_form()


def _gated(f: Function) -> str:
    return GATED.format(name=f.name, saved="y" if f.reads == "output" else "x")


def updates(of: Iterable[UpdateRule] | None = None) -> str:
    """Steps of optimizers, those of dynbatch unless others are given, each named as its update."""
    texts = map(_update, UPDATES.values() if of is None else of)
    return "".join(['#include "elementwise.h"\n#include "updates.h"\n', *texts])


def _update(update: UpdateRule) -> str:
    """The step of an update's elements, and the function that is called."""
    outputs = update.outputs("c")
    heads = [f"const REAL {x}_ = (REAL)numbers[{k}];" for k, x in enumerate(update.numbers)]
    reads, writes = ["vector gradient_ = get(gradients + i, part);"], []
    lines, results = CPrinter().statements(*rebuild(tuple(outputs.values()), fused))
    for k, (name, result) in enumerate(zip(outputs, results, strict=True)):
        pointer, read, write = f"arrays[{k}] + start", f"get(p{k} + i, part)", ""
        if name in update.optional:
            pointer, read = f"arrays[{k}] ? {pointer} : NULL", f"p{k} ? {read} : splat(0)"
            write = f"if (p{k}) "
        heads.append(f"REAL* const p{k} = {pointer};")
        reads.append(f"vector {name}_ = {read};")
        lines.append(f"vector new{k} = {result};")
        writes.append(f"{write}put(p{k} + i, new{k}, part);")
    arrays = [f"a{k}" for k in range(len(outputs))]
    return UPDATE.format(
        name=update.name,
        heads="\n    ".join(heads),
        body="\n        ".join([*reads, *lines, *writes[1:], writes[0]]),
        pointers=", ".join([f"REAL* {array}" for array in arrays]),
        arrays=", ".join(arrays),
    )


PRINTED = {
    "unary.h": unary, "pairs.h": pairs, "loops.c": loops, "gated.c": gated, "updates.c": updates,
}  # fmt: skip
"""The texts by the names under which they are included, and compiled."""
