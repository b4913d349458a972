"""SCAN: simplified navigation commands and the actions they mean, made from their grammar.

    "jump left twice after look" -> I_LOOK I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP

All 20,910 commands, equal to the published file: nothing is downloaded.

Source: Lake & Baroni 2018, Generalization without systematicity, arXiv:1711.00350, figure 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal

from dynbatch.train.batching import epoch_order
from examples.seq2seq.corpus import Corpus, Example, Tokens

Split = Literal["simple", "length", "addprim_jump"]

_JUMP = ("jump",)


def scan_commands() -> list[Example]:
    """Every command of the grammar once, in the grammar's order, with its one reference.

    Example:
        >>> commands = scan_commands()
        >>> len(commands), commands[0].source, commands[0].references
        (20910, ('walk',), (('I_WALK',),))
    """
    meanings = list(_phrases())
    for (x, do_x), (y, do_y) in product(tuple(meanings), repeat=2):
        meanings.append(((*x, "and", *y), do_x + do_y))
        meanings.append(((*x, "after", *y), do_y + do_x))
    return [Example(command, (actions,)) for command, actions in meanings]


def _phrases() -> Iterator[tuple[Tokens, Tokens]]:
    """The 102 commands without a conjunction."""
    for words, actions in _verbs():
        yield words, actions
        yield (*words, "twice"), actions * 2
        yield (*words, "thrice"), actions * 3


def _verbs() -> Iterator[tuple[Tokens, Tokens]]:
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


def load_scan(split: Split = "simple", seed: int = 0) -> Corpus:
    """SCAN under one of its published splits. None has a development set, so `dev` is empty.

    * `simple`: 80 % of the commands train (16,728), the rest test (4,182). The published draw is
      random; this one is ours, decided by `seed`.
    * `length`: outputs of at most 22 actions train (16,990), of 24 and more test (3,920).
    * `addprim_jump`: commands with `jump` in them test (7,706); the rest and the bare `jump`
      train, the latter repeated to a tenth of the 14,670 training examples, as published.
    """
    commands = scan_commands()
    if split == "simple":
        order = epoch_order(len(commands), seed, epoch=0).tolist()
        num_test = len(commands) // 5
        train = [commands[index] for index in order[num_test:]]
        test = [commands[index] for index in order[:num_test]]
    elif split == "length":
        train = [command for command in commands if len(command.references[0]) <= 22]
        test = [command for command in commands if len(command.references[0]) > 22]
    else:
        train = [command for command in commands if "jump" not in command.source]
        test = [c for c in commands if "jump" in c.source and c.source != _JUMP]
        train += [Example(_JUMP, (("I_JUMP",),))] * round(len(train) / 9)
    return Corpus(f"scan-{split}", train, [], test, "action", "command")
