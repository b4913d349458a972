"""The quality of parsed trees: attachment scores, beside two rules that look at nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dynbatch as db
from dynbatch.text import ParsedSentence
from examples.parser.data import Numbering, actions_of
from examples.parser.model import Parser
from examples.parser.transitions import follow

Tree = tuple[Sequence[int], Sequence[str]]
"""Heads and labels of one sentence."""

PUBLISHED = "UAS 90.92%  LAS 89.09%"
"""Of a parser on PetroGold v2, an earlier split: not exactly comparable."""

BATCH = 128
"""Sentences that are parsed side by side."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Attachment scores: the share of words with the right head (UAS), and label too (LAS).

    All words count, punctuation too, as in the CoNLL 2018 shared task, labels with their subtypes;
    `without_punctuation` is the UAS of those whose tag is not PUNCT.
    """

    uas: float
    las: float
    without_punctuation: float

    def __str__(self) -> str:
        return (
            f"UAS {self.uas:6.2%}  LAS {self.las:6.2%}  "
            f"(UAS without punctuation {self.without_punctuation:.2%})"
        )


def scores(found: Sequence[Tree], sentences: Sequence[ParsedSentence]) -> Scores:
    """The scores of one tree for each sentence."""
    words = heads = labels = lexical = lexical_heads = 0
    for tree, sentence in zip(found, sentences, strict=True):
        gold = zip(sentence.heads, sentence.labels, sentence.tags, strict=True)
        for head, label, (gold_head, gold_label, tag) in zip(*tree, gold, strict=True):
            words += 1
            heads += head == gold_head
            labels += head == gold_head and label == gold_label
            lexical += tag != "PUNCT"
            lexical_heads += tag != "PUNCT" and head == gold_head
    return Scores(heads / words, labels / words, lexical_heads / lexical)


def parse_all(
    parser: Parser, numbering: Numbering, sentences: Sequence[ParsedSentence]
) -> tuple[list[Tree], int]:
    """The tree found for each sentence, and in how many batched runs all were decided."""
    parser.eval()
    found: list[Tree] = []
    runs = 0
    for start in range(0, len(sentences), BATCH):
        numbered = [numbering.number(sentence) for sentence in sentences[start : start + BATCH]]
        with db.Graph(device=parser.score.weight.device, grad=False) as graph:
            found += db.drive(graph, [parser.parse(graph, sentence) for sentence in numbered])
            runs += len(graph.plans)
    return found, runs


def neighbour(sentence: ParsedSentence, side: int) -> Tree:
    """Every word hangs from the next (side 1) or the one before (-1); the outermost is the root."""
    num_words = len(sentence.words)
    heads = [(word + side) % (num_words + 1) for word in range(1, num_words + 1)]
    return heads, ["root" if head == 0 else "" for head in heads]


def nearest_projective(sentence: ParsedSentence) -> Tree:
    """The tree of the right actions: the tree itself unless its arcs cross."""
    end = follow(len(sentence.words), actions_of(sentence))
    return end.heads, end.labels
