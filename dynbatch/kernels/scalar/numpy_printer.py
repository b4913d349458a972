"""Prints expressions as NumPy: a pass for each operation, in place where that is possible.

Registers are the outputs, operands that nothing reads any more, then arrays of their own. Texts are
compiled when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dynbatch.kernels.scalar import normal
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
    "negative": "np.multiply({0}, -1)",
    "reciprocal": "np.divide(1, {0})",  # np.reciprocal is slower
    "pow": "np.power({0}, {1})", "hypot1": "np.hypot({0}, 1)",
    "gauss": "normal.gauss({0})", "erf": "normal.erf({0})",
    "masked": "np.multiply({0}, {1})", "both": "np.logical_and({0}, {1})",
    "asin": "np.arcsin({0})", "acos": "np.arccos({0})", "atan": "np.arctan({0})",
    "asinh": "np.arcsinh({0})", "acosh": "np.arccosh({0})", "atanh": "np.arctanh({0})",
}  # fmt: skip
"""Primitives that NumPy calls by another name."""

TWIN_CALLS = {"normal_below": "normal.distribution", "sigmoid_below": "normal.sigmoids"}


class Printer:
    """The statements that compute roots into arrays of their names.

    Args:
        roots:  what is computed, by the names of the arrays that take it.
        shared: the inputs whose memory outputs may share: those are written when these have been
                read for the last time.

    Attributes:
        lines:   the statements.
        scratch: the arrays that they make.
    """

    def __init__(self, roots: Roots, shared: set[str]) -> None:
        self.lines: list[str] = []
        self.scratch: list[str] = []
        (self._like, *_) = roots
        printed = map(_mask_of, rebuild(tuple(roots.values()), _masked))
        self._outputs = dict(zip(printed, roots, strict=True))
        everything = parts(*self._outputs)
        self._steps = [part for part in everything if part.operands and not part.is_uniform]
        self._ends = {x: k for k, part in enumerate(self._steps) for x in part.operands}
        reads = [self._ends.get(part, -1) for part in everything if part.value in shared]
        self._opens = max(reads, default=-1)
        self._ends |= {root: len(self._steps) for root in self._outputs}
        self._registers: dict[Expression, str] = {}
        self._masks = 0
        for k, part in enumerate(self._steps):
            if part not in self._registers:
                self._add(part, k)
        for root, name in self._outputs.items():
            if (text := self._text(root)) != name:
                test = "" if root.is_uniform else f"if {name} is not {text}: "
                self.lines.append(f"{test}np.copyto({name}, {text})")

    def _text(self, part: Expression) -> str:
        if part.is_uniform:
            return uniform_text(part)
        return str(part.value) if part.op == "variable" else self._registers[part]

    def _add(self, part: Expression, k: int) -> None:
        xs = [self._text(x) for x in part.operands]
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
        elif part.op == "where":
            self.lines.append(f"np.copyto({register}, {text})")
        else:
            self.lines.append(f"{text[:-1]}, out={register})")

    def _call(self, part: Expression, xs: list[str]) -> str:
        if part.op == "call":
            return str(part.value.by_hand["numpy"]).format(*xs)
        if part.op == "where" and part.operands[1].is_uniform and part.operands[2].is_uniform:
            xs[1] = f"{self._like}.dtype.type({xs[1]})"  # two numbers would make float64
        return CALLS[part.op].format(*xs) if part.op in CALLS else f"np.{part.op}({', '.join(xs)})"

    def _register(self, part: Expression, k: int) -> str:
        """The array that step k may write, or "" for one of its own."""
        busy = {self._registers[x] for x in self._registers if self._ends[x] > k}
        dying = [
            self._registers[x]
            for x in part.operands
            if x in self._registers and (x.op in MASKS) == (part.op in MASKS)
        ]
        dying = [register for register in dying if register not in busy]
        is_open = k >= self._opens
        free = [name for name in self._outputs.values() if is_open and name not in busy]
        if self._outputs.get(part) in free:
            return self._outputs[part]
        if part.op in MASKS:
            return dying[0] if dying else ""
        if part.op == "where":  # np.where makes an array
            return ""
        if len(self._outputs) > 1:  # an output that holds something else has no room for its own
            free = []
        spare = [register for register in self.scratch if register not in busy]
        choice = [*[register for register in dying if register in free], *free, *dying, *spare]
        return choice[0] if choice else ""

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


def text(name: str, parameters: Sequence[str], roots: Roots, shared: set[str]) -> str:
    """The Python text of a function that computes roots into arrays of their names."""
    lines = Printer(roots, shared).lines
    return "\n    ".join([f"def {name}({', '.join(parameters)}):", *lines, ""])


def gradient(parameters: Sequence[str], root: Expression) -> tuple[Callable[..., None], bool]:
    """The code that computes a gradient into `out`, and whether that may be dy."""
    roots = {"out": root}
    # Written after dy has been read, unless that would take the only array of its own.
    is_safe = bool(Printer(roots, set()).scratch) or not Printer(roots, {"dy"}).scratch
    return function("backward", parameters, roots, {"dy"} if is_safe else set()), is_safe


def function(
    name: str, parameters: Sequence[str], roots: Roots, shared: set[str] | None = None
) -> Callable[..., None]:
    """Compile `text`: once for each outcome of what it asks about the arguments, when it is met."""
    tests = list(conditions(*roots.values()))
    if not tests:
        return _compiled(name, text(name, parameters, roots, shared or set()))
    asked = "".join([f"{uniform_text(test)}, " for test in tests])
    outcome = _compiled("outcome", f"def outcome({', '.join(parameters)}):\n    return ({asked})")
    known: dict[tuple[bool, ...], Callable[..., None]] = {}

    def run(*given: Any) -> None:
        key = outcome(*given)
        if key not in known:
            truth = dict(zip(tests, key, strict=True))
            chosen = {out: decide(root, truth) for out, root in roots.items()}
            known[key] = _compiled(name, text(name, parameters, chosen, shared or set()))
        known[key](*given)

    return run


def _compiled(name: str, text: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"np": np, "normal": normal}
    exec(compile(text, f"<{name} printed by dynbatch>", "exec"), scope)
    result: Callable[..., Any] = scope[name]
    return result
