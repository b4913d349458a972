"""The language model example: it learns, goes on where it stopped, and writes."""

import re
from pathlib import Path

import pytest

from dynbatch import train
from dynbatch.errors import DataError
from dynbatch.text.documents import documents
from examples.corpora import fortunes, shakespeare, texts
from examples.corpora.fetching import cache_folder
from examples.language_model import generate
from examples.language_model.train import GPT, main, write
from tests.examples.stopped import after_its_first_save

pytestmark = pytest.mark.usefixtures("same_threads")

SMALL = ["--width", "16", "--layers", "1", "--heads", "2", "--max-tokens", "200"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["ab" * (3 + k % 40) + str(k % 7) for k in range(80)]))
    return str(path)


def test_it_learns_a_text_and_shows_what_it_makes_up(text, tmp_path, capsys):
    main([text, *SMALL, "--epochs", "4", "--lr", "0.02", "--checkpoint", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    bits = [float(x) for x in re.findall(r"([\d.]+) bits per byte", printed)]
    assert len(bits) == 4 and bits[-1] < min(0.6, bits[0])  # letters alone would be 1.2 bits
    assert re.search(r"(ab){4,}", printed.split("bits per byte")[-1]), printed


def test_a_run_that_was_stopped_ends_with_the_same_bits(text, tmp_path):
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    options = [text, *SMALL, "--epochs", "2", "--dropout", "0.1", "--checkpoint"]
    main([*options, whole])

    with after_its_first_save():
        main([*options, cut])
    main([*options, cut, "--resume"])
    assert Path(cut).read_bytes() == Path(whole).read_bytes()


def test_a_checkpoint_continues_a_beginning(tmp_path, capsys):
    sizes = {"width": 8, "layers": 1, "heads": 2, "dropout": 0.0}
    model, path = GPT(**sizes), tmp_path / "model.safetensors"
    train.save_checkpoint(path, model, extra=sizes)
    generate.main([str(path), "One", "-n", "2", "--seed", "4"])
    written = write(model, "One", num_return_sequences=2, seed=4, temperature=1.0)
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in written)
    assert all(text.startswith("One") for text in written)


def test_a_tenth_of_a_file_is_held_out(text):
    parts = texts.load(text)
    assert len(parts.train) + len(parts.dev) == 80 and 1 <= len(parts.dev) < 20
    with pytest.raises(DataError, match="rule: fortunes, shakespeare, or a file of text"):
        texts.load("none.txt")


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
    path = cache_folder() / shakespeare.ARCHIVE.name
    if not path.exists():
        pytest.skip(f"not fetched: {shakespeare.ARCHIVE.name}")
    text = shakespeare.load()
    assert (len(text), len(set(text))) == (1_113_302, 77)
    assert len(documents(text)) > 8_000
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"x")
    with pytest.raises(DataError, match=r"not shakespeare-0\.6\.tar\.gz, by its SHA-256"):
        shakespeare.load(other)
