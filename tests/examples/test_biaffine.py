"""The biaffine parser: it learns small trees, crossing arcs too, and gives nothing but trees."""

import re

import numpy as np

import dynbatch as db
from dynbatch.testing import check_batching
from dynbatch.text import ParsedSentence
from examples.biaffine.model import Parser
from examples.biaffine.train import Numbering, main
from examples.corpora import petrogold


def made_up(count, seed=0):
    """A verb is the root, each noun hangs from it, and each article from the noun of its letter."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        letters = rng.permutation(list("abc"))[: rng.integers(1, 4)].tolist()
        nouns, articles = [f"n{x}" for x in letters], [f"t{x}" for x in rng.permutation(letters)]
        words = [*articles, "runs", *nouns]
        place = {word: number for number, word in enumerate(words, start=1)}
        heads = [place[f"n{x[1]}"] if x[0] == "t" else place["runs"] for x in words]
        heads[place["runs"] - 1] = 0
        kinds = {"t": ("DET", "det"), "n": ("NOUN", "nsubj"), "r": ("VERB", "root")}
        tags, labels = zip(*[kinds[word[0]] for word in words], strict=True)
        yield ParsedSentence(tuple(words), tags, tuple(heads), labels)


def test_sentences_of_all_lengths_batch_and_parse_to_trees():
    sentences = list(made_up(6))
    numbering = Numbering(sentences, min_count=2)
    db.seed(0)
    parser = Parser(numbering.lexicon, 3, 3, 4, 3, 5, 2, 0.0).astype("float64")
    examples = [numbering.number(sentence) for sentence in sentences]
    check_batching(parser.loss, [(one,) for one in examples], parameters=parser.parameters())
    for (heads, labels), sentence in zip(parser.parse(examples), sentences, strict=True):
        assert heads.size == labels.size == len(sentence.words)
        assert heads.tolist().count(0) == 1


def test_trees_are_learned_from_words_alone_and_scored_beside_rules(monkeypatch, capsys):
    parts = {"train": list(made_up(120)), "test": list(made_up(40, seed=1))}
    monkeypatch.setattr(petrogold, "load", lambda part: parts[part])
    sizes = ["--features", "12", "--letters", "4", "--hidden", "12", "--layers", "1"]
    training = ["--epochs", "8", "--lr", "0.03", "--warmup", "5", "--dropout", "0", "--quiet"]
    assert main([*sizes, *training, "--batch-size", "12", "--no-tags"]) == 0
    printed = capsys.readouterr().out
    found = re.findall(r"UAS +([\d.]+)% +LAS +([\d.]+)%", printed)
    this, before, following = [[float(x) for x in row] for row in found[:3]]
    assert min(this) > 95 > 80 > max(*before, *following), printed
