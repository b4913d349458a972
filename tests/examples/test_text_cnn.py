"""The text CNN: passages of documents, and that it learns what words tell."""

import re

import numpy as np

from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.text_cnn.train import main


def sentence(text, document, category="news"):
    words = tuple(text.split())
    return Sentence(words, ("nn",) * len(words), document, category)


def test_passages_do_not_cross_documents():
    sentences = [sentence(text, text[0]) for text in ("a One", "a two", "a three", "b four")]
    found = [passage.text for passage in brown.passages(sentences, 2)]
    assert found == ["a one a two", "a three", "b four"]


def test_categories_are_learned_and_told_beside_the_most_frequent(monkeypatch, tmp_path, capsys):
    rng = np.random.default_rng(0)
    words = {"news": "a b c", "humor": "a b d", "lore": "c d e"}
    made_up = [
        sentence(
            " ".join(rng.choice(words[category].split(), rng.integers(4, 20))), f"d{k:03}", category
        )
        for k, category in enumerate(rng.choice(list(words), 300))
    ]
    monkeypatch.setattr(brown, "load", lambda path: made_up)
    sizes = ["--features", "8", "--filters", "8", "--dropout", "0", "--sentences", "1"]
    main([*sizes, "--epochs", "8", "--lr", "0.02", "--checkpoint", str(tmp_path / "run")])
    shares = [float(x) for x in re.findall(r"([\d.]+)% of the test", capsys.readouterr().out)]
    assert shares[0] < 60 < 90 < shares[-1]
