"""Trees in brackets: order of nodes, states bottom-up in a Tree-LSTM, and what is refused."""

import copy
import pickle

import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DataError
from dynbatch.text import LabelledTree, read_trees

SENTIMENT = "(3 (2 It) (4 (2 's) (4 good)))\n\n(1 (0 bad) (2 film))\r\n"


def test_trees_are_read_one_a_line_and_over_lines(tmp_path):
    path = tmp_path / "trees.txt"
    path.write_text(f"{SENTIMENT}( (S\n  (NP (DT The) (NN cat))\n  (VP (VB -LRB-))) )")
    first, second, third = read_trees(path)
    assert first.words == ["It", "'s", "good"] and second.words == ["bad", "film"]
    assert str(first) == SENTIMENT.splitlines()[0]
    assert [node.label for node in first.nodes()] == ["2", "2", "4", "4", "3"]
    assert [node.label for node in third.nodes()] == ["DT", "NN", "NP", "VB", "VP", "S"]


def test_a_deep_tree_needs_no_recursion():
    tree = LabelledTree.parse("(1 (0 a) " * 5000 + "(0 b)" + ")" * 5000)
    assert len(tree.nodes()) == 10_001 and LabelledTree.parse(str(tree)).words == tree.words
    assert tree.fold(lambda leaf: 1, lambda node, left, right: left + right)[-1] == 5001


@pytest.mark.parametrize(
    "content, said",
    [
        ("(1 a)\n(2 (1 a)\n", ":2: a tree begins here that does not end.*line: '\\(2"),
        ("(1 a))\n", ":1: '\\)' stands outside of a tree"),
        ("a (1 b)\n", ":1: 'a' stands outside of a tree"),
        ("(1 a b)\n", ":1: 'b' stands beside another word or tree"),
        ("(1 a (1 b))\n", ":1: a node with a word and a tree below it"),
        ("(1)\n", ":1: a node without a word and without a tree below it"),
        ("(1 ((1 b)))\n", ":1: a node without a label"),
        ("\n", ": no tree"),
    ],
)
def test_what_is_not_a_tree_is_named_by_its_line(tmp_path, content, said):
    path = tmp_path / "trees.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=f"(?s)trees.txt{said}"):
        read_trees(path)


def test_trees_of_other_shapes_run_together_in_a_tree_lstm():
    trees = [LabelledTree.parse(line) for line in SENTIMENT.splitlines() if line]
    words = sorted({word for tree in trees for word in tree.words})
    embed, tree_lstm = models.Embedding(len(words), 4), models.BinaryTreeLSTM(4, 6)
    with db.Graph() as graph:
        roots = [
            tree.fold(
                lambda leaf: tree_lstm.leaf(embed(graph, [words.index(leaf.word)])[0]),
                lambda node, left, right: tree_lstm.compose(left, right),
            )[-1]
            for tree in trees
        ]
        together = graph.values([F.sum(h) for h, _ in roots])
        assert graph.statistics.batches < 10
    with db.Graph() as graph:
        xs = embed(graph, [words.index(word) for word in trees[0].words])
        _, root = tree_lstm(xs, [(1, 2), (0, 3)])
        assert F.sum(root).value == pytest.approx(together[0], abs=1e-6)


def test_a_deep_tree_is_compared_copied_pickled_and_shown_without_recursion():
    text = "(1 (0 a) " * 5000 + "(0 b)" + ")" * 5000
    tree = LabelledTree.parse(text)
    again, copied = pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)
    assert tree == again == copied and copied.children[1] is not tree.children[1]
    assert repr(tree) == f"LabelledTree.parse({str(tree)!r})" and eval(repr(tree)) == tree
    copied.nodes()[4].word = "c"
    assert tree != copied


@pytest.mark.parametrize(
    "one, other", [("(1 (0 a))", "(1 a)"), ("(1 (2 (0 a)) (0 b))", "(1 (2 (0 a) (0 b)))")]
)
def test_trees_of_other_shapes_differ(one, other):
    assert LabelledTree.parse(one) != LabelledTree.parse(other)


def test_a_tree_is_a_node_of_its_own_beside_other_objects_and_is_not_hashable():
    tree = LabelledTree("1", children=[LabelledTree("0", "a")])
    assert tree == LabelledTree.parse("(1 (0 a))") and tree != "(1 (0 a))"
    with pytest.raises(TypeError, match="unhashable"):
        hash(tree)


TERNARY = LabelledTree.parse(f"(1 (0 {'a' * 80}) (0 b) (0 c))")


@pytest.mark.parametrize(
    "join",
    [
        lambda node, left, right: left + right,
        lambda *, states: states,
        models.BinaryTreeLSTM(2, 2).compose,  # the node is forgotten
    ],
)
def test_a_join_of_another_number_of_children_is_refused(join):
    with pytest.raises(ArgumentError) as caught:
        TERNARY.fold(lambda leaf: 1, join)
    said = str(caught.value)
    assert said.startswith(
        "LabelledTree.fold: join does not take the node and 3 states, those of the children of"
    )
    assert "(1 (0 aaaa" in said and "aaa…" in said and "join(node, *states)" in said


def test_a_type_error_inside_of_join_stays_as_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        TERNARY.fold(lambda leaf: 1, lambda node, *states: states[0] + "a")
    with pytest.raises(TypeError, match="expected at most 1"):
        TERNARY.fold(lambda leaf: 1, type("Join", (), {"__call__": lambda self, *x: dict(*x)})())


@pytest.mark.parametrize(
    "content, fix",
    [
        ("(and (or T F) (not T))", r"brackets and a label of its own: \(\? F\)"),
        ("(T and (a b))", r"brackets and a label of its own: \(\? and\)"),
        ("T\t(and (T T))", "the label of a whole tree is its root's"),
        ("(1 a))", "take it away"),
    ],
)
def test_the_fix_is_of_the_fault(content, fix):
    with pytest.raises(DataError, match=f"fix:  .*{fix}"):
        LabelledTree.parse(content)
