"""The parser of expressions: what is right, what it learns, and that batching changes nothing."""

import ast
import re

import numpy as np
import pytest

import dynbatch as db
from examples.shift_reduce import Parser, binds_tighter, parse_all, random_expression, train


@pytest.fixture(scope="module")
def trained():
    return train(steps=41)


@pytest.mark.parametrize(
    ("left", "right", "first"),
    [("+", "*", False), ("*", "-", True), ("-", "+", True), ("^", "^", False), ("/", "*", True)],
)
def test_precedence_is_that_of_arithmetic(left, right, first):
    assert binds_tighter(left, right) == first


def test_it_learns_to_parse_what_it_has_not_seen(trained):
    rng = np.random.default_rng(99)
    expressions = [random_expression(rng) for _ in range(50)]
    trees = parse_all(trained, expressions)
    assert [re.sub("[()]", "", tree) for tree in trees] == expressions
    # Python has the same precedences; with brackets or without, one syntax tree.
    for tree, expression in zip(trees, expressions, strict=True):
        one, other = [ast.parse(text.replace("^", "**")) for text in (tree, expression)]
        assert ast.dump(one) == ast.dump(other)


def test_runs_are_the_decisions_of_the_longest():
    parser = Parser()
    with db.Graph(grad=False) as graph:
        db.drive(graph, [parser.parse(graph, text) for text in ("1+2", "3*4*5", "6-7^8+9/0")])
        runs = len(graph.plans)
    with db.Graph(grad=False) as graph:
        db.drive(graph, [parser.parse(graph, "6-7^8+9/0")])
        assert len(graph.plans) == runs
