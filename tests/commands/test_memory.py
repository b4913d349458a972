"""The command `dynbatch memory`: what it prints and writes, and what it says to bad input."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynbatch.batcher.execution.executor import Executor
from dynbatch.commands import memory as command
from dynbatch.commands.main import main

SMALL = ["--embed", "8", "--hidden", "8", "--batch-size", "4", "--batches", "1"]
SMALL += ["--batch-sizes", "4"]


def memory(arguments: list[str]) -> int:
    return main(["memory", *arguments])


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    lines = []
    for n, m in rng.geometric(0.2, size=(12, 2)):
        lines.append("\t".join([" ".join(map(str, rng.integers(9, size=k))) for k in (n, m)]))
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join([*lines[:5], "", *lines[5:]]) + "\n")
    return str(path)


@pytest.fixture
def sentences(pairs: str, tmp_path: Path) -> str:
    path = tmp_path / "sentences.txt"
    first = [line.partition("\t")[0] for line in Path(pairs).read_text().splitlines()]
    path.write_text("\n".join(first))
    return str(path)


@pytest.mark.slow
def test_pairs_train_seq2seq(pairs: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["memory", pairs, *SMALL, "--json", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr()
    assert "12 sentences" in printed.out and "Seq2Seq" in printed.out
    assert "compute the same loss" in printed.out
    assert "1 blank lines left out" in printed.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["by_batch_size"]["unpadded, random"]["4"] > 0


@pytest.mark.parametrize(("model", "name"), [("tagger", "Tagger"), (None, "LanguageModel")])
def test_sentences_train_a_tagger_or_a_language_model(
    sentences: str, model: str | None, name: str, capsys: Any
) -> None:
    assert memory([sentences, *SMALL, *(["--model", model] if model else [])]) == 0
    out = capsys.readouterr().out
    assert name in out and "compute the same loss" in out


TAGGED = "the\tDET\nduck\tNOUN\n\nwe\tPRON\nduck\tVERB\nlow\tADV\n\n" * 4
TEXTS = "".join(
    [f"{kind}\tthis is {kind} number {k}\n" for k in range(6) for kind in ("no", "yes")]
)


@pytest.mark.parametrize(
    ("content", "seen", "count"),
    [(TAGGED, "each line is a word and its tag", 8), (TEXTS, "label", 12)],
    ids=["tagged", "labelled"],
)
def test_files_of_tags_and_labels_train_a_tagger_of_as_many(
    content: str, seen: str, count: int, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "data.tsv"
    path.write_text(content)
    assert memory([str(path), *SMALL]) == 0
    printed = capsys.readouterr()
    assert f"{count} sentences" in printed.out and "Tagger, " in printed.out
    assert seen in printed.err
    _, *lines = printed.out.splitlines()
    assert max(map(len, lines)) <= 80 and "how to read it" in lines
    states = [one for one in printed.err.replace("\n", "\r").split("\r") if str(path) not in one]
    assert any(["step/s" in one for one in states]) and max(map(len, states)) <= 80


def test_labels_reach_a_model_of_the_user(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "own_labels.py").write_text(
        "from dynbatch import models, nodes as F\n"
        "class Kinds(models.Module):\n"
        "    def __init__(self, words, labels):\n"
        "        self.embed = models.Embedding(words, 4)\n"
        "        self.project = models.Linear(4, labels)\n"
        "    def loss(self, graph, words, label):\n"
        "        scores = self.project(F.mean(self.embed(graph, words), dim=0))\n"
        "        return F.cross_entropy(scores, int(label[0]))\n"
        "def make(words, labels):\n"
        "    model = Kinds(words, labels)\n"
        "    return model, model.loss\n"
    )
    (tmp_path / "data.tsv").write_text(TEXTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    assert memory(["data.tsv", *SMALL, "--model", "own_labels:make"]) == 0
    assert "Kinds, " in capsys.readouterr().out


def test_characters_are_tokens_if_asked_for(sentences: str, capsys: Any) -> None:
    assert memory([sentences, *SMALL, "--characters"]) == 0
    assert "LanguageModel" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("model", ["seq2seq", "tagger", "language-model"])
def test_pytorch_is_measured_beside_it(model: str, pairs: str, sentences: str, capsys: Any) -> None:
    pytest.importorskip("torch")
    data = pairs if model == "seq2seq" else sentences
    assert memory([data, *SMALL, "--layers", "2", "--model", model, "--pytorch"]) == 0
    out = capsys.readouterr().out
    assert "than pytorch, padded" in out and "than pytorch, bucketed" in out


OWN = """
from dynbatch.padding import Tagger, pad_ids, pad_model

