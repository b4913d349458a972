"""Arc-standard transitions: every projective tree has actions, others a projective neighbour."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.parser.transitions import SHIFT, Action, Configuration, follow, oracle, projective


@st.composite
def trees(draw):
    """Heads of a random tree, crossing arcs included."""
    order = draw(st.permutations(range(1, draw(st.integers(1, 9)) + 1)))
    heads = [0] * len(order)
    for place, word in enumerate(order[1:], start=1):
        heads[word - 1] = draw(st.sampled_from(order[:place]))
    return heads


def crosses(heads):
    """Whether two arcs cross, the root's from 0 to it included."""
    arcs = [sorted(arc) for arc in enumerate(heads, start=1)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


def labels_of(heads):
    return ["root" if head == 0 else f"label {word}" for word, head in enumerate(heads)]


@given(trees())
def test_the_actions_of_a_tree_give_the_tree_unless_arcs_cross(heads):
    actions = oracle(heads, labels_of(heads))
    assert (actions is None) == crosses(heads)
    if actions is not None:
        assert len(actions) == 2 * len(heads) - 1
        end = follow(len(heads), actions)
        assert (end.heads, end.labels, end.legal()) == (heads, labels_of(heads), ())


@given(trees())
def test_a_projective_neighbour_lifts_words_to_an_ancestor_and_leaves_projective_trees(heads):
    lifted = projective(heads)
    assert not crosses(lifted)
    assert lifted == heads or crosses(heads)
    for head, ancestor in zip(heads, lifted, strict=True):
        while head != ancestor:
            assert head != 0
            head = heads[head - 1]


def test_only_an_arc_that_spans_a_stranger_is_lifted():
    assert projective([3, 4, 0, 3, 4]) == [3, 3, 0, 3, 4]


@pytest.mark.parametrize(
    ("done", "legal"),
    [
        ([], ("shift",)),
        ([SHIFT], ("shift",)),
        ([SHIFT, SHIFT], ("left", "right")),
        ([SHIFT, SHIFT, Action("right", "punct")], ()),
    ],
)
def test_what_may_be_done_depends_on_stack_and_buffer(done, legal):
    assert follow(2, done).legal() == legal


def test_in_between_both_may_be_done():
    configuration = Configuration(3)
    configuration.apply(SHIFT)
    configuration.apply(SHIFT)
    assert configuration.legal() == ("shift", "left", "right")
