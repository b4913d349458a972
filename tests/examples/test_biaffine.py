"""The biaffine parser: it learns small trees, crossing arcs too, and gives nothing but trees."""

import re

import numpy as np

import dynbatch as db
from dynbatch.testing import check_batching
from dynbatch.text import ParsedSentence
from examples.biaffine.train import Parser, main
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
    words, letters = ["ta", "tb", "runs"], list("abcnrstu")
    db.seed(0)
    sizes = {"features": 4, "hidden": 5, "layers": 2, "dropout": 0.0}
    tags, labels = ["DET", "NOUN", "VERB"], ["det", "nsubj", "root"]
    parser = Parser(words, letters, tags, labels, **sizes).astype("float64")
    check_batching(parser.loss, [(one,) for one in sentences], parameters=parser.parameters())
    for (heads, names), sentence in zip(parser.parse(sentences), sentences, strict=True):
        assert len(heads) == len(names) == len(sentence.words)
        assert heads.count(0) == 1


def test_trees_are_learned_from_words_alone_and_scored_beside_rules(monkeypatch, tmp_path, capsys):
    parts = {"train": list(made_up(120)), "test": list(made_up(40, seed=1))}
    monkeypatch.setattr(petrogold, "load", lambda part: parts[part])
    sizes = ["--features", "12", "--hidden", "12", "--layers", "1", "--batch-size", "12"]
    training = ["--epochs", "8", "--lr", "0.03", "--dropout", "0"]
    main([*sizes, *training, "--no-tags", "--checkpoint", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    found = re.findall(r"UAS +([\d.]+)% +LAS +([\d.]+)%", printed)
    before, following, *_, this, _ = [[float(x) for x in row] for row in found]
    assert min(this) > 95 > 80 > max(*before, *following), printed
