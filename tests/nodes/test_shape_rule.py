"""Rules of shapes: what a line infers, refuses and says."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError
from dynbatch.nodes.linear import LinearMap, MatMul
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.gather import Transpose
from dynbatch.nodes.shape_rule import ShapeRule
from tests.reporting.test_node_types import below


class Node:
    """Attributes that rules read, and the error instead of raising it with a line."""

    shape_fix = "fix"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def refuse(self, problem, rule, fix):
        raise ValueError(problem, rule, fix)


def inferred(line, *shapes, **attributes):
    rule = ShapeRule(line, {*attributes}, False)
    return rule.function(False)(Node(**attributes), *shapes)


def refused(line, *shapes, **attributes):
    with pytest.raises(ValueError) as raised:
        inferred(line, *shapes, **attributes)
    return raised.value.args


@pytest.mark.parametrize(
    ("line", "shapes", "result"),
    [
        ("x (…) -> (…)", [()], ()),
        ("x (…) -> (…)", [(2, 3, 4)], (2, 3, 4)),
        ("a (…), b (…) -> ()", [(2, 3), (2, 3)], ()),
        ("x (…, 2 · D) -> (…, D)", [(0, 3, 8)], (0, 3, 4)),
        ("a (T, I)|(I,), b (I, O) -> (T, O)|(O,)", [(2, 3), (3, 4)], (2, 4)),
        ("a (T, I)|(I,), b (I, O) -> (T, O)|(O,)", [(3,), (3, 4)], (4,)),
        ("x (T, D) -> (D, T)", [(2, 3)], (3, 2)),
        ("x (T, D), y (T, 1) -> (D, 2 · D, 7)", [(2, 3), (2, 1)], (3, 6, 7)),
    ],
)
def test_a_rule_infers_the_shape(line, shapes, result):
    assert inferred(line, *shapes) == result


def test_attributes_are_sizes_factors_and_shapes():
    line = "x (T, heads · d), [bias (d,)] -> (count, heads · d)"
    bias = np.ones(3)
    assert inferred(line, (5, 6), heads=2, count=4, bias=None) == (4, 6)
    assert inferred(line, (5, 6), heads=2, count=4, bias=bias) == (4, 6)
    problem, rule, _ = refused(line, (5, 6), heads=3, count=4, bias=bias)
    assert problem == "x (5, 6) and bias (3,) differ in d (2 != 3)"
    assert rule == line
    problem, _, _ = refused(line, (5, 6), heads=4, count=4, bias=None)
    assert problem == "x (5, 6): 6 is no multiple of heads = 4"
    problem, _, _ = refused(line, (5, 6), heads=0, count=4, bias=None)
    assert problem == "x (5, 6): 6 is no multiple of heads = 0"


@pytest.mark.parametrize(
    ("line", "shapes", "problem"),
    [
        ("x (T, D)|(D,) -> (D,)", [()], "x has shape ()"),
        ("a (T, I)|(I,), b (I, O) -> (T, O)|(O,)", [(3,), (2, 4)],
         "a (3,) and b (2, 4) differ in I (3 != 2)"),
        ("a (T, I)|(I,), b (I, O) -> (T, O)|(O,)", [(2, 3), (3,)], "b has shape (3,)"),
        ("a (…), b (…), c (…) -> (…)", [(2,), (2,), (3,)], "a (2,) and c (3,) differ"),
        ("a (…, D), b (…, D) -> (…)", [(2, 4), (3, 4)], "a (2, 4) and b (3, 4) differ"),
        ("x (T, 3) -> (T,)", [(2, 4)], "x (2, 4): 4 is not 3"),
        ("x (…, 2 · D) -> (…, D)", [(3, 5)], "x (3, 5): 5 is no multiple of 2"),
    ],
)  # fmt: skip
def test_the_first_size_that_does_not_fit_is_named(line, shapes, problem):
    assert refused(line, *shapes)[0] == problem


class Halves(db.Operation):
    """A type that makes one size itself."""

    __slots__ = ("step",)
    shape_rule = "x (T, D)|(D,) -> (D, T')|(D,)"

    def check_shape(self, x):
        return (len(range(0, x[0], self.step)),)


def test_a_size_with_a_prime_is_what_the_type_returns():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((5, 2)))
        assert [Halves(x, step=step).shape for step in (1, 2, 3)] == [(2, 5), (2, 3), (2, 2)]
        assert Halves(x[0], step=2).shape == (2,)


def test_equal_shapes_are_said_in_words_and_alternatives_too():
    assert refused("a (…), b (…), c (…) -> ()", (1,), (2,), (1,))[1] == "a, b and c have one shape"
    assert refused("x (T, D)|(D,) -> ()", ())[1] == "x (T, D) or (D,) -> ()"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("x (T, D)", "it is not of the form"),
        ("x T -> ()", "it is not of the form"),
        ("x (T,D) -> ()", "it is not of the form"),
        ("(T,) -> ()", "it is not of the form"),
        ("x (T -> ()", "it is not of the form"),
        ("[x (T,) -> ()", "it is not of the form"),
        ("x (T,) -> y (D,) -> ()", "it is not of the form"),
        ("x (T, 2·D) -> ()", "it is not of the form"),
        ("x (T, D) -> (T, E)", "no value has the size E"),
        ("x (T,) -> (…, T)", "no value has the size …"),
        ("x (T, D)|(D,) -> (T, D)", "no value has the size T"),
        ("x (T, D), [w (O, D)] -> (T, O)", "w, which may be None, is the first with the size O"),
        ("[w (D,)], x (T, D) -> (T, D)", "w, which may be None, is the first with the size D"),
        ("[w (…)], x (…) -> ()", "w, which may be None, is the first with the size …"),
        ("x (T,), [y (T,)] -> (T,)", "y is no attribute, and only these may be None"),
        ("x (n · d,) -> ()", "the factor n is no number and no attribute"),
        ("x (2 · 2 · d,) -> ()", "the factor 2 · 2 is no number and no attribute"),
        ("x (T,), x (T,) -> ()", "x stands twice"),
        ("class (T,) -> ()", "no value may have the name class"),
        ("2x (T,) -> ()", "no value may have the name 2x"),
        ("self (T,) -> ()", "no value may have the name self"),
        ("len (T,) -> ()", "no value may have the name len"),
        ("refuse (T,) -> ()", "no value may have the name refuse"),
        ("named (T,) -> ()", "no value may have the name named"),
        ("locals (T,) -> ()", "no value may have the name locals"),
        ("made0_ (T,) -> ()", "no value may have the name made0_"),
        ("x (T,) -> (T',)", "T' is a size of the result, which check_shape returns"),
        ("x (T', D) -> (D,)", "T' is a size of the result, which check_shape returns"),
        ("x (T, D)|(D,) -> (T,)|(1,)|(2,)", "the numbers of alternatives differ"),
    ],
)
def test_a_line_that_is_no_rule_is_refused(line, problem):
    with pytest.raises(ArgumentError) as raised:
        ShapeRule(line, {"w"}, False)
    assert f"shape_rule: {line!r}: {problem}.\n  rule: names with shapes" in str(raised.value)


def test_what_only_a_value_that_may_be_none_has_stands_nowhere_else():
    line = "x (T, D), [w (O, O, D)] -> (T,)"
    assert inferred(line, (2, 3), w=None) == inferred(line, (2, 3), w=np.ones((4, 4, 3))) == (2,)
    assert refused(line, (2, 3), w=np.ones((4, 5, 3)))[0].endswith("differ in O (4 != 5)")


def test_the_generated_code_has_no_other_names():
    rule = ShapeRule("x (T, d)|(d,), [w (d,)] -> (H', 2 · W')|(H',)", {"w"}, True)
    code = rule.function(True).__code__
    assert {*code.co_names} <= {"self", "len", "locals", "refuse", "prod", "w", "shape",
                                "check_shape", "require_given"}  # fmt: skip
    assert {*code.co_varnames} == {"self", "x", "w", "made0_", "made1_"}


def test_primes_may_have_factors_and_come_in_their_order():
    class Cells(db.Operation):
        __slots__ = ()
        shape_rule = "x (T, D) -> (T', 2 · A')"

        def check_shape(self, x):
            return x[0] + 1, x[1] + 2

    with db.Graph() as graph:
        assert Cells(F.input(graph, np.ones((3, 4)))).shape == (4, 12)


@pytest.mark.parametrize(
    ("fix", "shown"),
    [
        ('say """{x[0]}"""', 'say """2"""'),
        ("""it's "{named('x')}", {{x}} {x[1]:03}\\n""", 'it\'s "x", {x} 003\\n'),
        ("{x[0] if x[1] != 4 else 'none: 0'!r}", "2"),
    ],
)
def test_a_fix_may_hold_quotes_and_expressions(fix, shown, monkeypatch):
    monkeypatch.setattr(Node, "shape_fix", fix)
    assert refused("x (T, 4) -> ()", (2, 3))[2] == shown


