"""Pairs of texts to train on, to validate and to test: a corpus by name, or any file.

python -m examples.corpora.pairs cmudict > cmudict.tsv      # all of it, for `dynbatch train`
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.tasks.task import Parts, divided
from dynbatch.text import ParallelText, read_pairs
from dynbatch.train.batching import epoch_order
from examples.corpora import cmudict, libreoffice, scan


def split(examples: Iterable[ParallelText]) -> Parts:
    """90 % train, 5 % dev and 5 % test, by a hash of the source without its spaces."""
    return divided(examples, lambda example: "".join(example.source.split()))


CORPORA: dict[str, Callable[[], Parts]] = {
    "cmudict": lambda: split(cmudict.load()),
    "cmudict-stress": lambda: split(cmudict.load(stress=True)),
    "libreoffice": lambda: split(libreoffice.pairs()),
    "scan-simple": partial(scan.load, "simple"),
    "scan-length": partial(scan.load, "length"),
    "scan-jump": partial(scan.load, "addprim_jump"),
}


def load(name: str, limit: int | None = None) -> Parts:
    """A corpus of `CORPORA`, or a UTF-8 file of `source<TAB>target` lines.

    Of a file so small that the split leaves nothing to train on, what it held out is for that too.

    Args:
        limit: keep so many examples to train on, drawn at random, the same in each run.

    Raises:
        DataError: there is neither such a corpus nor such a file, or the file holds a bad line.
    """
    if name not in CORPORA and not Path(name).is_file():
        raise DataError(
            f"{name}: neither a file nor a corpus.\n"
            f"  rule: one of {', '.join(CORPORA)}, or a file with source<TAB>target on each line"
        )
    parts = CORPORA[name]() if name in CORPORA else split(read_pairs(name))
    train = parts.train or [*parts.dev, *parts.test]
    if limit is not None:
        train = [train[k] for k in epoch_order(len(train), seed=0, epoch=-1)[:limit]]
    return replace(parts, train=train)


def main() -> int:
    """Write a corpus as source<TAB>target lines."""
    parts = load(sys.argv[1])
    for example in [*parts.train, *parts.dev, *parts.test]:
        for target in example.references:
            print(f"{example.source}\t{target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
