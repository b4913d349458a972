"""Tagging: a tag for each word of a sentence, by a bi-LSTM that spells rare words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any, ClassVar, Self

import numpy as np

from dynbatch import models
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.predict import predict
from dynbatch.nodes.node import Node
from dynbatch.tasks.baselines import MostFrequentTag
from dynbatch.tasks.learning import COLUMNS
from dynbatch.tasks.options import above_zero, option, passes
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import LabellingTask, Parts, checked_description, table_widths
from dynbatch.tasks.words import Lexicon, WordIds, WordVectors, is_share, is_tokens, spelled_share
from dynbatch.text import TaggedSentence, Vocabulary, read_tagged
from dynbatch.train import CheckpointInfo


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(TaskSettings):
    """Settings of a tagger."""

    epochs: int = option(8, "passes over the data", passes)
    batch_size: int = option(16, "sentences in a mini-batch")
    lr: float = option(5e-3, "peak of Adam's learning rate", above_zero)
    min_count: int = option(5, "words seen less often are spelled, not looked up")
    features: int = option(64, "of a word's vector, an even number")
    letters: int = option(32, "features of a character")
    hidden: int = option(96, "units of the LSTM in each direction")
    crf: bool = option(False, "score transitions between tags, too")


@dataclass(frozen=True, slots=True, eq=False)
class TaggedIds:
    """A sentence in ids, and the numbers of its tags (T,)."""

    words: WordIds
    tags: Array


class SpellingTagger(models.Module):
    """Words to numbers of tags: a softmax for each word, or a CRF over the sentence.

    Args:
        lexicon:  words and characters.
        num_tags: K.
        features: of a word's vector.
        letters:  features of a character.
        hidden:   units of the LSTM, in each direction.
        dropout:  of word vectors and of the LSTM's outputs.
        crf:      whether transitions between tags are scored.

    Source: Huang, Xu & Yu 2015, arXiv:1508.01991.
    """

    def __init__(
        self, lexicon: Lexicon, num_tags: int, features: int, letters: int, hidden: int,
        dropout: float = 0.0, crf: bool = False,
    ) -> None:  # fmt: skip
        self.vectors = WordVectors(lexicon, features, letters)
        self.context = models.LSTM(features, hidden, bidirectional=True)
        self.project = models.Linear(2 * hidden, num_tags)
        self.dropout = models.Dropout(dropout)
        self.crf = models.CRF(num_tags) if crf else None

    def emissions(self, graph: Graph, words: WordIds) -> Node:
        """Scores of each word's tags, (T, K)."""
        x = self.dropout(self.vectors(graph, words))
        return self.project(self.dropout(self.context(x)))

    def loss(self, graph: Graph, example: TaggedIds) -> Node:
        """Negative log-likelihood of a sentence's tags, summed, in nats."""
        emissions = self.emissions(graph, example.words)
        if self.crf is not None:
            return self.crf.loss(emissions, example.tags)
        return F.cross_entropy(emissions, example.tags, reduction="sum")

    def best(self, graph: Graph, words: WordIds) -> Node:
        """Numbers of the best tags, (T, 1)."""
        emissions = self.emissions(graph, words)
        return F.argmax(emissions, dim=-1) if self.crf is None else self.crf.viterbi(emissions)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of right tags: of all words, and of the unknown ones; None if there are none."""

    all: float
    unknown: float | None

    def __str__(self) -> str:
        return f"{self.all:7.2%}  " + (
            "   none" if self.unknown is None else f"{self.unknown:7.2%}"
        )


class Tagging(LabellingTask):
    """A tagger with its words and tags.

    Args:
        lexicon: the words that have a vector, and all characters.
        tags:    all tags, in the order of their numbers.
        model:   a `SpellingTagger` of these sizes.
    """

    name: ClassVar[str] = "tagging"
    form: ClassVar[str] = "word<TAB>tag on each line, blank lines between sentences; or CoNLL-U"
    Settings: ClassVar[type[TaskSettings]] = TaggingSettings
    higher_is_better: ClassVar[bool] = True
    model: SpellingTagger

    def __init__(self, lexicon: Lexicon, tags: Sequence[str], model: SpellingTagger) -> None:
        self.lexicon, self.tags, self.model = lexicon, list(tags), model
        Vocabulary(tags)  # refuses marks, without which a checkpoint could not be read
        self._numbers = {tag: number for number, tag in enumerate(tags)}

    @classmethod
    def read(cls, path: str | Path, settings: TaggingSettings) -> list[TaggedSentence]:
        return read_tagged(path)

    @classmethod
    def key(cls, text: TaggedSentence) -> str:
        return " ".join(text.words)

    @classmethod
    def begin(cls, parts: Parts, settings: TaggingSettings) -> Self:
        lexicon = Lexicon.build([text.words for text in parts.train], settings.min_count)
        tags = sorted({tag for text in parts.train for tag in text.tags})
        model = SpellingTagger(
            lexicon, len(tags), settings.features, settings.letters, settings.hidden,
            settings.dropout, settings.crf,
        )  # fmt: skip
        return cls(lexicon, tags, model)

    def examples(self, texts: Sequence[TaggedSentence]) -> list[TaggedIds]:
        """Sentences in ids; a tag that training did not see counts as the first."""
        return [
            TaggedIds(
                self.lexicon.encode(text.words),
                np.array([self._numbers.get(tag, 0) for tag in text.tags], np.int64),
            )
            for text in texts
        ]

    def loss(self, graph: Graph, model: SpellingTagger, example: TaggedIds) -> Node:
        return model.loss(graph, example)

    def num_tokens(self, example: TaggedIds) -> int:
        return int(example.tags.size)

    def tag(self, sentences: Sequence[Sequence[str]], matmul: str = FULL) -> list[list[str]]:
        """The best tags of each sentence."""
        ids = [self.lexicon.encode(words) for words in sentences]
        best = predict(self.model, self.model.best, ids, matmul=matmul)
        return [[self.tags[int(number)] for number in column[:, 0]] for column in best]

    def evaluate(self, texts: Sequence[TaggedSentence]) -> dict[str, float]:
        """Accuracy of all words, and of those that are spelled."""
        rates = accuracy(texts, self.tag([text.words for text in texts]), self.lexicon.words)
        spelled = {} if rates.unknown is None else {"accuracy of spelled words": rates.unknown}
        return {"accuracy": rates.all, **spelled}

    def told(self, found: dict[str, float], texts: Sequence[TaggedSentence]) -> str:
        """The accuracies in percent."""
        rare = [f", of rare words {share:.2%}" for share in list(found.values())[1:]]
        return f"validation: {found['accuracy']:.2%} of the tags are right{''.join(rare)}"

    def report(self, parts: Parts) -> str:
        """The accuracies of each word's most frequent tag and of the tagger."""
        texts, baseline = parts.test, MostFrequentTag(parts.train)
        layer = "softmax" if self.model.crf is None else "CRF"
        rows = {
            "most frequent tag": [baseline.tag(text.words) for text in texts],
            f"bi-LSTM, {layer}": self.tag([text.words for text in texts]),
        }
        lines = [f"{'right tags of the test set':28}    all  unknown words"]
        for name, tags in rows.items():
            lines.append(f"{name:24}  {accuracy(texts, tags, baseline)}")
        return "\n".join(lines)

    def vocabularies(self) -> dict[str, Vocabulary]:
        words, characters = self.lexicon.words, self.lexicon.characters
        return {"words": words, "characters": characters, "tags": Vocabulary(self.tags)}

    def unknown(self, texts: Sequence[TaggedSentence]) -> float:
        """The share of words that are spelled."""
        return spelled_share([self.lexicon.encode(text.words) for text in texts])

    @classmethod
    def shown(cls, text: TaggedSentence) -> str:
        return " ".join([f"{word}/{tag}" for word, tag in zip(text.words, text.tags, strict=True)])

    @classmethod
    def prompt(cls, text: TaggedSentence) -> str:
        return " ".join(text.words)

    @classmethod
    def sizes(cls, texts: Sequence[TaggedSentence]) -> str:
        lengths = [len(text.words) for text in texts]
        tags = {tag for text in texts for tag in text.tags}
        return (
            f"{len(texts):,} sentences, {sum(lengths):,} words (longest sentence {max(lengths)}), "
            f"{len(tags)} tags"
        )

    def samples(
        self, texts: Sequence[TaggedSentence], settings: TaggingSettings, rng: np.random.Generator
    ) -> list[str]:
        """Beginnings of sentences with the tags found; behind a wrong one stands the right one."""
        lines = []
        for text, tags in zip(texts, self.tag([text.words for text in texts]), strict=True):
            rows = zip(text.words, tags, text.tags, strict=True)
            marked = [f"{w}/{tag}" + f"[{right}]" * (tag != right) for w, tag, right in rows]
            lines += wrap(shorten(" ".join(marked), 2 * COLUMNS, placeholder=" …"), COLUMNS)
        return lines

    def label(self, lines: Sequence[str], matmul: str = FULL) -> list[dict[str, Any]]:
        """Words and tags of each line, whose words stand between blanks; see `words_of`."""
        sentences = [self.words_of(line) for line in lines]
        return [
            {"text": line, "words": words, "tags": tags}
            for line, words, tags in zip(lines, sentences, self.tag(sentences, matmul), strict=True)
        ]

    @staticmethod
    def line(found: dict[str, Any]) -> str:
        """`word/TAG word/TAG …`"""
        return " ".join(
            [f"{w}/{tag}" for w, tag in zip(found["words"], found["tags"], strict=True)]
        )

    def words_of(self, line: str) -> list[str]:
        """The words between blanks; marks such as a full stop are cut off from words that have no
        vector, where the mark has one."""
        words: list[str] = []
        for word in line.split():
            end: list[str] = []
            while len(word) > 1 and word not in self.lexicon.words and self._is_mark(word[-1]):
                end.insert(0, word[-1])
                word = word[:-1]
            words += [word, *end]
        return words

    def _is_mark(self, character: str) -> bool:
        return not character.isalnum() and character in self.lexicon.words

    def description(self) -> dict[str, Any]:
        return {
            "words": self.lexicon.words.entries, "characters": self.lexicon.characters.entries,
            "tags": self.tags, "dropout": self.model.dropout.p,
        }  # fmt: skip

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        fields = {name: is_tokens for name in ("words", "characters", "tags")}
        description = checked_description(info, {**fields, "dropout": is_share})
        lexicon = Lexicon(Vocabulary(description["words"]), Vocabulary(description["characters"]))
        tables = ("vectors.words", "vectors.letters", "project")
        sizes = (len(lexicon.words), len(lexicon.characters), len(description["tags"]))
        features, letters, width = table_widths(info, dict(zip(tables, sizes, strict=True)))
        is_crf = "model/crf.transitions" in info.shapes
        model = SpellingTagger(
            lexicon, sizes[-1], features, letters, width // 2, description["dropout"], is_crf
        )
        return cls(lexicon, description["tags"], model)


def accuracy(
    sentences: Sequence[TaggedSentence], found: Sequence[Sequence[str]], known: Any
) -> Accuracy:
    """The share of tags that are right. `known` tells which words the training data has."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for sentence, tags in zip(sentences, found, strict=True):
        for word, tag, answer in zip(sentence.words, tags, sentence.tags, strict=True):
            right[word in known].append(tag == answer)
    both = [*right[True], *right[False]]
    unknown = sum(right[False]) / len(right[False]) if right[False] else None
    return Accuracy(sum(both) / max(1, len(both)), unknown)
