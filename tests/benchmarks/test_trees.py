import numpy as np
import pytest

from benchmarks.trees import TreeBatch, TreeCorpus, depths, levels, random_tree

CORPUS = TreeCorpus(source_vocabulary=50, target_vocabulary=5)


def rng():
    return np.random.default_rng(3)


def spans(tree):
    """(start, end) of the words below each node."""
    found = [(word, word + 1) for word in range(len(tree) + 1)]
    for left, right in tree:
        assert found[left][1] == found[right][0]  # neighbours
        found.append((found[left][0], found[right][1]))
    return found


@pytest.mark.parametrize("words", [1, 2, 3, 40])
def test_a_tree_joins_neighbours_until_one_node_has_all_words(words):
    assert spans(random_tree(rng(), words))[-1] == (0, words)


def test_every_split_of_three_words_is_about_as_likely():
    numbers = rng()
    first = [random_tree(numbers, 3)[0] for _ in range(2000)]
    assert first.count((0, 1)) == pytest.approx(1000, abs=100)
    assert first.count((0, 1)) + first.count((1, 2)) == 2000


def test_sentences_have_19_words_on_average_and_a_class_for_each_node():
    batch = CORPUS.random_batches(rng(), 1, 4000)[0]
    assert batch.num_nodes / batch.num_sentences == pytest.approx(2 * 19 - 1, abs=1)
    for words, tree, classes in batch.sentences():
        assert len(classes) == len(words) + len(tree) == 2 * len(words) - 1


def test_shuffling_keeps_sentence_tree_and_classes_together():
    batch = CORPUS.random_batches(rng(), 1, 20)[0]
    shuffled = batch.shuffled(rng())
    before, after = [
        {words.tobytes(): (tree, classes.tobytes()) for words, tree, classes in b.sentences()}
        for b in (batch, shuffled)
    ]
    assert before == after
    assert [list(words) for words in batch.sources] != [list(words) for words in shuffled.sources]


def test_depths_count_edges_from_the_root():
    tree = [(1, 2), (0, 3)]  # (0 (1 2))
    assert depths(tree).tolist() == [1, 2, 2, 1, 0]


def test_children_of_a_level_are_the_next_one_in_order():
    batch = TreeBatch(
        [np.arange(3), np.arange(2), np.arange(1)],
        [np.arange(5), np.arange(3), np.arange(1)],
        [[(1, 2), (0, 3)], [(0, 1)], []],
    )
    found = levels(batch)
    # Depth 2: words 1 and 2 of the first; depth 1: its word 0, its inner node, then the second's.
    assert found.words.tolist() == [1, 2, 0, 3, 4, 5]
    assert found.num_words == [2, 3, 1]
    assert [order.tolist() for order in found.orders] == [[1, 0, 2, 3], [0, 1, 2]]
    # Of all nodes, counted sentence by sentence: the words, then inner nodes, the deepest first.
    assert found.nodes.tolist() == [1, 2, 0, 5, 6, 8, 3, 4, 7]
    assert [found.nodes[rows].tolist() for rows in found.children()] == [[1, 2], [0, 3, 5, 6]]