def make(words, tags):
    model = Tagger(words, tags, 4, 4)
    return model, model.loss

def padded(words, tags):
    model = Tagger(words, tags, 4, 4)
    def loss(graph, words, tags):
        return model.loss(graph, words, words % 3)
    return model, loss, pad_ids, lambda graph, words, tags: model.loss(graph, words, words % 3)

def one(words):
    return None

def half(words, tags):
    return Tagger(words, tags, 4, 4), 3

nothing = print
"""


def test_model_of_the_user(pairs: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "own_network.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert memory([pairs, *SMALL, "--model", "own_network:padded"]) == 0
    assert "reads" in capsys.readouterr().out  # the tags of padding count
    for function in ("nothing", "missing"):
        assert memory([pairs, *SMALL, "--model", f"own_network:{function}"]) == 1
    said = capsys.readouterr().err
    assert "it returned a NoneType" in said and "'missing'" in said
    for function, wanted in (("one", "too many positional arguments"), ("half", "(Tagger, int)")):
        assert memory([pairs, *SMALL, "--model", f"own_network:{function}"]) == 1
        assert wanted in capsys.readouterr().err


def test_no_pytorch_form_is_told_before_all_is_measured(
    sentences: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "embedding_alone.py").write_text(
        "from dynbatch import models, nodes as F\n"
        "def make(words):\n"
        "    model = models.Embedding(words, 4)\n"
        "    return model, lambda graph, ids: F.sum(model(graph, ids))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    assert memory([sentences, *SMALL, "--model", "embedding_alone:make", "--pytorch"]) == 1
    said = capsys.readouterr().err
    assert "no form in PyTorch" in said and "step" not in said.partition("error:")[0]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, [], "cannot be read: No such file or directory."),
        (b"\n\n", [], "no sentence in 2 lines"),
        (b"a b\nc\td\n", [], "data:2: 2 columns, the first line has 1"),
        (b"a\tb\tc\n", [], "cut -f 1,2"),
        ("Größe\t \n".encode(), [], "data:1: nothing on one side of the tab.\n  line: 'Größe"),
        (
            b"a\n\xff\n",
            [],
            "data:2: byte 1, 0xff, is not UTF-8.\n  fix:  convert the file, for "
            "example with iconv -f LATIN1",
        ),
        ("a b\n".encode("utf-16"), [], "with iconv -f UTF-16 -t UTF-8"),
        (b"a b\tc\n", ["--model", "tagger"], "sentence 1 has 2 words and 1 tags"),
        (b"a\n", ["--model", "seq2seq"], "needs source<TAB>target"),
        (b"a\tb\n", ["--model", "language-model"], "needs one sentence"),
        (b"a\n", ["--model", "bert"], "--model bert: unknown"),
        (b"a\n", ["--model", "no.such:thing"], "No module named 'no'"),
        (b"a\n", [], "1 sentences for batches of 64"),
    ],
)
def test_bad_input_says_what_to_give(
    content: bytes | None, arguments: list[str], said: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "data"
    if content is not None:
        path.write_bytes(content)
    assert memory([str(path), *arguments]) == 1
    assert said in capsys.readouterr().err


def test_what_would_fail_at_the_end_is_told_at_once(
    pairs: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    for flags, said in (
        (["--picture", "a.png"], "--picture needs matplotlib"),
        (["--pytorch"], "--pytorch needs torch"),
        (["--json", str(tmp_path / "no" / "a.json")], "no such folder"),
    ):
        assert memory([pairs, *flags]) == 1
        printed = capsys.readouterr()
        assert said in printed.err and not printed.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--json", "."], "is a folder"),
        (["--picture", "plots"], "is a folder"),
        (["--json", "pairs.tsv"], "holds the sentences"),
        (["--picture", "a.txt"], "fix:  a.txt.png"),
        (["--picture", "a"], "fix:  a.png"),
    ],
)
def test_files_that_cannot_be_written_are_told_at_once(
    flags: list[str], said: str, pairs: str, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: "installed")
    monkeypatch.chdir(Path(pairs).parent)
    Path("plots").mkdir()
    before = Path(pairs).read_bytes()
    assert memory([pairs, *flags]) == 1
    printed = capsys.readouterr()
    assert said in printed.err and not printed.out
    assert Path(pairs).read_bytes() == before


@pytest.mark.usefixtures("short_search")
def test_a_memory_limit_is_planned(sentences: str, capsys: Any) -> None:
    assert memory([sentences, *SMALL, "--memory-limit", "3 kB"]) == 0
    out = capsys.readouterr().out
    assert "within 0.003 MB of arena, as planned" in out and "batches fit as they are" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert memory([sentences, *SMALL, "--memory-limit", "3M"]) == 1
    printed = capsys.readouterr()
    assert 'fix:  --memory-limit="3MB"' in printed.err and not printed.out


def test_number_that_is_none_is_said_plainly(pairs: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        memory([pairs, "--batch-size", "x"])
    assert "'x' is not a whole number" in capsys.readouterr().err


def test_help_teaches(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["memory", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "source<TAB>target" in out and "dynbatch memory pairs.tsv" in out


def test_module_is_the_same_command(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["memory", str(tmp_path / "missing.tsv")])
    monkeypatch.delitem(sys.modules, "dynbatch.memory.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("dynbatch.memory", run_name="__main__")
    assert ended.value.code == 1
    assert "missing.tsv: cannot be read" in capsys.readouterr().err


def test_a_pipe_is_read_where_the_model_is_named_and_else_refused(
    sentences: str, capsys: Any
) -> None:
    for options, status in ([], 1), (["--model", "language-model"], 0):
        reader, writer = os.pipe()
        os.write(writer, Path(sentences).read_bytes())
        os.close(writer)
        assert memory([f"/dev/fd/{reader}", *SMALL, *options]) == status
        os.close(reader)
        assert ("it is a pipe or a device" in capsys.readouterr().err) == (not options)


@pytest.mark.slow
def test_a_gpu_is_planned_for_without_one_and_without_running_a_step(
    pairs: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a plan ran a step")

    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(Executor, "run", refuse)
    out = str(tmp_path / "found.json")
    assert memory([pairs, *SMALL, "--device", "cuda", "--plan", "--json", out]) == 0
    printed = capsys.readouterr().out
    assert "float32 planned for cuda\n" in printed and "3 batches planned" in printed
    assert "less than padded, random" in printed and "peak by sentences of a batch" in printed
    assert "tokens per second" not in printed and "pool" not in printed.partition("how to")[0]
    found = json.loads(Path(out).read_text())
    assert found["losses"] is None and found["forms"]["unpadded, random"]["peak_bytes"] > 0
    assert memory([pairs, *SMALL, "--device", "cuda:1", "--plan"]) == 0
    assert "float32 planned for cuda:1\n" in capsys.readouterr().out
    assert memory([pairs, *SMALL, "--plan"]) == 0
    assert "planned for cpu" in capsys.readouterr().out


def test_pytorch_is_not_planned(pairs: str, capsys: Any) -> None:
    assert memory([pairs, *SMALL, "--plan", "--pytorch"]) == 1
    assert "--plan runs nothing, and PyTorch cannot be planned" in capsys.readouterr().err
