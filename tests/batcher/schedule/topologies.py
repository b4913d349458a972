"""Graphs of networks of the field as structures: kinds of node are numbers, nothing is computed."""

import random
from collections.abc import Callable

from dynbatch.batcher.schedule.plan import Structure

Add = Callable[..., int]  # (kind, *inputs) -> the node


def mini_batch(network, sentences: int = 64, seed: int = 0) -> Structure:
    """Random sentences of a network, side by side."""
    generator = random.Random(seed)
    kinds: list[int] = []
    inputs: list[tuple[int, ...]] = []

    def add(kind: int, *read: int) -> int:
        kinds.append(kind)
        inputs.append(read)
        return len(kinds) - 1

    for _ in range(sentences):
        network(add, generator)
    return Structure(tuple(kinds), tuple(inputs))


def chain(add: Add, generator: random.Random) -> None:
    """A recurrent cell over 1 to 37 words, with an output at each."""
    state = add(0)
    for _ in range(generator.randint(1, 37)):
        state = add(2, state, add(1))
        add(3, state)


def lstm_by_operation(add: Add, generator: random.Random) -> None:
    """An LSTM spelt out: products, sums, gates, and an output at each word."""
    h, c = add(0), add(0)
    for _ in range(generator.randint(1, 37)):
        gates = add(4, add(2, add(1)), add(3, h))
        i, f, o, g = add(5, gates), add(5, gates), add(5, gates), add(6, gates)
        c = add(4, add(7, i, g), add(7, f, c))
        h = add(7, o, add(6, c))
        add(8, h)


def split_in_half(count: int, generator: random.Random) -> int:
    return count // 2


def split_off_the_last(count: int, generator: random.Random) -> int:
    return count - 1


def split_anywhere(count: int, generator: random.Random) -> int:
    return generator.randint(1, count - 1)


def grow(leaves, join, split, generator):
    """A binary tree over leaves: `join` of two parts, split where `split` says."""
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves), generator)
    left = grow(leaves[:k], join, split, generator)
    return join(left, grow(leaves[k:], join, split, generator))


def tree(split, cells: int = 1, outputs: bool = True):
    """A Tree-LSTM over 1 to 37 words: leaf cells, and `cells` kinds of inner cell at random."""

    def network(add: Add, generator: random.Random) -> None:
        def cell(kind: int, *read: int) -> int:
            node = add(kind, *read)
            if outputs:
                add(2, node)
            return node

        def join(left: int, right: int) -> int:
            return cell(3 + generator.randrange(cells), left, right)

        leaves = [cell(1, add(0)) for _ in range(generator.randint(1, 37))]
        grow(leaves, join, split, generator)

    return network


def bilstm_and_tree(add: Add, generator: random.Random) -> None:
    """Cells in both directions, and a random tree over what they give."""
    words = [add(0) for _ in range(generator.randint(1, 37))]
    forward, backward = [add(1)], [add(2)]
    for word in words:
        forward.append(add(3, forward[-1], word))
    for word in words[::-1]:
        backward.append(add(4, backward[-1], word))
    leaves = [add(5, f, b) for f, b in zip(forward[1:], backward[:0:-1], strict=True)]

    def join(left: int, right: int) -> int:
        node = add(6, left, right)
        add(7, node)
        return node

    grow(leaves, join, split_anywhere, generator)


def characters_and_words(add: Add, generator: random.Random) -> None:
    """A recurrent tagger whose rare words are spelt by a recurrent cell of their own."""
    words = []
    for _ in range(generator.randint(1, 37)):
        if generator.random() < 0.7:
            words.append(add(0))
            continue
        state = add(1)
        for _ in range(generator.randint(2, 12)):
            state = add(3, state, add(2))
        words.append(add(4, state))
    state = add(5)
    for word in words:
        state = add(6, state, word)
        add(7, state)


def lattice(add: Add, generator: random.Random) -> None:
    """A lattice LSTM: a cell at each character, and words that skip two or three of them."""
    length = generator.randint(5, 30)
    state = add(0)
    ending: dict[int, list[int]] = {}
    for place in range(length):
        words = ending.pop(place, [])
        state = add(3 if words else 2, state, add(1), *words)
        for skipped in (2, 3):
            if place + skipped < length and generator.random() < 0.3:
                ending.setdefault(place + skipped, []).append(add(5, state, add(4)))
        add(6, state)


def parser(add: Add, generator: random.Random) -> None:
    """A transition parser: a stack of cells, composition, and a chain of actions."""
    buffer = [add(0) for _ in range(generator.randint(3, 25))]
    stack, subtrees = [add(1)], []
    history = add(2)
    state = add(3, stack[-1], history)
    while buffer or len(subtrees) > 1:
        if len(subtrees) < 2 or (buffer and generator.random() < 0.5):
            subtrees.append(add(4, buffer.pop()))
        else:
            right, left = subtrees.pop(), subtrees.pop()
            del stack[-2:]
            subtrees.append(add(5, left, right))
        stack.append(add(6, stack[-1], subtrees[-1]))
        history = add(7, history, add(8, state))
        state = add(3, stack[-1], history)


TOPOLOGIES = {
    "chain": chain,
    "LSTM by operation": lstm_by_operation,
    "balanced tree": tree(split_in_half),
    "left-leaning tree": tree(split_off_the_last),
    "random tree": tree(split_anywhere),
    "random tree, no outputs": tree(split_anywhere, outputs=False),
    "tree of two cells": tree(split_anywhere, cells=2),
    "bi-LSTM and tree": bilstm_and_tree,
    "characters and words": characters_and_words,
    "lattice": lattice,
    "parser": parser,
}
