"""Expressions of numbers, each made once, so that equal parts are one object.

An expression is a number, a variable, or a primitive of others. Primitives are what every language
has, in `functions.h`, `common.cuh` and NumPy; `calculus.py` differentiates them. A call of a
`Function` stays a call until it is printed: its slope may be better than the one of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MASKS = {
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==",
    "not_equal": "!=", "both": "&",
}  # fmt: skip
"""The primitives that are true or false, with their signs."""

INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", **MASKS}

TWINS = {
    "normal_below": ("normal_below", "normal_density"),
    "normal_density": ("normal_below", "normal_density"),
    "sigmoid_below": ("sigmoid_below", "sigmoid_above"),
    "sigmoid_above": ("sigmoid_below", "sigmoid_above"),
}
"""Two results of one computation, by hand: Φ(x) with exp(-x²/2), and σ(x) with σ(-x)."""


Binary = Callable[["Expression", "Operand"], "Expression"]


def _operators(op: str) -> tuple[Binary, Binary]:
    """A primitive as an operator, and as the one of a right operand."""
    return lambda a, b: make(op, a, b), lambda a, b: make(op, b, a)


class Expression:
    """A number, a variable, or an operation on other expressions.

    Attributes:
        op:       "number", "variable", "argument" (a variable that is one number for all
                  elements), "call" (of a `Function`), or the name of a primitive.
        operands: of the operation.
        value:    the number, the variable's name, or the called function.
        is_uniform: whether it is one number for all elements.
    """

    __slots__ = ("is_uniform", "op", "operands", "value")

    def __init__(self, op: str, operands: tuple[Expression, ...], value: Any) -> None:
        self.op, self.operands, self.value = op, operands, value
        self.is_uniform: bool = op != "variable" and all([x.is_uniform for x in operands])

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __lt__, __gt__ = _operators("less")[0], _operators("greater")[0]
    __le__, __ge__ = _operators("less_equal")[0], _operators("greater_equal")[0]
    __and__, _ = _operators("both")

    def __neg__(self) -> Expression:
        return make("negative", self)


Operand = Expression | float

_made: dict[tuple[object, ...], Expression] = {}


def _intern(op: str, operands: tuple[Expression, ...] = (), value: Any = None) -> Expression:
    key = (op, operands, repr(value) if op == "number" else value)
    return _made.setdefault(key, Expression(op, operands, value))


def number(x: Operand) -> Expression:
    return x if isinstance(x, Expression) else _intern("number", value=x)


def variable(name: str) -> Expression:
    return _intern("variable", value=name)


def argument(name: str) -> Expression:
    return _intern("argument", value=name)


def call(function: object, *operands: Operand) -> Expression:
    return _intern("call", tuple(map(number, operands)), function)


def make(op: str, *operands: Operand) -> Expression:
    """A primitive of operands, simplified by what keeps every bit of finite and other numbers."""
    xs = tuple(map(number, operands))
    first, last = xs[0], xs[-1]
    match op:
        case "negative" if first.op == "number":
            return number(-first.value)
        case "negative" if first.op == "negative":
            return first.operands[0]
        case "multiply" if first is number(1):
            return last
        case "multiply" | "divide" if last is number(1):
            return first
        case "multiply" if number(-1) in xs:
            return -(last if first is number(-1) else first)
        case "where" if xs[1] is last:
            return last
    return _intern(op, xs)


def primitive(op: str) -> Callable[..., Expression]:
    """The primitive of a name, as a function of expressions and numbers."""
    return lambda *operands: make(op, *operands)


log1p, expm1 = primitive("log1p"), primitive("expm1")  # of 0 to 1; of 0 and less
maximum, minimum, where, equal = map(primitive, ("maximum", "minimum", "where", "equal"))
normal_below, normal_density = primitive("normal_below"), primitive("normal_density")
sigmoid_below, sigmoid_above = primitive("sigmoid_below"), primitive("sigmoid_above")
not_equal, pow = primitive("not_equal"), primitive("pow")  # of two values; power's is a number
gauss, hypot1 = primitive("gauss"), primitive("hypot1")  # exp(-x²) and √(1 + x²)
# Languages whose division is one pass divide by x itself: a · (1 / x) is a / x there.
reciprocal = primitive("reciprocal")


def parts(*roots: Expression) -> list[Expression]:
    """All that the roots are made of, each once, operands first."""
    seen: dict[Expression, None] = {}

    def visit(part: Expression) -> None:
        if part not in seen:
            for x in part.operands:
                visit(x)
            seen[part] = None

    for root in roots:
        visit(root)
    return list(seen)


def variables(*roots: Expression) -> set[str]:
    """The names of the variables that are read."""
    return {part.value for part in parts(*roots) if part.op == "variable"}


Change = Callable[[Expression, list[Expression]], Expression | None]


def rebuild(roots: tuple[Expression, ...], change: Change) -> tuple[Expression, ...]:
    """The roots where `change`, of a part and its new operands, may put another part."""
    made: dict[Expression, Expression] = {}
    for part in parts(*roots):
        xs = [made[x] for x in part.operands]
        made[part] = change(part, xs) or _like(part, xs)
    return tuple([made[root] for root in roots])


def _like(part: Expression, operands: list[Expression]) -> Expression:
    if part.op == "call":
        return call(part.value, *operands)
    return make(part.op, *operands) if operands else part


def substitute(root: Expression, old: Expression, new: Expression) -> Expression:
    return rebuild((root,), lambda part, xs: new if part is old else None)[0]


def expand(root: Expression, language: str = "") -> Expression:
    """The root in primitives, and in calls of functions that a language has by hand."""

    def change(part: Expression, xs: list[Expression]) -> Expression | None:
        if part.op != "call" or language in part.value.by_hand:
            return None
        return expand(part.value.body(*xs), language)

    return rebuild((root,), change)[0]


def conditions(*roots: Expression) -> Iterator[Expression]:
    """The conditions that choices between uniform numbers depend on."""
    tests = [part.operands[0] for part in parts(*roots) if part.op == "where"]
    yield from dict.fromkeys([test for test in tests if test.is_uniform])


def decide(root: Expression, truth: dict[Expression, bool]) -> Expression:
    """The root where uniform conditions are known."""

    def change(part: Expression, xs: list[Expression]) -> Expression | None:
        if part.op != "where" or part.operands[0] not in truth:
            return None
        return xs[1] if truth[part.operands[0]] else xs[2]

    return rebuild((root,), change)[0]


def uniform_text(part: Expression) -> str:
    """A uniform expression in Python, over the arguments' names."""
    if not part.operands:
        return str(part.value) if part.op == "argument" else repr(part.value)
    xs = [uniform_text(x) for x in part.operands]
    if part.op in INFIX:
        return f"({xs[0]} {INFIX[part.op]} {xs[1]})"
    return f"(-{xs[0]})" if part.op == "negative" else f"np.{part.op}({', '.join(xs)})"
