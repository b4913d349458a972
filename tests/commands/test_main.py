"""The help of `dynbatch` and its commands, and their answers to what they do not know."""

import re
import sys

import pytest

import dynbatch
from dynbatch.commands import status
from dynbatch.commands.main import COLUMNS, COMMANDS, main
from dynbatch.errors import ArgumentError


def helped(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_names_each_command_with_what_it_is_for(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name:<10} {command.SUMMARY}\n" in out
    assert "exit status:" in out and "metrics.jsonl" in out
    assert max(map(len, out.splitlines())) <= COLUMNS


def test_without_a_command_it_helps_and_fails(capsys):
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "commands:" in said.err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_teaches_within_80_columns(name, capsys):
    out = helped(capsys, name)
    assert max(map(len, out.splitlines())) <= COLUMNS
    assert out.startswith(f"usage: dynbatch {name} ") and "[options]" in out.splitlines()[0]
    before_options = out.partition("options:\n")[0]
    assert len(re.findall(rf"^  dynbatch {name} ", before_options, re.MULTILINE)) >= 3
    assert "exit status:" in out
    assert all([not line.endswith(" ") for line in out.splitlines()])


def test_a_mistyped_command_is_answered_by_the_nearest(capsys):
    assert main(["memroy", "x.txt"]) == 2
    assert "did you mean: dynbatch memory" in capsys.readouterr().err
    assert main(["zzz"]) == 2
    assert "one of train, generate, memory" in capsys.readouterr().err


def test_a_mistyped_option_is_answered_by_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["memory", "x.txt", "--batchsize", "3"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--batchsize" in said and "fix:  --batch-size?" in said
    assert "help: dynbatch memory --help" in said and len(said.splitlines()) == 3


def test_a_mistyped_task_is_answered_by_the_nearest(capsys, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a b\tc d\n" * 9)
    for task, fix in [("translate", "\n  fix:  translation?\n"), ("zzz", "\n  help:")]:
        with pytest.raises(SystemExit) as ended:
            main(["train", str(path), "--task", task])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and f"invalid choice: '{task}'" in said and fix in said


def test_an_error_ends_before_the_commands_own_line_however_it_was_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    error = ArgumentError(f"X: y.\n  fix:  z\n  made at {tmp_path}/a/../bin/dynbatch:8 in <module>")
    for called in ("bin/dynbatch", "./bin/../bin/dynbatch", str(tmp_path / "bin/dynbatch")):
        monkeypatch.setattr(sys, "argv", [called])
        assert status.said(error) == "X: y.\n  fix:  z"
    monkeypatch.setattr(sys, "argv", ["other.py"])
    assert status.said(error) == str(error)


def test_it_tells_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dynbatch {dynbatch.__version__}\n"
