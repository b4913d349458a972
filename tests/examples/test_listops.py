"""ListOps: values and trees of expressions, and what is drawn."""

from random import Random

import pytest

from examples.corpora.listops import MOST_DEPTH, TOKENS, Expression, _tokens, draw, numbered
from examples.trees import listops


def expression(text):
    return Expression(tuple(text.split()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MED 8 1 5 ]", 5),
        ("[MED 8 1 5 4 ]", 4),  # (4 + 5) / 2, rounded down
        ("[SM 7 8 9 ]", 4),
        ("[SM 9 [MED [MIN 3 4 ] 9 ] [MAX 0 1 ] ]", 6),
    ],
)
def test_the_value_of_an_expression(text, value):
    assert expression(text).value() == value


def test_a_tree_is_made_binary_from_the_left():
    found = expression("[MAX 2 [MIN 4 7 ] ]")
    assert found.pairs() == [(0, 1), (2, 3), (8, 4), (9, 5), (7, 10), (11, 6)]
    assert expression("3").pairs() == []


def bracketed(found):
    """The tree as text, from its pairs."""
    texts = list(found.tokens)
    for left, right in found.pairs():
        texts.append(f"({texts[left]} {texts[right]})")
    return texts[-1]


def test_each_constituent_is_one_node():
    assert bracketed(expression("[SM 1 [MED 2 3 ] 4 ]")) == "(((([SM 1) ((([MED 2) 3) ])) 4) ])"


def test_expressions_are_distinct_well_formed_and_those_of_the_seed():
    drawn = draw(300, seed=3, max_tokens=60)
    assert drawn == draw(300, seed=3, max_tokens=60) and drawn != draw(300, seed=4, max_tokens=60)
    assert len(set(drawn)) == 300 and max(len(one.tokens) for one in drawn) <= 60
    for one in drawn:
        assert 0 <= one.value() <= 9
        assert len(one.pairs()) == len(one.tokens) - 1
        # What is left of a node's left child is of the same constituent: brackets are balanced.
        assert bracketed(one).replace("(", "").replace(")", "").split() == list(one.tokens)


def test_a_draw_goes_on_where_a_shorter_one_ends():
    assert draw(40, seed=1)[:15] == draw(15, seed=1)


def test_a_quarter_are_operators_with_two_to_five_arguments_of_limited_depth():
    rng = Random(0)
    drawn = [tuple(_tokens(rng, MOST_DEPTH - 1)) for _ in range(4000)]
    operations = [len(tokens) - 2 for tokens in drawn if len(tokens) > 1]
    assert 0.23 < len(operations) / 4000 < 0.27
    for count in (2, 3, 4, 5):
        assert 0.2 < operations.count(count) / len(operations) < 0.3
    assert max(operations) == 5
    assert all(len(tuple(_tokens(rng, MOST_DEPTH))) == 1 for _ in range(100))


def test_tokens_are_numbered_in_order():
    assert numbered(["0", "9", "[MIN", "]"]) == [0, 9, 10, len(TOKENS) - 1]


def test_the_example_trains_and_reports(capsys, monkeypatch):
    monkeypatch.setattr(listops, "NUM_TEST", 20)
    monkeypatch.setattr(listops, "draw", lambda count, seed: draw(count, seed, max_tokens=12))
    arguments = ["--limit", "40", "--epochs", "1", "--embed", "4", "--hidden", "4", "--quiet"]
    assert listops.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "tree-lstm" in printed and printed.count("right") == 3