def test_rank_and_rows_follow_from_the_rule():
    assert LinearMap.any_rank and LinearMap.keeps_rows
    assert MatMul.any_rank and not MatMul.keeps_rows
    assert not Transpose.any_rank

    class Cut(Operation):
        """The first columns of x."""

        __slots__ = ("columns",)
        shape_rule = "x (…, D) -> (…, columns)"

    assert Cut.any_rank and not Cut.keeps_rows  # nodes of one width may have other columns
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 5)))
        assert [Cut(x, columns=columns).shape for columns in (2, 3)] == [(2, 2), (2, 3)]
    assert type("Same", (Cut,), {"static": ("columns",), "shape_rule": Cut.shape_rule}).keeps_rows


class Pairs(db.Operation):
    """A type of a user's, with a rule and a check of its own."""

    __slots__ = ()
    shape_rule = "x (T, D), y (T, E) -> (T, 2)"
    shape_fix = "give {x[0]} rows, as x has"

    def check_shape(self, x, y):
        self.require(x[0] > 1, f"{x[0]} row", "two rows or more", "another sentence")


def test_a_users_type_has_a_rule_a_fix_and_a_check_at_the_users_line():
    with db.Graph() as graph:
        x, y, one = [F.input(graph, np.ones(shape)) for shape in ((3, 4), (2, 5), (1, 1))]
        with pytest.raises(ShapeError) as raised:
            Pairs(x, y)
        message = str(raised.value)
        assert "x (3, 4) and y (2, 5) differ in T (3 != 2)" in message
        assert "rule: x (T, D), y (T, E) -> (T, 2)\n  fix:  give 3 rows, as x has\n" in message
        assert f"made at {__file__}" in message
        with pytest.raises(
            ShapeError, match=r"1 row\.[\s\S]*two rows or more[\s\S]*test_shape_rule"
        ):
            Pairs(one, one)
        assert Pairs(x, x).shape == (3, 2)


