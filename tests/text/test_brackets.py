"""Trees in brackets: order of nodes, states bottom-up in a Tree-LSTM, and what is refused."""

import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import DataError
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
