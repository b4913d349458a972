"""Checkpoints of a translator in `dynbatch generate`: what it prints, what it refuses."""

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from dynbatch.commands.main import main as dynbatch
from dynbatch.models import Linear
from dynbatch.tasks.translation.translator import Translator
from dynbatch.text import Vocabulary
from dynbatch.train import save_checkpoint


def main(arguments):
    """The exit status of `dynbatch generate`."""
    return dynbatch(["generate", *arguments])


@pytest.fixture
def translator():
    letters, phones = Vocabulary("abc"), Vocabulary(["K", "AE"])
    made = Translator(
        {"embed": 4, "hidden": 5}, letters, phones, "characters", "words", max_length=6
    )
    for parameter in made.model.parameters():
        parameter.value *= 4  # untrained, but with preferences
    return made


def test_a_source_without_tokens_is_warned_of(translator, capsys):
    assert translator.coder().encode("  ").size == 0
    assert capsys.readouterr().err == "warning: an empty source, which the model never saw\n"


def test_unknown_tokens_are_named_of_the_first_sources_and_a_target_is_told_of(translator, capsys):
    coder = translator.coder()
    for _ in range(9):
        coder.encode("abx")
    said = capsys.readouterr().err.splitlines()
    assert said[:5] == ["warning: 'abx': unknown to the model, by character: 'x' (3)"] * 5
    assert said[5:] == ["warning: more sources have such, which are not named"]
    translator.coder().encode("ab\tK AE")
    assert "give sources alone: cut -f 1 FILE" in capsys.readouterr().err


def extra_of(translator):
    return {"task": "translation", "description": translator.description()}


@pytest.fixture
def checkpoint(translator, tmp_path):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, translator.model, extra=extra_of(translator))
    return str(path)


pytestmark = pytest.mark.usefixtures("same_threads")


def expected(translator, words, **options):
    found = translator.translate(words, **options)
    return [" ".join(one.tokens) for ones in found for one in ones]


def test_sources_may_stand_among_the_options(translator, checkpoint, capsys):
    assert main([checkpoint, "--num-beams", "2", "cab", "--batch-size", "2", "ba"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba"], beam_size=2)


def test_sources_are_the_lines_of_a_file(translator, checkpoint, tmp_path, capsys):
    path = tmp_path / "words.txt"
    path.write_text("cab\n\n  ba  \nc\n")
    assert main([checkpoint, "--file", str(path), "--batch-size", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba", "c"])


def test_a_run_of_train_needs_no_loader(translator, tmp_path, capsys):
    path = tmp_path / "run" / "model.best.safetensors"
    save_checkpoint(path, translator.model, extra=extra_of(translator))
    assert main([str(tmp_path / "run"), "cab", "ba"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba"])


def test_the_n_best_of_a_beam_come_with_their_scores(translator, checkpoint, capsys):
    arguments = ["--num-beams", "3", "-n", "2", "--length-penalty", "0.5", "--threads", "1"]
    assert main([checkpoint, "cab", "ba", *arguments, "--json"]) == 0
    found = [json.loads(line)["results"] for line in capsys.readouterr().out.splitlines()]
    options = {"beam_size": 3, "n_best": 2, "length_penalty": 0.5}
    texts = [one["text"] for results in found for one in results]
    assert texts == expected(translator, ["cab", "ba"], **options)
    assert all(first["score"] >= second["score"] for first, second in found)


def test_a_gpu_finds_what_the_cpu_finds(translator, checkpoint, capsys, cuda):
    assert main([checkpoint, "cab", "ba", "--device", "cuda", "--num-beams", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == expected(translator, ["cab", "ba"], beam_size=2)


def test_a_gpu_that_is_not_there_is_one_message(checkpoint, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main([checkpoint, "cab", "--device", "cuda"]) == 1
    assert capsys.readouterr().err.startswith("error: CUDA is not available")


def test_unknown_letters_are_no_mistake_and_are_named(checkpoint, capsys):
    assert main([checkpoint, "azb!", "cab", "z" * 50]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    first, second, *_ = printed.err.splitlines()
    assert first == "warning: 'azb!': unknown to the model, by character: 'z' (2), '!' (4)"
    assert second.startswith(f"warning: '{'z' * 40}…': unknown to the model, by character: 'z' (1)")
    assert second.endswith("'z' (10) and 40 more")


def test_unknown_words_are_named_by_their_place_among_the_words(translator, tmp_path, capsys):
    translator.source_units = "words"
    path = tmp_path / "words.safetensors"
    save_checkpoint(path, translator.model, extra=extra_of(translator))
    assert main([str(path), "a dog b", "--quiet"]) == 0
    said = "warning: 'a dog b': unknown to the model, by word: 'dog' (2)\n"
    assert capsys.readouterr().err == said


def test_a_reader_that_has_gone_ends_it_without_a_word(checkpoint, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as unread, redirect_stdout(unread):
        assert main([checkpoint, "ab", "ba"]) == 141
    assert capsys.readouterr().err == ""


def test_a_damaged_checkpoint_is_one_message(checkpoint, capsys):
    path = Path(checkpoint)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    assert main([checkpoint, "ab"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: damaged: tensor 'model/")


def test_a_checkpoint_of_another_program_is_refused(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, Linear(2, 2))
    assert main([str(path), "ab"]) == 1
    assert "which does not say how its model is made" in capsys.readouterr().err
    assert main([str(tmp_path / "none"), "ab"]) == 1
    assert "there is no such file" in capsys.readouterr().err
