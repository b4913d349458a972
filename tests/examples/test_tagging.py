"""The tagger on Brown: that it learns what spelling tells, and is saved whole."""

import re

import numpy as np
import pytest

from dynbatch import train
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.tagging.train import Tagger, accuracy, main
from tests.marks import exhaustive


def made_up(count):
    """Words with endings that tell their tags; every word of the tenth document is new."""
    rng = np.random.default_rng(0)
    letters, endings = list("bdfgklmnprst"), {"nn": "ion", "vb": "ize", "jj": "ous", "rb": "ly"}
    for k in range(count):
        tags = rng.choice([*endings, "at"], rng.integers(1, 6)).tolist()
        words = [
            "the" if tag == "at" else "".join(rng.choice(letters, 3)) + endings[tag] for tag in tags
        ]
        yield Sentence(tuple(words), tuple(tags), f"d{k % 10}", "news")


@pytest.mark.parametrize("options", [exhaustive([]), ["--crf"]])
def test_endings_of_words_never_seen_are_learned(options, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(brown, "load", lambda path: list(made_up(200)))
    sizes = ["--features", "16", "--hidden", "8", "--dropout", "0", "--batch-size", "8"]
    training = ["--epochs", "4", "--lr", "0.03", "--checkpoint", str(tmp_path / "run")]
    main([*sizes, *training, *options])
    every, unknown = re.findall(r"([\d.]+)%", capsys.readouterr().out)[-2:]
    assert float(every) > 95 and float(unknown) > 95


def test_a_saved_tagger_tags_as_it_did(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(brown, "load", lambda path: list(made_up(60)))
    path = tmp_path / "run"
    main(["--features", "4", "--hidden", "4", "--epochs", "1", "--crf", "--checkpoint", str(path)])
    tagger = Tagger(**train.read_checkpoint(path).extra)
    train.load_checkpoint(path, tagger)
    _, test = brown.split(list(made_up(60)))
    found = tagger.tag([sentence.words for sentence in test])
    known = {word for one in brown.split(list(made_up(60)))[0] for word in one.words}
    assert accuracy(found, test, known) in capsys.readouterr().out
