"""The tagger on Brown: that it learns what spelling tells, and goes on where it was."""

import re

import numpy as np
import pytest

from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.tagging.train import main
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
def test_endings_of_words_never_seen_are_learned(options, monkeypatch, capsys):
    monkeypatch.setattr(brown, "load", lambda path: list(made_up(200)))
    sizes = ["--features", "16", "--letters", "8", "--hidden", "8", "--dropout", "0"]
    training = ["--epochs", "4", "--lr", "0.03", "--warmup", "5", "--batch-size", "8", "--quiet"]
    assert main([*sizes, *training, *options]) == 0
    printed = capsys.readouterr().out
    baseline, found = re.findall(r"([\d.]+)% +([\d.]+)%$", printed, re.M)
    assert float(baseline[1]) < 50 and float(found[1]) > 95, printed
    assert ("bi-LSTM, CRF" in printed) == bool(options)


def test_a_mistake_is_one_message_and_status_1(tmp_path, capsys):
    assert main(["--data", str(tmp_path / "none.tgz")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(brown, "load", lambda path: list(made_up(60)))
    common = ["--features", "4", "--letters", "3", "--hidden", "4", "--quiet"]
    output = ["--output", str(tmp_path / "run"), "--epochs", "2"]
    assert main([*common, *output]) == 0
    first = capsys.readouterr().out
    assert main([*common, *output, "--resume"]) == 0
    assert capsys.readouterr().out == first
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 8
