"""`dynbatch explain`: what it tells of a run, what it writes, and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from dynbatch import models
from dynbatch.commands.main import main
from dynbatch.kernels.c.runtime import library
from dynbatch.tasks.tagging import Tagging, TaggingSettings
from dynbatch.tasks.task import Parts
from dynbatch.tasks.training import train
from dynbatch.train import save_checkpoint

SENTENCES = "\n\n".join(["the\tDET\nduck\tNOUN", "we\tPRON\nduck\tVERB\nlow\tADV"] * 10)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a small tagger, in the folder where the test is."""
    monkeypatch.chdir(tmp_path)
    Path("tagged.tsv").write_text(f"{SENTENCES}\n")
    sizes = {"features": 8, "letters": 4, "hidden": 8, "batch_size": 8}
    settings = TaggingSettings(data="tagged.tsv", output="run", epochs=1, quiet=True, **sizes)
    texts = Tagging.read("tagged.tsv", settings)
    task = Tagging.begin(Parts(texts, [], []), settings)
    train(
        task.model, task.loss, task.examples(texts), settings, task.num_tokens,
        extra={"task": task.name, "description": task.description()},
    )  # fmt: skip
    return Path("run", "model.safetensors")


def test_it_tells_time_memory_and_node_types_within_80_columns(run, capsys):
    before = run.read_bytes()
    assert main(["explain", "run"]) == 0
    out = capsys.readouterr().out
    assert f"{run}: tagging, " in out and " parameters, 3 updates\n" in out
    assert "tagged.tsv: 20 of 20 examples, in 3 mini-batches; nothing is saved" in out
    for said in ("tokens per second", "making nodes", "memory at the peak", "what to change"):
        assert said in out
    shares = re.findall(r"^(Scan|LinearCrossEntropy).* (\d+)% +[\d.]+ +[\d.]+$", out, re.MULTILINE)
    assert {kind for kind, _ in shares} == {"Scan", "LinearCrossEntropy"}
    assert max(map(len, out.splitlines())) <= 80
    assert run.read_bytes() == before


def test_it_ends_with_what_would_make_this_run_faster(run, capsys, monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "there is no C compiler")
    assert main(["explain", "run"]) == 0
    told = capsys.readouterr().out.partition("what to change, by what it would bring at most\n")[2]
    assert "no C compiler" in told and "pip install 'dynbatch[compiler]'" in told


def test_other_data_and_fewer_sentences_are_taken_if_asked_for(run, capsys):
    Path("other.tsv").write_text("a\tDET\nduck\tNOUN\n\n" * 9)
    assert main(["explain", str(run), "--file", "other.tsv", "--sentences", "4"]) == 0
    assert "other.tsv: 4 of 9 examples, in 1 mini-batch;" in capsys.readouterr().out


def test_the_page_and_the_trace_are_written(run):
    assert main(["explain", "run", "--html", "page.html", "--trace", "trace.json"]) == 0
    assert "<html" in Path("page.html").read_text()
    assert json.loads(Path("trace.json").read_text())


def test_what_it_cannot_explain_is_said(run, capsys):
    assert main(["explain", "nowhere"]) == 1
    assert "there is no run" in capsys.readouterr().err
    Path("tagged.tsv").unlink()
    assert main(["explain", "run"]) == 1
    said = capsys.readouterr().err
    assert "read tagged.tsv, not there now" in said and "--file DATA" in said
    save_checkpoint("own.safetensors", models.Linear(2, 2))
    assert main(["explain", "own.safetensors"]) == 1
    assert "print(graph.explain(advice=True)) in your loop" in capsys.readouterr().err
