"""Prints functions as C on vectors and as CUDA: NAME_of(x, arguments…) and NAME_back(dy, s, …).

Those of two values are NAME_of(a, b) with NAME_back_a(dy, a, b) and NAME_back_b(dy, a, b).
s is x or y as `reads` says, else not read. A static argument is one REAL for all elements. With 1
for dy a gradient is the derivative. Primitives are in `elementwise.h` and `common.cuh`, by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from dynbatch.kernels.scalar.expressions import (
    INFIX,
    MASKS,
    TWINS,
    Expression,
    make,
    number,
    parts,
    rebuild,
    substitute,
    variable,
)
from dynbatch.kernels.scalar.function import Function
from dynbatch.kernels.scalar.pair import Pair


class CPrinter:
    """C on vectors. A uniform value is a REAL, which operators take beside vectors."""

    language = "c"
    head, vector, scalar, mask = "INLINE vector", "vector", "REAL", "mask"
    twins: ClassVar = {
        "normal_below": "vector {1}, {0} = normal_of({2}, &{1});",
        "sigmoid_below": "vector {1}, {0} = sigmoids_of({2}, &{1});",
    }
    choice = "choose({0}, {1}, {2})"
    both = "({0} & {1})"

    def function(
        self, name: str, arrays: Sequence[str], of: Function | Pair, root: Expression
    ) -> str:
        """A function of arrays' elements and the static arguments that returns the root."""
        (root,) = rebuild((root,), _quotient)
        lines, (result,) = self.statements(root)
        declared = [*[f"{self.vector} {x}" for x in arrays]]
        declared += [f"{self.scalar} {x}" for x in of.names_of_arguments]
        body = "\n".join([f"    {line}" for line in [*lines, f"return {result};"]])
        return f"{self.head} {name}({', '.join(declared)}) {{\n{body}\n}}\n"

    def value(self, f: Function) -> str:
        return self.function(f"{f.name}_of", ["x"], f, f.value(self.language))

    def gradient(self, f: Function) -> str:
        saved = "y" if f.reads == "output" else "x"
        root = substitute(f.gradient(self.language), variable(saved), variable("s"))
        return self.function(f"{f.name}_back", ["dy", "s"], f, root)

    def text(self, functions: Iterable[Function]) -> str:
        return "".join(
            [
                text
                for f in functions
                for text in (self.value(f) if not self.has(f) else "", self.gradient(f))
            ]
        )

    def pairs(self, functions: Iterable[Pair]) -> str:
        return "".join([text for f in functions for text in self._pair(f)])

    def _pair(self, f: Pair) -> Iterator[str]:
        if not self.has(f):
            yield self.function(f"{f.name}_of", f.names, f, f.value(self.language))
        if f.is_differentiable:
            for name, root in zip(f.names, f.gradients(self.language), strict=True):
                yield self.function(f"{f.name}_back_{name}", ("dy", *f.names), f, root)

    def has(self, f: Function | Pair) -> bool:
        """Whether NAME_of is a primitive, by hand."""
        return f.value(self.language).op == f.name not in ("negative", *INFIX)

    def statements(self, *roots: Expression) -> tuple[list[str], list[str]]:
        """Statements for what is read more than once, and the results."""
        roots = rebuild(roots, _product)
        everything = parts(*roots)
        read = [*roots, *[x for part in everything for x in part.operands]]
        read += [x for part in everything if part.op in TWINS for x in part.operands]
        lines: list[str] = []
        texts: dict[Expression, str] = {}
        for part in everything:
            if part in texts:
                continue
            xs = [texts[x] for x in part.operands]
            name = f"t{len(lines)}"
            if part.op in TWINS:
                twins, names = TWINS[part.op], [name, f"{name}b"]
                lines.append(self.twins[twins[0]].format(*names, xs[0]))
                same = [x for x in everything if x.op in twins and x.operands == part.operands]
                texts |= {x: names[twins.index(x.op)] for x in same}
                continue
            texts[part] = self._term(part, xs)
            if part.operands and read.count(part) > 1:
                kind = self.mask if part.op in MASKS else self.vector
                lines.append(f"{self.scalar if part.is_uniform else kind} {name} = {texts[part]};")
                texts[part] = name
        return lines, [self._wide(root, texts[root]) for root in roots]

    def _wide(self, part: Expression, text: str) -> str:
        return f"splat({text})" if part.is_uniform else text

    def _term(self, part: Expression, xs: list[str]) -> str:
        operands = part.operands
        if not operands:
            return literal(part.value) if part.op == "number" else str(part.value)
        if part.op == "call":
            return str(part.value.by_hand[self.language]).format(*xs)
        if part.op == "divide" and operands[1].op == "number":
            return f"({xs[0]} * {literal(1 / operands[1].value)})"
        if part.op == "both":
            return self.both.format(*xs)
        if part.op in INFIX:
            return f"({xs[0]} {INFIX[part.op]} {xs[1]})"
        if part.op == "negative":
            return f"(-{xs[0]})"
        if part.op == "reciprocal":
            return f"(1 / {xs[0]})"
        if part.op == "where":
            wide = [self._wide(x, text) for x, text in zip(operands[1:], xs[1:], strict=True)]
            form = "({0} ? {1} : {2})" if operands[0].is_uniform else self.choice
            return form.format(xs[0], *wide)
        return self._call(part, xs)

    def _call(self, part: Expression, xs: list[str]) -> str:
        number_of = [k for k, x in enumerate(part.operands) if x.is_uniform]
        if part.op == "multiply_add":
            wide = [self._wide(x, text) for x, text in zip(part.operands, xs, strict=True)]
            return f"multiply_add({', '.join(wide)})"
        if part.op in ("maximum", "minimum") and number_of:  # a number is not NaN: one instruction
            (k,) = number_of
            call = {"maximum": "larger", "minimum": "smaller"}[part.op]
            return f"{call}(splat({xs[k]}), {xs[1 - k]})"
        return f"{part.op}_of({', '.join(xs)})"


