"""The training script: what it prints and saves, resuming to the same bits, what it refuses."""

import sys

import numpy as np
import pytest

from dynbatch.train import Trainer, load_checkpoint, read_checkpoint, read_metrics
from examples.seq2seq.options import DEMO, Settings, parse
from examples.seq2seq.train import main
from examples.seq2seq.translator import Translator

SMALL = ["--epochs", "3", "--embed", "6", "--hidden", "8", "--batch-size", "16", "--quiet"]


@pytest.fixture
def pairs(tmp_path):
    """Words to be reversed, in a file."""
    rng = np.random.default_rng(0)
    words = sorted({"".join(rng.choice(list("abc"), rng.integers(1, 9))) for _ in range(150)})
    path = tmp_path / "reverse.tsv"
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return path


pytestmark = pytest.mark.usefixtures("same_threads")


def command(pairs, output, *more):
    units = ["--source-units", "characters", "--target-units", "characters"]
    return ["--data", str(pairs), "--output", str(output), *units, *SMALL, *more]


def parameters(path):
    return Translator.load(path).model.state_dict()


def test_a_run_reports_on_held_out_data_and_saves_what_generating_needs(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(command(pairs, output, "--layers", "2", "--dropout", "0.1")) == 0
    printed = capsys.readouterr().out
    for line in (
        "2 layer(s) of 8",
        "Held-out test set",
        "character error rate",
        "sentence error rate",
        "sentences that were not in the training data",
        "sentences per second",
        "MB on average",
        f"Model: {output / 'model.best.safetensors'}",
    ):
        assert line in printed, line
    records = read_metrics(output / "metrics.jsonl")
    assert [r["epoch"] for r in records if "metric" in r] == [0, 1, 2]
    assert all(r["peak_bytes"] > 0 for r in records if "loss" in r)
    translator = Translator.load(output / "model.best.safetensors")
    assert (translator.source_units, len(translator.source)) == ("characters", 6)


def test_it_learns(pairs, tmp_path, capsys):
    options = ["--epochs", "30", "--hidden", "24", "--lr", "0.02", "--attention", "general"]
    assert main(command(pairs, tmp_path / "run", *options)) == 0
    losses = [r["loss"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert losses[-1] < losses[0] / 5


def test_a_run_on_a_gpu_is_that_of_the_cpu_and_may_end_there(pairs, tmp_path, capsys, cuda):
    options = ["--limit", "16", "--epochs", "2"]
    losses = {}
    for device in ("cpu", "cuda"):
        output = tmp_path / device
        assert main(command(pairs, output, *options, "--device", device)) == 0
        printed = capsys.readouterr().out
        assert ("on a GPU" in printed) is (device == "cuda") is not ("threads" in printed)
        records = read_metrics(output / "metrics.jsonl")
        losses[device] = [r["loss"] for r in records if "loss" in r]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert main(["--output", str(tmp_path / "cuda"), "--resume", "--quiet"]) == 0
    assert "threads" in capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_one_message_and_status_1(pairs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(command(pairs, tmp_path / "run", "--device", "cuda")) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: CUDA is not available") and "dynbatch[cuda13]" in error
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_says_how_to_go_on_and_then_ends_as_if_never_interrupted(
    pairs, tmp_path, capsys, monkeypatch
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(command(pairs, whole, "--dropout", "0.3")) == 0
    train_batch = Trainer._run_batch

    def interrupted(self, batch):
        if self.step == 9:
            raise KeyboardInterrupt
        return train_batch(self, batch)

    monkeypatch.setattr(Trainer, "_run_batch", interrupted)
    assert main(command(pairs, cut, "--dropout", "0.3")) == 130
    hint = f"python -m examples.seq2seq.train --output {cut} --resume"
    assert hint in capsys.readouterr().err
    assert read_checkpoint(cut / "model.safetensors").step == 9

    monkeypatch.setattr(Trainer, "_run_batch", train_batch)
    assert main(["--output", str(cut), "--resume", "--quiet"]) == 0
    expected, found = [parameters(path / "model.safetensors") for path in (whole, cut)]
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name
    timeless = [
        [{k: v for k, v in r.items() if k != "sentences_per_second"} for r in read_metrics(path)]
        for path in (whole / "metrics.jsonl", cut / "metrics.jsonl")
    ]
    assert timeless[0] == timeless[1]


def test_a_run_that_is_done_reports_again_when_resumed(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(command(pairs, output)) == 0
    first = capsys.readouterr().out
    assert main(["--output", str(output), "--resume", "--quiet"]) == 0
    rates = [line for line in first.splitlines() if "error rate" in line]
    assert len(rates) == 2 and "\n".join(rates) in capsys.readouterr().out


def test_a_run_goes_on_with_its_own_settings_and_refuses_others(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    given = command(pairs, output)
    assert main(given) == 0
    assert main([*given, "--resume"]) == 0  # the same command again
    assert main(["--output", str(output), "--resume", "--max-tokens", "70", "--epochs", "5"]) == 1
    assert "the run has --epochs 3, not 5" in capsys.readouterr().err


def test_the_examples_stand_in_two_columns(tmp_path, capsys):
    path = tmp_path / "long.tsv"
    sources = [" ".join("w" * n) for n in range(1, 60)]
    path.write_text("".join(f"{source}\tX\n" for source in sources))
    assert main(["--data", str(path), "--output", str(tmp_path / "run"), *SMALL]) == 0
    printed = capsys.readouterr().out.split("not in the training data\n")[1]
    lines = printed.split("\n\n")[0].splitlines()
    assert lines and {line[2:].split("  ")[0] for line in lines} <= set(sources)


def test_batches_can_be_made_by_tokens_and_data_limited(pairs, tmp_path, capsys):
    options = ["--max-tokens", "40", "--limit", "50", "--epochs", "1"]
    assert main(command(pairs, tmp_path / "run", *options)) == 0
    assert "50 training pairs" in capsys.readouterr().out
    records = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert sum(r["sentences"] for r in records) == 50
    assert len({r["sentences"] for r in records}) > 1


def test_a_corpus_without_development_set_is_trained_to_the_end(tmp_path, capsys):
    output = tmp_path / "run"
    options = ["--data", "scan-length", "--limit", "40", "--output", str(output), *SMALL]
    # Its 3,920 long test commands would take an untrained model a while.
    from examples.seq2seq import train

    whole = train.load_corpus

    def short(*arguments):
        corpus = whole(*arguments)
        corpus.test[20:] = []
        return corpus

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "load_corpus", short)
        assert main([*options, "--patience", "1"]) == 0
    assert "exact match" in capsys.readouterr().out
    assert not (output / "model.best.safetensors").exists()
    assert read_checkpoint(output / "model.safetensors").epoch == 3


def test_a_run_is_not_written_over(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(command(pairs, output)) == 0
    before = parameters(output / "model.safetensors")
    assert main(command(pairs, output)) == 1
    assert "there is a run already" in capsys.readouterr().err
    after = parameters(output / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "wmt"], "wmt: neither a file nor a corpus"),
        (["--resume"], "there is no such file"),
    ],
)
def test_a_mistake_is_one_message_and_status_1(tmp_path, capsys, arguments, message):
    assert main([*arguments, "--output", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--epochs", "0"], ["--dropout", "1"], ["--lr", "-1"], ["--threads", "x"], ["--clip", "nan"]],
)
def test_a_number_out_of_range_is_refused_with_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_file_too_small_to_hold_anything_out_still_trains(tmp_path, capsys):
    path = tmp_path / "pairs.tsv"
    path.write_text("padding\tx\naardvark\ty\n")
    assert main(["--data", str(path), "--output", str(tmp_path / "run"), *SMALL]) == 0
    assert "Nothing was held out" in capsys.readouterr().out


def test_a_malformed_line_is_named_by_file_and_number(tmp_path, capsys):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\nno tab\n")
    assert main(["--data", str(path), "--output", str(tmp_path / "run")]) == 1
    assert f"{path}:2: expected source<TAB>target" in capsys.readouterr().err


def test_the_demo_has_settings_of_its_own_which_options_override():
    demo = parse(["--demo"])
    assert demo.output.as_posix() == "runs/demo"
    assert demo.settings == Settings(**DEMO)
    assert parse(["--demo", "--hidden", "7"]).settings == Settings(**{**DEMO, "hidden": 7})
    assert parse(["--data", "x/names.tsv"]).output.as_posix() == "runs/names"


def test_a_checkpoint_of_something_else_cannot_be_resumed(tmp_path, capsys):
    from dynbatch.models import Linear
    from dynbatch.train import save_checkpoint

    save_checkpoint(tmp_path / "model.safetensors", Linear(2, 2))
    assert main(["--output", str(tmp_path), "--resume"]) == 1
    assert "not of this example" in capsys.readouterr().err
    load_checkpoint(tmp_path / "model.safetensors", Linear(2, 2))
