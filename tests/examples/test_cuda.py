"""Every example that has a `--device` trains on a GPU by its own command, on next to nothing."""

from dataclasses import replace

import pytest

from examples.biaffine import train as biaffine
from examples.corpora import brown, petrogold
from examples.corpora.syntax import load as load_functions
from examples.language_model import train as language_model
from examples.parser import train as parser
from examples.tagging import train as tagging
from examples.text_cnn import train as text_cnn
from examples.trees import syntax
from tests.examples.test_biaffine import made_up as parsed
from tests.examples.test_parser import SENTENCES
from tests.examples.test_syntax import SOURCE
from tests.examples.test_tagging import made_up as tagged

pytestmark = [pytest.mark.usefixtures("same_threads", "cuda"), pytest.mark.exhaustive]
ONE_EPOCH = ["--device", "cuda", "--epochs", "1", "--threads", "1", "--quiet"]


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["ab" * (3 + k % 5) + str(k % 7) for k in range(20)]))
    return str(path)


@pytest.mark.parametrize("crf", [[], ["--crf"]])
def test_tagging(monkeypatch, tmp_path, capsys, crf):
    monkeypatch.setattr(brown, "load", lambda path: list(tagged(40)))
    sizes = ["--features", "8", "--hidden", "5", "--checkpoint", str(tmp_path / "run")]
    tagging.main([*sizes, *crf, "--device", "cuda", "--epochs", "1"])
    assert "%" in capsys.readouterr().out


def test_categories(monkeypatch, tmp_path, capsys):
    of_two = [replace(one, category=("news", "lore")[k % 2]) for k, one in enumerate(tagged(40))]
    monkeypatch.setattr(brown, "load", lambda path: of_two)
    sizes = ["--features", "8", "--filters", "8", "--sentences", "1"]
    run = ["--device", "cuda", "--epochs", "1", "--checkpoint", str(tmp_path / "run")]
    text_cnn.main([*sizes, *run])
    assert "%" in capsys.readouterr().out


def test_language(letters, tmp_path, capsys):
    sizes = ["--width", "8", "--layers", "1", "--heads", "2", "--max-tokens", "100"]
    run = ["--epochs", "1", "--device", "cuda", "--checkpoint", str(tmp_path / "run")]
    language_model.main([letters, *sizes, *run])
    assert "bits per byte" in capsys.readouterr().out


def test_biaffine_parsing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(petrogold, "load", lambda part: list(parsed(15)))
    sizes = ["--features", "6", "--hidden", "6", "--layers", "1", "--no-tags"]
    run = ["--device", "cuda", "--epochs", "1", "--checkpoint", str(tmp_path / "run")]
    biaffine.main([*sizes, *run])
    assert "UAS" in capsys.readouterr().out


def test_shift_reduce_parsing(monkeypatch, capsys):
    monkeypatch.setattr(parser, "load", lambda split: SENTENCES)
    assert parser.main(["--hidden", "6", "--batch-size", "3", "--no-tags", *ONE_EPOCH]) == 0
    assert "UAS" in capsys.readouterr().out


def test_trees(monkeypatch, capsys, tmp_path):
    for k in range(80):
        (tmp_path / f"file{k}.py").write_text(SOURCE)
    monkeypatch.setattr(syntax, "load", lambda split: load_functions(split, tmp_path))
    assert syntax.main(["--limit", "8", "--hidden", "4", *ONE_EPOCH]) == 0
    assert "right" in capsys.readouterr().out
