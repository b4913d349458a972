"""The generating script: where sources come from, what it prints, what it refuses."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynbatch.models import Linear
from dynbatch.train import save_checkpoint
from examples.seq2seq.generate import main
from examples.seq2seq.translator import Translator
from examples.seq2seq.vocabulary import Vocabulary

ROOT = Path(__file__).parents[2]


@pytest.fixture
def translator():
    letters, phones = Vocabulary("abc"), Vocabulary(["K", "AE"])
    made = Translator(
        {"embed": 4, "hidden": 5}, letters, phones, "characters", "words", max_length=6
    )
    for parameter in made.model.parameters():
        parameter.value *= 4  # untrained, but with preferences
    return made


@pytest.fixture
def checkpoint(translator, tmp_path):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, translator.model, extra={"translator": translator.description()})
    return str(path)


pytestmark = pytest.mark.usefixtures("same_threads")


def expected(translator, words, **options):
    found = translator.translate([tuple(word) for word in words], **options)
    return [
        f"{word}\t{' '.join(one.tokens)}" for word, ones in zip(words, found, strict=True)
        for one in ones
    ]  # fmt: skip


def test_sources_are_arguments(translator, checkpoint, capsys):
    assert main([checkpoint, "cab", "ba"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba"])


def test_sources_may_follow_options(translator, checkpoint, capsys):
    assert main([checkpoint, "--beam", "2", "cab", "--batch-size", "2", "ba"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba"], beam_size=2)


def test_sources_are_the_lines_of_a_file(translator, checkpoint, tmp_path, capsys):
    path = tmp_path / "words.txt"
    path.write_text("cab\n\n  ba  \nc\n")
    assert main([checkpoint, "--file", str(path), "--batch-size", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba", "c"])


def test_sources_are_standard_input(translator, checkpoint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abba\n")))
    assert main([checkpoint]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["abba"])


def test_the_n_best_of_a_beam_come_with_their_scores(translator, checkpoint, capsys):
    arguments = ["--beam", "3", "--n-best", "2", "--length-penalty", "0.5", "--threads", "1"]
    assert main([checkpoint, "cab", "ba", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    options = {"beam_size": 3, "n_best": 2, "length_penalty": 0.5}
    assert [line.rsplit("\t", 1)[0] for line in lines] == expected(
        translator, ["cab", "ba"], **options
    )
    scores = [float(line.rsplit("\t", 1)[1]) for line in lines]
    assert scores[0] >= scores[1] and scores[2] >= scores[3]


def test_a_gpu_finds_what_the_cpu_finds(translator, checkpoint, capsys, cuda):
    assert main([checkpoint, "cab", "ba", "--device", "cuda", "--beam", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba"], beam_size=2)


def test_a_gpu_that_is_not_there_is_one_message(checkpoint, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main([checkpoint, "cab", "--device", "cuda"]) == 1
    assert capsys.readouterr().err.startswith("error: CUDA is not available")


def test_unknown_letters_are_no_mistake_and_are_named(checkpoint, capsys):
    assert main([checkpoint, "azb!", "cab", "z" * 50]) == 0
    printed = capsys.readouterr()
    assert [line.split("\t")[0] for line in printed.out.splitlines()] == ["azb!", "cab", "z" * 50]
    first, second = printed.err.splitlines()
    assert first == "warning: 'azb!': unknown to the model, by character: 'z' (2), '!' (4)"
    assert second.startswith(f"warning: '{'z' * 40}…': unknown to the model, by character: 'z' (1)")
    assert second.endswith("'z' (10) and 40 more")


def test_unknown_words_are_named_by_their_place_among_the_words(translator, tmp_path, capsys):
    translator.source_units = "words"
    path = tmp_path / "words.safetensors"
    save_checkpoint(path, translator.model, extra={"translator": translator.description()})
    assert main([str(path), "a dog b"]) == 0
    said = "warning: 'a dog b': unknown to the model, by word: 'dog' (2)\n"
    assert capsys.readouterr().err == said


def test_a_reader_that_has_gone_ends_it_without_a_word(checkpoint):
    command = [sys.executable, "-m", "examples.seq2seq.generate", checkpoint, "ab", "ba"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_damaged_checkpoint_is_one_message(checkpoint, capsys):
    path = Path(checkpoint)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    assert main([checkpoint, "ab"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: damaged: tensor 'model/")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--file", "nowhere.txt"], "nowhere.txt: cannot be read: No such file")],
)
def test_a_file_that_cannot_be_read_is_one_message(checkpoint, capsys, arguments, message):
    assert main([checkpoint, *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_line_that_is_not_text_is_named(checkpoint, tmp_path, capsys):
    path = tmp_path / "words.txt"
    path.write_bytes(b"ab\nb\xff\n")
    assert main([checkpoint, "--file", str(path)]) == 1
    assert f"{path}:2: byte 2, 0xff, is not UTF-8" in capsys.readouterr().err


def test_a_checkpoint_of_another_program_is_refused(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, Linear(2, 2))
    assert main([str(path), "ab"]) == 1
    assert "a checkpoint, but not of this example" in capsys.readouterr().err
    assert main([str(tmp_path / "none"), "ab"]) == 1
    assert "there is no such file" in capsys.readouterr().err


def test_more_results_than_the_beam_holds_are_refused(checkpoint, capsys):
    with pytest.raises(SystemExit) as caught:
        main([checkpoint, "ab", "--n-best", "2"])
    assert caught.value.code == 2
    assert "--n-best 2 needs --beam 2 or more" in capsys.readouterr().err
