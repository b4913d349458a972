"""SCAN, as `dynbatch.demo.scan` makes it from its grammar, under its published splits."""

from __future__ import annotations

from typing import Literal

from dynbatch.demo.scan import scan_pairs, simple_split
from dynbatch.tasks.task import Parts
from dynbatch.text import ParallelText

Split = Literal["simple", "length", "addprim_jump"]

_JUMP = (("jump",), ("I_JUMP",))


def load(split: Split = "simple", seed: int = 0) -> Parts:
    """SCAN under one of its published splits. None has a development set, so `dev` is empty.

    * `simple`: a random fifth of the commands tests, drawn by `seed`; see `simple_split`.
    * `length`: outputs of at most 22 actions train (16,990), of 24 and more test (3,920).
    * `addprim_jump`: commands with `jump` in them test (7,706); the rest and the bare `jump`
      train, the latter repeated to a tenth of the 14,670 training examples, as published.
    """
    if split == "simple":
        train, test = simple_split(seed)
    elif split == "length":
        train = [pair for pair in scan_pairs() if len(pair[1]) <= 22]
        test = [pair for pair in scan_pairs() if len(pair[1]) > 22]
    else:
        train = [pair for pair in scan_pairs() if "jump" not in pair[0]]
        test = [pair for pair in scan_pairs() if "jump" in pair[0] and pair != _JUMP]
        train += [_JUMP] * round(len(train) / 9)
    examples = [
        [ParallelText(" ".join(command), (" ".join(actions),)) for command, actions in part]
        for part in (train, test)
    ]
    return Parts(examples[0], [], examples[1])
