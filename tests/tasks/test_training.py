"""The common part of the smaller examples: one run in a folder, resumed as it was."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from dynbatch import models
from dynbatch import nodes as F
from dynbatch.tasks.options import option
from dynbatch.tasks.settings import TrainingSettings
from dynbatch.tasks.training import train
from dynbatch.train import locked, read_checkpoint, read_metrics
from examples.training import command

pytestmark = pytest.mark.usefixtures("same_threads")


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    hidden: int = option(3, "features")
    wide: bool = option(False, "a switch")


DATA = [np.random.default_rng(k).integers(0, 5, 1 + k % 4) for k in range(40)]


def example(*arguments, data=DATA):
    """The exit status of an example that is trained on the data."""

    def run(settings):
        class Net(models.Module):
            def __init__(self):
                self.embed = models.Embedding(5, settings.hidden)
                self.project = models.Linear(settings.hidden, 2)

        def loss(graph, model, ids):
            return F.cross_entropy(F.mean(model.project(model.embed(graph, ids)), dim=0), 1)

        train(Net(), loss, data, settings)

    return command(Settings, run, ["--quiet", *arguments], "x", "y")


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "run")


@pytest.mark.parametrize("option", ["--matmul", "--precision"])
def test_factors_and_values_are_rounded_as_the_settings_say(output, capsys, option):
    assert example("--output", output, option, "bfloat16") == 0
    rounded = [record["loss"] for record in read_metrics(f"{output}/metrics.jsonl")]
    kept = read_checkpoint(f"{output}/model.safetensors").extra
    assert kept["settings"]["matmul"] == "bfloat16"
    precision = "bfloat16" if option == "--precision" else "float32"
    assert kept["settings"]["precision"] == precision == kept["trainer"]["rounding"]["precision"]
    assert example("--output", f"{output}-whole") == 0
    whole = [record["loss"] for record in read_metrics(f"{output}-whole/metrics.jsonl")]
    assert whole != rounded and whole == pytest.approx(rounded, rel=1e-2)
    with pytest.raises(SystemExit):
        example("--matmul", "half")
    assert "'half' is not one of float32, tf32, bfloat16" in capsys.readouterr().err


def test_a_run_is_resumed_and_can_be_extended(output, tmp_path):
    assert example("--output", output) == 0
    assert example("--output", output, "--resume", "--epochs", "4") == 0
    whole = str(tmp_path / "whole")
    assert example("--output", whole, "--epochs", "4") == 0
    lines = [
        [r["lr"] for r in read_metrics(f"{path}/metrics.jsonl")][4:] for path in (output, whole)
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 4
    assert read_checkpoint(f"{output}/model.safetensors").epoch == 4


def test_a_run_that_is_there_is_not_overwritten(output, capsys):
    assert example("--output", output) == 0
    assert example("--output", output) == 1
    assert "there is a run already.\n  fix: go on with it by --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--lr", "0.5"], "the run has --lr 0.002, not 0.5.\n  rule: a run goes on with the setti"),
        (["--epochs", "1"], "the run has --epochs 2, not 1.\n  rule: --epochs may be raised"),
        (["--wide"], "the run has --wide False, not True.\n"),
        (["--limit", "20"], "the run has --limit None, not 20."),
    ],
)
def test_other_settings_are_refused(output, capsys, arguments, says):
    assert example("--output", output) == 0
    assert example("--output", output, "--resume", *arguments) == 1
    error = capsys.readouterr().err
    assert says in error and "fix:" in error


def test_other_data_is_refused_but_on_purpose(output, capsys):
    assert example("--output", output) == 0
    more = [*DATA, DATA[0]]
    resumed = ["--output", output, "--resume", "--epochs", "3"]
    assert example(*resumed, data=more) == 1
    error = capsys.readouterr().err
    assert "number of examples: 40 in the checkpoint, 41 now" in error
    assert "--data-changed" in error
    assert example(*resumed, "--data-changed", data=more) == 0
    assert read_metrics(f"{output}/metrics.jsonl")[-1]["epoch"] == 2


def test_a_folder_in_use_or_not_to_be_written_is_told_first(output, capsys, tmp_path):
    statuses = []
    with locked(f"{output}/model.safetensors"):
        thread = threading.Thread(target=lambda: statuses.append(example("--output", output)))
        thread.start()
        thread.join()
    assert statuses == [1] and "is training there" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert example("--output", str(tmp_path / "file")) == 1
    assert "nothing can be written there: " in capsys.readouterr().err


def test_resuming_needs_a_folder(capsys):
    assert example("--resume") == 1
    assert "--resume needs --output" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_one_message(output, capsys):
    assert example("--output", output) == 0
    with open(f"{output}/model.safetensors", "r+b") as file:
        file.seek(-3, 2)
        byte = file.read(1)
        file.seek(-3, 2)
        file.write(bytes([byte[0] ^ 64]))
    assert example("--output", output, "--resume") == 1
    assert "is not what was written (by its digest)" in capsys.readouterr().err