class CudaPrinter(CPrinter):
    """CUDA C++: a vector is one REAL."""

    language = "cuda"
    head, vector, scalar, mask = "__device__ __forceinline__ REAL", "REAL", "REAL", "bool"
    twins: ClassVar = {
        "normal_below": "const REAL {1} = exp_of_half_square({2}), "
        "{0} = normal_distribution({2}, {1});",
        "sigmoid_below": "const REAL {1} = sigmoid(-{2}), {0} = sigmoid({2});",
    }
    choice = "({0} ? {1} : {2})"
    both = "({0} && {1})"

    def has(self, f: Function | Pair) -> bool:
        return False

    def _wide(self, part: Expression, text: str) -> str:
        return f"(REAL){text}" if part.op == "number" else text

    def _call(self, part: Expression, xs: list[str]) -> str:
        number_of = [k for k, x in enumerate(part.operands) if x.is_uniform]
        if part.op in ("maximum", "minimum"):
            if not number_of:
                return f"{'Max' if part.op == 'maximum' else 'Min'}::combine({', '.join(xs)})"
            (k,) = number_of
            return f"{'at_least' if part.op == 'maximum' else 'at_most'}({xs[1 - k]}, {xs[k]})"
        return f"{'fabs' if part.op == 'absolute' else part.op}({', '.join(xs)})"


def _quotient(part: Expression, xs: list[Expression]) -> Expression | None:
    """a · (1 / b) as a / b, and a · -(1 / b) as -a / b."""
    if part.op != "multiply":
        return None
    a, b = xs
    if b.op == "negative":
        a, b = -a, b.operands[0]
    return a / b.operands[0] if b.op == "reciprocal" else None


def fused(part: Expression, xs: list[Expression]) -> Expression | None:
    """A sum in one rounding with its first product, a difference with its second one.

    Left to it, GCC fuses some copies of a loop and not others.
    """
    if part.op not in ("add", "subtract") or part.is_uniform:
        return None
    other, product = xs if part.op == "subtract" or xs[0].op != "multiply" else xs[::-1]
    if product.op != "multiply":
        return None
    factor, times = product.operands
    return make("multiply_add", -factor if part.op == "subtract" else factor, times, other)


def _product(part: Expression, xs: list[Expression]) -> Expression | None:
    """x · factor also where the factor is 1, which saves only NumPy a pass."""
    if part.op != "where" or xs[0].op != "equal" or xs[0].operands[1] is not number(1):
        return None
    return xs[2] if xs[2] is xs[1] * xs[0].operands[0] else None


def literal(x: float) -> str:
    """A number of REAL; whole ones are integers, so that no float is computed as a double."""
    if math.isinf(x) or math.isnan(x):
        raise ValueError(f"an expression has the number {x}")
    if x == int(x) and x >= 0:
        return str(int(x))
    return f"((REAL){float(x)!r})"
