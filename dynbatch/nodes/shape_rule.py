"""`ShapeRule`: the shapes of a node type as one line, which infers, refuses and documents.

    x (…, I), weight (O, I), [bias (O,)] -> (…, O)

Inputs stand in their order. A name that the type has as an attribute, a parameter or an array, is
that; it stands in brackets if it may be None. A name in a shape is one size wherever it stands, if
it is not a number or an attribute, and stands first in a value that is never None; `heads · d` is a
multiple of heads, `…` are any dimensions.
Alternatives, `(T, D)|(D,)`, go together: where a value has its second shape, so have all others.
Sizes with a prime, `T'`, are those that the type's `check_shape` returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import filterfalse, product
from keyword import iskeyword
from math import prod
from typing import Any, NamedTuple

from dynbatch.arguments import refused
from dynbatch.errors import ArgumentError
from dynbatch.nodes.node import Node, Shape
from dynbatch.parameter import Parameter

EXAMPLE = "x (…, I), weight (O, I), [bias (O,)] -> (…, O)"
REST, PRIME = "…", "'"
ANY_FIX = "give values of these shapes"
SIZE = r"[\w.]+'?(?: · [\w.]+'?)*"
SHAPE = rf"\((?:…|{SIZE},?|(?:…|{SIZE})(?:, {SIZE})+)?\)"
SHAPES = rf"{SHAPE}(?:\|{SHAPE})*"
VALUE = re.compile(rf"(\[?)(\w+) ({SHAPES})")
VALUES = rf"\w+ {SHAPES}|\[\w+ {SHAPES}\]"
LINE = re.compile(rf"((?:(?:{VALUES})(?:, (?:{VALUES}))* )?)-> ({SHAPES})")
BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}")
GENERATED = {"self", "len", "locals", "named", "prod", "refuse"}
"""Names of the generated code, besides some that end with an underscore."""


class Operand(NamedTuple):
    """An input, or an attribute that has a shape, with the alternatives of its shape."""

    name: str
    shapes: tuple[tuple[str, ...], ...]
    is_attribute: bool
    is_optional: bool

    def shape(self, k: int) -> tuple[str, ...]:
        """The shape that goes with alternative `k`."""
        return self.shapes[k if len(self.shapes) > 1 else 0]


class Condition(NamedTuple):
    """A test of the shapes, as an expression, and the problem where it fails.

    Attributes:
        keys:    the size, its factor and the value: `shape_fix` may have a fix for each.
        problem: with expressions in braces.
    """

    test: str
    keys: tuple[str, ...]
    problem: str


class ShapeRule:
    """A rule, parsed from its line.

    Args:
        line:       the rule as a type writes it.
        attributes: names of the type's attributes; all else are inputs and sizes.
        checks:     whether the type has a `check_shape`, or an `infer_shape`.

    Raises:
        ArgumentError: no node could follow the line.

    Attributes:
        text:   the rule as pages and errors show it.
        values: inputs and attributes that have a shape, in order.
        inputs: those that are no attributes.
        result: the value of the node.
    """

    def __init__(self, line: str, attributes: Set[str], checks: bool) -> None:
        self.attributes, self.checks = attributes, checks
        self.text = line.replace("|", " or ")
        parts = LINE.fullmatch(line)
        if parts is None:
            raise _not_a_rule(line, "it is not of the form")
        self.values = [
            Operand(name, _alternatives(shapes), name in attributes, bool(bracket))
            for bracket, name, shapes in VALUE.findall(parts[1])
        ]
        self.result = Operand("", _alternatives(parts[2]), False, False)
        self.inputs = [value for value in self.values if not value.is_attribute]
        for problem in self._problems():
            raise _not_a_rule(line, problem)

    def _problems(self) -> Iterator[str]:
        """The reasons why nodes could not follow a rule of the right form."""
        names = [value.name for value in self.values]
        for name, _, is_attribute, is_optional in self.values:
            if (
                name in GENERATED
                or name.endswith("_")
                or iskeyword(name)
                or not name.isidentifier()
            ):
                yield f"no value may have the name {name}"
            if names.count(name) > 1:
                yield f"{name} stands twice"
            if is_optional and not is_attribute:
                yield f"{name} is no attribute, and only these may be None"
        if len({1, *[len(value.shapes) for value in (*self.values, self.result)]}) > 2:
            yield "the numbers of alternatives differ"
        first: dict[tuple[int, str], Operand] = {}
        for k, value in product(range(self._count), (*self.values, self.result)):
            is_last = value is self.result
            for size in value.shape(k):
                factor, _, _ = size.rpartition(" · ")
                if factor and not (is_last or self._attribute(factor)):
                    yield f"the factor {factor} is no number and no attribute"
                for part in filterfalse(self._attribute, size.split(" · ")):
                    owner = first.setdefault((k, part), value)
                    if part.endswith(PRIME):
                        if not (is_last and self.checks):
                            yield f"{part} is a size of the result, which check_shape returns"
                    elif is_last and owner is value:
                        yield f"no value has the size {part}"
                    elif owner.is_optional and owner is not value:
                        yield f"{owner.name}, which may be None, is the first with the size {part}"

    def reason(self) -> str:
        """The rule as an error says it."""
        alike = [value.name for value in self.inputs if value.shapes == ((REST,),)]
        if len(alike) < 2:
            return self.text
        return f"{', '.join(alike[:-1])} and {alike[-1]} have one shape"

    @property
    def takes_any_rank(self) -> bool:
        """Whether an input may have more than two dimensions."""
        shapes = [shape for value in self.inputs for shape in value.shapes]
        return any([REST in shape or len(shape) > 2 for shape in shapes])

    def keeps_rows(self, static: Set[str]) -> bool:
        """Whether all inputs have one shape, and the result its dimensions but the last.

        The last must follow from that of the inputs and from attributes in `static`.
        """
        shapes = {shape for value in self.inputs for shape in value.shapes}
        if len(shapes) != 1 or REST not in shapes.pop() or REST not in self.result.shapes[0]:
            return False
        return (
            self.attributes & (_sizes(self.result.shapes) | {value.name for value in self.values})
            <= static
        )

    def conditions(self, k: int) -> tuple[list[Condition], dict[str, tuple[str, str]]]:
        """The conditions of alternative `k`; each size's expression, with the value it is of."""
        known: dict[str, tuple[str, str]] = {}
        conditions: list[Condition] = []
        for value in self.values:
            for test, keys, problem in self._conditions_of(value.name, value.shape(k), known):
                test = f"({value.name} is None or {test})" if value.is_optional else test
                conditions.append(Condition(test, (*keys, value.name), problem))
        return conditions, known

    def _conditions_of(
        self, name: str, shape: tuple[str, ...], known: dict[str, tuple[str, str]]
    ) -> list[Condition]:
        has_rest = shape[:1] == (REST,)
        count = len(shape) - has_rest
        shown = f"{{named('{name}')}} {{{name}}}"
        conditions = []
        if count or not has_rest:
            test = f"len({name}) {'>=' if has_rest else '=='} {count}"
            conditions.append(Condition(test, (), f"{{named('{name}')}} has shape {{{name}}}"))
        for number, size in enumerate(shape, -len(shape) if has_rest else 0):
            factor, _, letter = size.rpartition(" · ")
            item, multiple = f"{name}[{number}]", self._attribute(factor)
            if size == REST:
                item = f"{name}[:-{count}]" if count else name
            if multiple:
                test = f"{multiple} > 0 == {item} % {multiple}"
                equal = f"{{{multiple}}}" if factor.isdigit() else f"{factor} = {{{multiple}}}"
                problem = f"{shown}: {{{item}}} is no multiple of {equal}"
                conditions.append(Condition(test, (size, factor), problem))
                item = f"({item} // {multiple})"
            fixed = self._attribute(letter)
            if fixed:
                equal = f"{letter} = {{{fixed}}}" if fixed != letter else letter
                problem = f"{shown}: {{{item}}} is not {equal}"
                conditions.append(Condition(f"{item} == {fixed}", (letter,), problem))
            elif letter in known:
                first, owner = known[letter]
                where = f" in {letter} ({{{first}}} != {{{item}}})" if letter != REST else ""
                problem = f"{{named('{owner}')}} {{{owner}}} and {shown} differ{where}"
                conditions.append(Condition(f"{first} == {item}", (letter,), problem))
            else:
                known[letter] = item, name
        return conditions

    def _attribute(self, name: str) -> str:
        """The expression of a number or an attribute; "" for a size that the inputs have."""
        if name.isdigit():
            return name
        return f"self.{name}" if name.partition(".")[0] in self.attributes else ""

    def _result(self, k: int, known: Mapping[str, tuple[str, str]]) -> str:
        """The expression of the result's shape for alternative `k`."""
        result = self.result.shape(k)
        for value in self.values:
            if result == value.shape(k) and not value.is_optional:
                return value.name
        sizes = ""
        for size in result:
            parts = [self._attribute(part) or known[part][0] for part in size.split(" · ")]
            sizes += f"{'*' * (size == REST)}{' * '.join(parts)}, "
        return f"({sizes})"

    def function(self, checks_given: bool) -> Callable[..., Shape]:
        """The rule as `infer_shape`: one plain function, since every new node may call it.

        It calls the type's `check_shape` if there is one, and `require_given` if `checks_given`.
        """
        names = ", ".join(["self", *[value.name for value in self.inputs]])
        lines = [f"def infer_shape({names}):"]
        for value in self.values:
            if value.is_attribute:
                unless = f"None if self.{value.name} is None else " * value.is_optional
                lines.append(f"    {value.name} = {unless}self.{value.name}.shape")
        for k in range(self._count):
            conditions, known = self.conditions(k)
            lines.append(f"    if {' and '.join([test for test, _, _ in conditions]) or True}:")
            parts = [part for size in self.result.shape(k) for part in size.split(" · ")]
            primes = dict.fromkeys([part for part in parts if part.endswith(PRIME)])
            made = {size: f"made{number}_" for number, size in enumerate(primes)}
            known |= {size: (name, "") for size, name in made.items()}
            unpacks = f"{', '.join(made.values())}, = " if made else ""
            call = f"self.check_shape({names.removeprefix('self, ')})"
            lines += [f"        {unpacks}{call}"] * self.checks
            result = self._result(k, known)
            if checks_given:
                shapes = [result, *[value.name for value in self.inputs]]
                rows = ", ".join([f"prod({shape}[:-1])" for shape in shapes])
                lines.append(f"        self.require_given({rows})")
            lines.append(f"        return {result}")
        lines.append("    refuse(locals())")
        # Blocks tell by the module that a type, and not the block, looks into an array.
        functions: dict[str, Any] = {"refuse": self._refuse, "prod": prod, "__name__": __name__}
        exec(compile("\n".join(lines), f"<{self.text}>", "exec"), functions)
        function: Callable[..., Shape] = functions["infer_shape"]
        return function

    @property
    def _count(self) -> int:
        return max([len(value.shapes) for value in (*self.values, self.result)])

    def _refuse(self, names: dict[str, Any]) -> None:
        """Raise the error of the first condition that fails; of alternatives, the nearest one's."""
        node = names["self"]
        names["named"] = lambda name: self._named(node, name)
        failures = []
        for k in range(self._count):
            conditions, _ = self.conditions(k)
            number = next(i for i, each in enumerate(conditions) if not eval(each.test, names))
            failures.append((number, conditions[number]))
        failed = max(failures, key=lambda failure: failure[0])[1]
        fixes = node.shape_fix
        if not isinstance(fixes, str):
            keys = (*failed.keys, "")
            fixes = next((fixes[key] for key in keys if key in fixes), ANY_FIX)
        node.refuse(_filled(failed.problem, names), self.reason(), _filled(fixes, names))

    def _named(self, node: Node, name: str) -> str:
        """An input or attribute as an error calls it: a parameter with its name."""
        value = getattr(node, name) if name in self.attributes else None
        return f"{name} {value.name!r}" if isinstance(value, Parameter) else name


rule_of = lru_cache(maxsize=256)(ShapeRule)
"""A rule, parsed once for all types that have its line and equal attributes, as unary ones have."""


def _not_a_rule(line: str, problem: str) -> ArgumentError:
    rule = "names with shapes in order, then the shape of the value, of sizes that they have"
    return refused("shape_rule", f"{line!r}: {problem}", rule, f"as in {EXAMPLE!r}")


def _filled(text: str, names: dict[str, Any]) -> str:
    """The text with the values of its expressions in braces, as in an f-string."""
    return BRACES.sub(lambda braces: str(eval(f"f'''{braces[0]}'''", names)), text)


def _sizes(shapes: Iterable[tuple[str, ...]]) -> set[str]:
    """The names and numbers in some shapes."""
    return {part for shape in shapes for size in shape for part in size.split(" · ")}


def _alternatives(shapes: str) -> tuple[tuple[str, ...], ...]:
    """The sizes of each of some shapes."""
    return tuple(
        [
            tuple([size for size in shape[1:-1].removesuffix(",").split(", ") if size])
            for shape in shapes.split("|")
        ]
    )