def test_a_rule_is_compiled_by_the_first_node_of_its_type():
    class Doubled(Pairs):
        """A type whose rule nobody has asked."""

        __slots__ = ()
        shape_rule = "x (T, D) -> (T, 2 · D)"

        def check_shape(self, x):
            pass

    asked = Doubled.infer_shape
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 4)))
        assert Doubled(x).shape == (3, 8)
        compiled = Doubled.infer_shape
        assert compiled is not asked and Pairs.infer_shape is not compiled
        assert Doubled(x).shape == (3, 8) and Doubled.infer_shape is compiled


def test_types_with_one_line_and_equal_attributes_share_the_parsed_rule(monkeypatch):
    parsed = []
    monkeypatch.setattr(ShapeRule, "_problems", lambda rule: iter(parsed.append(rule) or ()))
    for _ in range(2):
        type("Anew", (Pairs,), {"__slots__": (), "shape_rule": "x (T, Anew), y (T, E) -> (T, 2)"})
    assert len(parsed) == 1
    type("Other", (Pairs,), {"__slots__": ("Anew",), "shape_rule": parsed[0].text})
    assert len(parsed) == 2 and "Anew" in parsed[1].attributes


def ruled():
    return [kind for kind in below(Operation) if kind.shape_rule and kind.is_built_in]


def test_no_type_says_its_shapes_twice():
    assert len(ruled()) > 80
    assert [each for each in ruled() if "Shape:" in (each.__doc__ or "")] == []


def test_every_condition_of_a_type_has_a_fix():
    for kind in ruled():
        rule = ShapeRule(kind.shape_rule, kind._attribute_names(), True)
        fixes = kind.shape_fix
        if isinstance(fixes, str):
            continue
        for k in range(2):
            conditions, _ = rule.conditions(k)
            missing = [each.keys for each in conditions if not {*each.keys, ""} & {*fixes}]
            assert missing == [], kind
