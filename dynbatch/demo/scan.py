"""SCAN: simplified navigation commands and the actions they mean, made from their grammar.

    "jump left twice after look" -> I_LOOK I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP

All 20,910 commands, equal to the published file: nothing is downloaded.

Source: Lake & Baroni 2018, Generalization without systematicity, arXiv:1711.00350, figure 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from dynbatch.train.batching import epoch_order

Tokens = tuple[str, ...]
Pair = tuple[Tokens, Tokens]


def scan_pairs() -> list[Pair]:
    """Every command of the grammar once, in the grammar's order, with its actions.

    Example:
        >>> pairs = scan_pairs()
        >>> len(pairs), pairs[0]
        (20910, (('walk',), ('I_WALK',)))
    """
    meanings = list(_phrases())
    for (x, do_x), (y, do_y) in product(tuple(meanings), repeat=2):
        meanings.append(((*x, "and", *y), do_x + do_y))
        meanings.append(((*x, "after", *y), do_y + do_x))
    return meanings


def simple_split(seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """80 % of the commands to train on (16,728), and the rest to test on (4,182).

    The published draw is random; this one is ours, decided by `seed`.
    """
    pairs = scan_pairs()
    order = epoch_order(len(pairs), seed, epoch=0).tolist()
    num_test = len(pairs) // 5
    return [pairs[k] for k in order[num_test:]], [pairs[k] for k in order[:num_test]]


def _phrases() -> Iterator[Pair]:
    for words, actions in _verbs():
        yield words, actions
        yield (*words, "twice"), actions * 2
        yield (*words, "thrice"), actions * 3


def _verbs() -> Iterator[Pair]:
    for verb in ("walk", "look", "run", "jump", "turn"):
        # `turn` has no action of its own and always takes a direction.
        action = () if verb == "turn" else (f"I_{verb.upper()}",)
        if action:
            yield (verb,), action
        for direction in ("left", "right"):
            turn = (f"I_TURN_{direction.upper()}",)
            yield (verb, direction), turn + action
            yield (verb, "opposite", direction), turn + turn + action
            yield (verb, "around", direction), (turn + action) * 4
