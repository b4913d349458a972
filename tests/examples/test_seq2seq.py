"""The seq2seq example: it learns, goes on where it stopped, and writes what it has learned."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynbatch import train
from examples.seq2seq import generate
from examples.seq2seq.train import Translator, main
from tests.examples.stopped import after_its_first_save

ROOT = Path(__file__).parents[2]
SMALL = ["--embed", "6", "--hidden", "8", "--batch-size", "16"]

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture
def words(tmp_path):
    """A file of words to spell backwards."""
    rng = np.random.default_rng(0)
    words = sorted({" ".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(90)})
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return str(path)


def test_it_learns_and_reports_on_what_was_held_out(words, tmp_path, capsys):
    checkpoint = str(tmp_path / "run" / "model.safetensors")
    sizes = ["--embed", "12", "--hidden", "24", "--batch-size", "8", "--lr", "0.02"]
    assert main([words, *sizes, "--epochs", "12", "--checkpoint", checkpoint]) is None
    printed = capsys.readouterr().out
    assert printed.count("held out: token error rate") == 12
    last = printed.split("test: token error rate ")[1]
    assert float(last.split("%")[0]) < 20 and " → " in last


def test_a_run_that_was_stopped_ends_with_the_same_bits(words, tmp_path):
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    options = [words, *SMALL, "--epochs", "3", "--dropout", "0.3", "--checkpoint"]
    main([*options, whole])

    with after_its_first_save():
        main([*options, cut])
    assert train.read_checkpoint(cut).epoch == 1
    main([*options, cut, "--resume"])
    assert Path(cut).read_bytes() == Path(whole).read_bytes()


def test_both_scripts_run_by_path_from_any_folder(words, tmp_path):
    """As typed in the README, where nothing but dynbatch is installed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "dynbatch").symlink_to(ROOT / "dynbatch")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    folder = ROOT / "examples" / "seq2seq"

    def run(*command):
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    run(folder / "train.py", words, *SMALL, "--epochs", "1")
    checkpoint = "runs/seq2seq.safetensors"
    assert (tmp_path / checkpoint).exists()
    assert run(folder / "generate.py", checkpoint, "ab").startswith("ab\t")


@pytest.mark.parametrize(
    ("entries", "texts"), [(["a", "b"], ["a b", "b"]), (["a", "to"], ["a to", "to"])]
)
def test_sources_are_spelled_where_letters_were_learned(tmp_path, capsys, entries, texts):
    settings = {"source": entries, "target": ["X", "Y"], "embed": 4, "hidden": 6, "dropout": 0.0}
    model, path = Translator(**settings), tmp_path / "model.safetensors"
    train.save_checkpoint(path, model, extra=settings)
    sources = [text.replace(" ", "") if entries == ["a", "b"] else text for text in texts]
    generate.main([str(path), *sources, "--num-beams", "2"])
    written = model.translate(texts, num_beams=2)
    lines = [f"{s}\t{' '.join(words)}" for s, words in zip(sources, written, strict=True)]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_gpu_trains_the_same(words, tmp_path, capsys, cuda):
    reports = []
    for device in ("cpu", "cuda"):
        main(
            [
                words,
                *SMALL,
                "--epochs",
                "1",
                "--device",
                device,
                "--checkpoint",
                str(tmp_path / "x"),
            ]
        )
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1]
