"""Prints expressions as NumPy: a pass for each operation, in place where that is possible.

Registers are the outputs, operands that nothing reads any more, then arrays of their own. Texts are
compiled when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dynbatch.kernels.scalar import normal
from dynbatch.kernels.scalar.constants import Constants
from dynbatch.kernels.scalar.expressions import (
    MASKS,
    TWINS,
    Expression,
    conditions,
    decide,
    make,
    number,
    parts,
    rebuild,
    uniform_text,
)

Roots = Mapping[str, Expression]

CALLS = {
    # Not np.negative: NumPy 2.4's is wrong for columns of rows that are 16 or 64 bytes apart.
    "negative": "np.multiply({0}, {1})",
    "reciprocal": "np.divide({1}, {0})",  # np.reciprocal is slower
    "pow": "np.power({0}, {1})", "hypot1": "np.hypot({0}, {1})",
    "gauss": "normal.gauss({0})", "erf": "normal.erf({0})",
    "masked": "np.multiply({0}, {1})", "both": "np.logical_and({0}, {1})",
    "asin": "np.arcsin({0})", "acos": "np.arccos({0})", "atan": "np.arctan({0})",
    "asinh": "np.arcsinh({0})", "acosh": "np.arccosh({0})", "atanh": "np.arctanh({0})",
}  # fmt: skip
"""Primitives that NumPy calls by another name."""

NUMBERS = {"negative": -1, "reciprocal": 1, "hypot1": 1}
"""The numbers that such a call takes besides."""

TWIN_CALLS = {"normal_below": "normal.distribution", "sigmoid_below": "normal.sigmoids"}


class Printer:
    """The statements that compute roots into arrays of their names.

    Args:
        roots:  what is computed, by the names of the arrays that take it.
        shared: the inputs whose memory outputs may share: those are written when these have been
                read for the last time. An output with the name of an input takes its place.
        scratch: arrays that are given for values between.

    Attributes:
        lines:   the statements.
        scratch: with the arrays that they make.
        numbers: the names of constants, c0, c1, …, by their texts.
    """

    def __init__(self, roots: Roots, shared: set[str], scratch: Sequence[str] = ()) -> None:
        self.lines: list[str] = []
        self.scratch = list(scratch)
        self.numbers: dict[str, str] = {}
        (self._like, *_) = roots
        printed = [*map(_mask_of, rebuild(tuple(roots.values()), _masked))]
        self._outputs: dict[Expression, str] = {}
        self._has_several = len(roots) > 1
        for root, name in zip(printed, roots, strict=True):
            self._outputs.setdefault(root, name)  # another output of one root is a copy
        everything = parts(*self._outputs)
        self._steps = [part for part in everything if part.operands and not part.is_uniform]
        self._ends = {x: k for k, part in enumerate(self._steps) for x in part.operands}
        reads = {p.value: self._ends.get(p, -1) for p in everything if p.op == "variable"}
        opens = max([reads.get(name, -1) for name in shared], default=-1)
        self._opens = {name: max(opens, reads.get(name, -1)) for name in roots}
        self._inputs = {p: p.value for p in everything if p.value in roots and p.op == "variable"}
        self._ends |= {root: len(self._steps) for root in self._outputs}
        self._registers: dict[Expression, str] = {}
        self._masks = 0
        for k, part in enumerate(self._steps):
            if part not in self._registers:
                self._add(part, k)
        for root, name in zip(printed, roots, strict=True):
            if (text := self._text(root)) != name:
                test = "" if root.is_uniform else f"if {name} is not {text}: "
                self.lines.append(f"{test}np.copyto({name}, {text})")

    def text(self, name: str, parameters: Sequence[str]) -> str:
        """The Python text of the function that computes the roots."""
        lines = self.lines
        if self.numbers:
            names, values = ", ".join(self.numbers.values()), ", ".join(self.numbers)
            lines = [f"[{names}] = numbers[{self._like}.dtype]  # {values}", *lines]
        return "\n    ".join([f"def {name}({', '.join(parameters)}):", *lines, ""])

    def _text(self, part: Expression) -> str:
        if part.op == "number":
            return self._number(part.value)
        if part.is_uniform:
            return uniform_text(part)
        return str(part.value) if part.op == "variable" else self._registers[part]

    def _add(self, part: Expression, k: int) -> None:
        xs = [self._text(x) for x in part.operands]
        if part.op in NUMBERS:
            xs.append(self._number(NUMBERS[part.op]))
        if part.op in TWINS:
            self._add_twins(part, xs[0])
            return
        register = self._register(part, k)
        is_new = not register
        if is_new and part.op in MASKS:
            self._masks += 1
            register = f"m{self._masks}"
        elif is_new:
            register = self._new()
        self._registers[part] = register
        text = self._call(part, xs)
        if is_new:
            self.lines.append(f"{register} = {text}")
        elif part.op == "where" and register == xs[2]:
            self.lines.append(f"np.copyto({register}, {xs[1]}, where={xs[0]})")
        elif part.op == "where":
            self.lines.append(f"np.copyto({register}, {text})")
        else:
            keyword = "out=" if part.op in ("maximum", "minimum") else ""  # by position: a warning
            self.lines.append(f"{text[:-1]}, {keyword}{register})")

    def _call(self, part: Expression, xs: list[str]) -> str:
        if part.op == "call":
            return str(part.value.by_hand["numpy"]).format(*xs)
        choices = part.operands[1:] if part.op == "where" else ()
        if choices and all([x.is_uniform and x.op != "number" for x in choices]):
            xs[1] = f"{self._like}.dtype.type({xs[1]})"  # two numbers would make float64
        return CALLS[part.op].format(*xs) if part.op in CALLS else f"np.{part.op}({', '.join(xs)})"

    def _register(self, part: Expression, k: int) -> str:
        """The array that step k may write, or "" for one of its own."""
        busy = {self._registers[x] for x in self._registers if self._ends[x] > k}
        known = {**self._inputs, **self._registers}
        dying = [
            known[x] for x in part.operands if x in known and (x.op in MASKS) == (part.op in MASKS)
        ]
        dying = [register for register in dying if register not in busy]
        free = [x for x in self._outputs.values() if k >= self._opens[x] and x not in busy]
        if self._outputs.get(part) in free:
            return self._outputs[part]
        if part.op in MASKS:
            return dying[0] if dying else ""
        if part.op == "where":  # np.where makes an array
            mask, _, other = part.operands
            # Equality is rare: writing a few elements is less than an array.
            return known[other] if mask.op == "equal" and known.get(other) in dying else ""
        if self._has_several:  # an output that holds something else has no room for its own
            free = [x for x in free if x in dying and self._ends[part] <= self._made(x)]
            dying = [x for x in dying if x in [*free, *self.scratch]]
        spare = [register for register in self.scratch if register not in busy]
        choice = [*[register for register in dying if register in free], *free, *dying, *spare]
        return choice[0] if choice else ""

    def _made(self, output: str) -> int:
        """The step that computes an output."""
        (root,) = [root for root, name in self._outputs.items() if name == output]
        return self._steps.index(root) if root in self._steps else -1

    def _number(self, value: float) -> str:
        return self.numbers.setdefault(repr(value), f"c{len(self.numbers)}")

    def _new(self) -> str:
        self.scratch.append(f"t{len(self.scratch)}")
        return self.scratch[-1]

    def _add_twins(self, part: Expression, x: str) -> None:
        twins = TWINS[part.op]
        wanted = [
            step for step in self._steps if step.op in twins and step.operands == part.operands
        ]
        names = [self._new(), self._new()]
        alone = ", False" if twins[0] == "sigmoid_below" and len(wanted) == 1 else ""
        self.lines.append(f"{', '.join(names)} = {TWIN_CALLS[twins[0]]}({x}{alone})")
        self._registers |= {step: names[twins.index(step.op)] for step in wanted}


def _mask_of(root: Expression) -> Expression:
    """The mask that a root of 1 and 0 is."""
    is_mask = root.op == "where" and root.operands[1:] == (number(1), number(0))
    return root.operands[0] if is_mask and not root.operands[0].is_uniform else root


def _masked(part: Expression, xs: list[Expression]) -> Expression | None:
    """A product with a mask reads the mask itself."""
    if (
        part.op == "multiply"
        and xs[1].op == "where"
        and xs[1].operands[1:] == (number(1), number(0))
    ):
        return make("masked", xs[0], xs[1].operands[0])
    return None


def gradient(
    parameters: Sequence[str], root: Expression, over_dy: bool = True
) -> tuple[Callable[..., None], bool]:
    """The code that computes a gradient into `out`, and whether that may be dy, if it is to be."""
    roots = {"out": root}
    # Written after dy has been read, unless that would take the only array of its own.
    scratch = Printer(roots, {"dy"}).scratch
    is_safe = not scratch or (over_dy and bool(Printer(roots, set()).scratch))
    return function("backward", parameters, roots, {"dy"} if is_safe else set()), is_safe


def question(
    parameters: Sequence[str], tests: Iterable[Expression]
) -> Callable[..., tuple[bool, ...]]:
    """Compile tests of numbers among the arguments, and whether a rare one holds of any element."""
    asked = "".join([f"{_test_text(test)}, " for test in tests])
    return _compiled("outcome", f"def outcome({', '.join(parameters)}):\n    return ({asked})")


def _test_text(test: Expression) -> str:
    if test.is_uniform:
        return uniform_text(test)
    value, number = test.operands[0].operands
    return f"np.count_nonzero({value.value} == {number.value}) > 0"


def _rare(*roots: Expression) -> Iterator[Expression]:
    """The tests of two conditions, the first of which asks whether an input is a certain number."""
    for test in dict.fromkeys([part.operands[0] for part in parts(*roots) if part.op == "where"]):
        if test.op == "both" and not test.is_uniform and test.operands[0].op == "equal":
            value, border = test.operands[0].operands
            if not value.operands and border.op == "number":
                yield test


def function(
    name: str, parameters: Sequence[str], roots: Roots, shared: set[str] | None = None,
    scratch: Sequence[str] = (),
) -> Callable[..., None]:  # fmt: skip
    """Compile roots: once for each outcome of what they ask about the arguments, when it is met.

    Where no element meets a rare case, such as an exponent of 0, none of its passes is made.
    """
    rare = list(_rare(*roots.values()))
    tests = [*conditions(*roots.values()), *rare]
    if not tests:
        return _printed(name, parameters, roots, shared or set(), scratch)
    outcome = question(parameters, tests)
    known: dict[tuple[bool, ...], Callable[..., None]] = {}

    def run(*given: Any) -> None:
        key = outcome(*given)
        if key not in known:
            truth = dict(zip(tests, key, strict=True))
            truth = {test: holds for test, holds in truth.items() if test not in rare or not holds}
            chosen = {out: decide(root, truth) for out, root in roots.items()}
            known[key] = _printed(name, parameters, chosen, shared or set(), scratch)
        known[key](*given)

    return run


def _printed(
    name: str, parameters: Sequence[str], roots: Roots, shared: set[str], scratch: Sequence[str]
) -> Callable[..., None]:
    printer = Printer(roots, shared, scratch)
    return _compiled(name, printer.text(name, parameters), Constants(map(float, printer.numbers)))


def _compiled(name: str, text: str, numbers: Constants | None = None) -> Callable[..., Any]:
    scope: dict[str, Any] = {"np": np, "normal": normal, "numbers": numbers}
    exec(compile(text, f"<{name} printed by dynbatch>", "exec"), scope)
    result: Callable[..., Any] = scope[name]
    return result
