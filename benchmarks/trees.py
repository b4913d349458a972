"""Mini-batches of made-up sentences, each with a binary tree over its words.

Lengths spread as `lengths.py` says, about a mean of 19 words, as in the Stanford Sentiment Treebank
(Socher et al. 2013). A tree splits its words at a uniformly drawn place, and so do both halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.lengths import Array, Batch, Corpus

MEAN_WORDS = 19.0

Tree = list[tuple[int, int]]
"""(left, right) of each inner node, bottom up. The words are nodes 0 to T - 1, inner nodes follow
in the order of the list, so that the root is node 2T - 2."""


@dataclass(frozen=True)
class TreeBatch(Batch):
    """Sentences with trees. The targets are classes of all 2T - 1 nodes in the order of `Tree`."""

    trees: list[Tree]

    def sentences(self) -> Iterator[tuple[Array, Tree, Array]]:
        return zip(self.sources, self.trees, self.targets, strict=True)

    def shuffled(self, rng: np.random.Generator) -> TreeBatch:
        order = rng.permutation(self.num_sentences)
        sides = (self.sources, self.targets, self.trees)
        return TreeBatch(*[[side[i] for i in order] for side in sides])

    @property
    def num_nodes(self) -> int:
        return sum(map(len, self.targets))

    @property
    def height(self) -> int:
        """Edges from a root to its farthest word, most of all trees."""
        return max(int(depths(tree).max()) for tree in self.trees)


@dataclass(frozen=True)
class TreeCorpus(Corpus):
    """The distribution of sentences with trees; `target_vocabulary` is the number of classes."""

    mean: float = MEAN_WORDS
    is_aligned: bool = True

    def fill(self, rng: np.random.Generator, lengths: Array) -> TreeBatch:
        """A batch of random trees over so many words each."""
        words = [rng.integers(0, self.source_vocabulary, n) for n in lengths[:, 0]]
        classes = [rng.integers(0, self.target_vocabulary, 2 * n - 1) for n in lengths[:, 0]]
        return TreeBatch(words, classes, [random_tree(rng, int(n)) for n in lengths[:, 0]])

    def describe(self, batches: Sequence[TreeBatch]) -> str:
        nodes = np.mean([batch.num_nodes for batch in batches])
        height = np.mean([batch.height for batch in batches])
        return f"{nodes:.0f} nodes, the highest tree {height:.1f} high"


def random_tree(rng: np.random.Generator, num_words: int) -> Tree:
    """A tree over 1 word or more, each split uniform among those possible."""
    tree: Tree = []

    def build(start: int, end: int) -> int:
        if end - start == 1:
            return start
        split = int(rng.integers(start + 1, end))
        tree.append((build(start, split), build(split, end)))
        return num_words + len(tree) - 1

    build(0, num_words)
    return tree


def depths(tree: Tree) -> Array:
    """(2T - 1,) edges between the root and each node."""
    num_words = len(tree) + 1
    found = np.zeros(num_words + len(tree), np.int64)
    for number in reversed(range(len(tree))):
        found[list(tree[number])] = found[num_words + number] + 1
    return found


@dataclass(frozen=True)
class Levels:
    """A batch of trees computed at once, depth by depth, the deepest level first.

    A level is all nodes of one depth. They stand in the order of their parents, which all are in
    the level above, left before right. Nodes and words are counted through the whole batch.

    Args:
        words:     (ΣT,) words, level by level.
        num_words: of them in each level.
        orders:    for each level but the deepest, where each of its nodes stands in the list of its
                   inner nodes followed by its words.
        nodes:     all nodes: the words as above, then the inner nodes, level by level.
    """

    words: Array
    num_words: list[int]
    orders: list[Array]
    nodes: Array

    def children(self) -> list[Array]:
        """For each level but the deepest, places in `nodes` of its inner nodes' children."""
        orders = [np.arange(self.num_words[0]), *self.orders]
        word, inner = 0, len(self.words)
        found = []
        for order, num_words in zip(orders[:-1], self.num_words, strict=False):
            num_inner = len(order) - num_words
            found.append(np.where(order < num_inner, inner + order, word + order - num_inner))
            word, inner = word + num_words, inner + num_inner
        return found


def levels(batch: TreeBatch) -> Levels:
    """The levels of a batch."""
    level: list[tuple[int, int]] = [
        (s, len(classes) - 1) for s, classes in enumerate(batch.targets)
    ]
    first_word = np.cumsum([0, *map(len, batch.sources)])
    first_node = np.cumsum([0, *map(len, batch.targets)])
    words: list[list[tuple[int, int]]] = []
    inner: list[list[tuple[int, int]]] = []
    orders: list[Array] = []
    while level:
        is_word = np.array([node < len(batch.sources[s]) for s, node in level])
        words.append([node for node, is_leaf in zip(level, is_word, strict=True) if is_leaf])
        inner.append([node for node, is_leaf in zip(level, is_word, strict=True) if not is_leaf])
        orders.append(np.argsort(np.argsort(is_word, kind="stable")))
        level = [
            (s, child)
            for s, node in inner[-1]
            for child in batch.trees[s][node - len(batch.sources[s])]
        ]
    deepest_first = [node for found in reversed(words) for node in found]
    rest = [node for found in reversed(inner) for node in found]
    return Levels(
        words=np.array([first_word[s] + word for s, word in deepest_first]),
        num_words=[len(found) for found in reversed(words)],
        orders=orders[-2::-1],
        nodes=np.array([first_node[s] + node for s, node in (*deepest_first, *rest)]),
    )
