"""`python -m dynbatch.demo` on a few commands: what it prints, and how it ends."""

import os
from unittest.mock import Mock

import numpy as np
import pytest

from dynbatch import models
from dynbatch.demo import __main__ as demo
from dynbatch.demo.scan import simple_split
from dynbatch.train import SentenceBatches


@pytest.fixture
def few_commands(monkeypatch):
    train, test = simple_split()
    monkeypatch.setattr(demo, "simple_split", lambda: (train[:64], test[:8]))


def test_the_demo_prints_lines_of_at_most_80_columns_and_writes_no_file(
    few_commands, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert demo.main(["--epochs", "1"]) == 0
    out, err = capsys.readouterr()
    assert "0 of 8 exact" in out and "1 of 4 passes" in out and "times as many words" in out
    assert out.count("  not -> ") == 4  # after two updates nothing is right
    assert max(map(len, [*out.splitlines(), *err.replace("\r", "\n").splitlines()])) <= 80
    assert os.listdir(tmp_path) == []


def test_ctrl_c_ends_the_demo_without_a_traceback(few_commands, monkeypatch, capsys):
    def interrupted(self, num_epochs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.Trainer, "fit", interrupted)
    assert demo.main([]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_end_of_a_translation_is_a_token_of_the_loss(monkeypatch):
    told = []
    monkeypatch.setattr(demo, "Trainer", lambda *args, **settings: told.append(settings) or Mock())
    demo.fit(models.Seq2Seq(3, 4, 2, 2), SentenceBatches([([0], [1])], 1), 1)
    assert told[0]["num_tokens"]((np.arange(2), np.arange(5))) == 6


def test_pairs_are_printed_as_a_file_to_train_on(capsys):
    assert demo.main(["--pairs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20_910
    assert lines[-1].count("\t") == 1


def test_a_wrong_translation_is_shown_beside_the_right_one_within_80_columns():
    right = ("I_TURN_LEFT", "I_JUMP") * 10
    shown = demo.translation(("jump", "left"), ("I_JUMP",), right)
    assert shown.startswith("  jump left\n  -> JUMP\n  not -> TURN_LEFT JUMP ")
    assert max(map(len, shown.splitlines())) <= 80
    assert "not" not in demo.translation(("jump",), ("I_JUMP",), ("I_JUMP",))
