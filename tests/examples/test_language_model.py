"""The language model: every byte predicted once, by document, and a run that learns and goes on."""

import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch.commands.main import main as command
from dynbatch.errors import DataError
from dynbatch.models import GPT
from dynbatch.tasks.registry import load_task
from dynbatch.text.documents import documents
from dynbatch.train import read_checkpoint
from examples.corpora import fortunes, shakespeare
from examples.corpora.brown import cache_folder
from examples.language_model.train import main

pytestmark = pytest.mark.usefixtures("same_threads")

SMALL = ["--width", "16", "--layers", "1", "--heads", "2", "--max-tokens", "200", "--quiet"]
SMALL += ["--sample-length", "20"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["ab" * (3 + k % 40) + str(k % 7) for k in range(80)]))
    return str(path)


def test_pieces_that_would_overlap_whole_are_refused(text, tmp_path, capsys):
    run = ["--output", str(tmp_path / "run"), "--longest", "16", "--overlap", "16"]
    assert main([text, *run]) == 1
    assert "rule: --overlap is below --longest\n  fix:  --overlap 4" in capsys.readouterr().err


def test_a_model_learns_a_text_and_shows_what_it_makes_up(text, tmp_path, capsys):
    run = ["--output", str(tmp_path / "run"), "--epochs", "3", "--lr", "0.02", "--samples", "4"]
    assert main([text, *SMALL, *run]) == 0
    printed = capsys.readouterr().out
    bits = [float(x) for x in re.findall(r"validation: ([\d.]+) bits per byte", printed)]
    assert "saved; " in printed.splitlines()[-1]  # memory beside that of padded batches
    assert len(bits) == 3 and bits[-1] < 0.6 < bits[0]  # letters alone would be 1.2 bits
    assert re.search(r"(ab){4,}", printed.split("validation")[-1]), printed


def test_bits_of_characters_are_told_by_bytes_too(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["é" * (3 + k % 40) for k in range(80)]))
    found = []
    for more in ([], ["--characters"]):
        run = ["--output", str(tmp_path / f"run{len(more)}"), "--epochs", "1", "--lr", "1e-9"]
        assert main([str(path), *SMALL, *run, *more]) == 0
        found += re.findall(r"([\d.]+) bits per byte", capsys.readouterr().out)
    bytes_apiece, characters_apiece = map(float, found)  # of a model that knows nothing
    assert bytes_apiece == pytest.approx(np.log2(257) * 1.03, rel=0.02)
    assert 0.4 < characters_apiece < 0.6  # a bit a character of two bytes, and the mark


def test_a_run_that_was_stopped_ends_with_the_same_bits_and_samples(text, tmp_path, capsys):
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    given = [text, *SMALL, "--longest", "32", "--overlap", "8", "--dropout", "0.1"]
    given += ["--samples", "1"]
    assert main([*given, "--output", whole, "--epochs", "2"]) == 0
    last = capsys.readouterr().out.split("validation")[-1].split("Memory")[0]
    stopped = pytest.MonkeyPatch()
    with stopped.context() as patch:
        count = iter(range(1000))
        original = GPT.loss

        def interrupted(model, graph, ids, context=0):
            if next(count) == 130:
                raise KeyboardInterrupt
            return original(model, graph, ids, context)

        patch.setattr(GPT, "loss", interrupted)
        assert main([*given, "--output", cut, "--epochs", "2"]) == 130
    assert main([*given, "--output", cut, "--epochs", "2", "--resume"]) == 0
    assert capsys.readouterr().out.split("validation")[-1].split("Memory")[0] == last
    tensors = [read_checkpoint(f"{path}/model.safetensors") for path in (whole, cut)]
    assert tensors[0].step == tensors[1].step > 10
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


@pytest.mark.parametrize("kind", [[], ["--characters"]])
def test_a_run_writes_on(text, tmp_path, capsys, kind):
    run = str(tmp_path / "run")
    assert main([text, *SMALL, *kind, "--output", run, "--epochs", "1", "--lr", "0.02"]) == 0
    capsys.readouterr()
    assert command(["generate", run, "", "ab", "-n", "2", "--seed", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    writer = load_task(tmp_path / "run" / "model.best.safetensors")
    tokenizer, config = writer.coder(), writer.generation()
    prompts = [tokenizer.encode(prompt) for prompt in ("", "ab")]
    results = db.generate(writer.model, prompts, config, num_return_sequences=2, seed=4)
    found = [one.tokens for of_prompt in results for one in of_prompt]
    assert lines == [tokenizer.decode(ids) for ids in found]


def test_fortunes_are_split_at_lines_of_one_percent_sign(tmp_path):
    folder = tmp_path / "usr/share/games/fortunes"
    folder.mkdir(parents=True)
    (folder / "law").write_text("One.\n%\n%\nTwo: 5%\n%\nlines.\n%\n")
    (folder / "law.dat").write_bytes(b"\xff")
    (folder / "ethnic").write_text("Not read.\n")
    found = fortunes.load(tmp_path)
    assert [(each.text, each.topic) for each in found] == [
        (text, "law") for text in ("One.", "Two: 5%", "lines.")
    ]
    with pytest.raises(DataError, match=r"no fortunes below it[^$]*apt-get download fortunes"):
        fortunes.load(folder)


def test_shakespeare_is_as_long_as_its_page_says(tmp_path):
    path = cache_folder() / shakespeare.ARCHIVE
    if not path.exists():
        pytest.skip(f"not fetched: {shakespeare.ARCHIVE}")
    text = shakespeare.load()
    assert (len(text), len(set(text))) == (1_113_302, 77)
    assert len(documents(text)) > 8_000
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"x")
    with pytest.raises(DataError, match=r"not shakespeare-0\.6\.tar\.gz, by its SHA-256"):
        shakespeare.load(other)


def test_a_name_that_is_no_file_is_answered_with_the_known_ones(tmp_path, capsys):
    assert main([str(tmp_path / "none.txt")]) == 1
    assert "rule: fortunes, shakespeare, or a file of text" in capsys.readouterr().err
