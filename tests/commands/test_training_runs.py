"""Runs of `dynbatch train`: what they save, how they go on to the same bits, what is refused."""

import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dynbatch import optim, parallel
from dynbatch.commands.main import main as dynbatch
from dynbatch.tasks.registry import load_task
from dynbatch.train import (
    Trainer,
    load_checkpoint,
    locked,
    read_checkpoint,
    read_metrics,
    save_checkpoint,
)
from tests.cuda import devices
from tests.parallel.gpus import several_gpus


def main(arguments):
    """The exit status of `dynbatch train`."""
    return dynbatch(["train", *arguments])


SMALL = ["--epochs", "3", "--embed", "6", "--hidden", "8", "--batch-size", "16", "--quiet"]


def reversals(path, count, longest, seed=0):
    """A file of about so many words to be reversed."""
    rng = np.random.default_rng(seed)
    lengths = [int(rng.integers(1, longest + 1)) for _ in range(count)]
    words = sorted({"".join(rng.choice(list("abc"), length)) for length in lengths})
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return path


@pytest.fixture
def pairs(tmp_path):
    return reversals(tmp_path / "reverse.tsv", 80, 8)


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_threads")]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A file of few pairs, and a run on them that is done; only copies of it go on."""
    folder = tmp_path_factory.mktemp("first")
    path = reversals(folder / "reverse.tsv", 40, 5, seed=1)
    assert main(command(path, folder / "run", "--epochs", "1")) == 0
    return path, folder / "run"


@pytest.fixture
def done(first_run, tmp_path):
    """Pairs of a run, which may be changed, and a copy of the run."""
    path, output = first_run
    text = path.read_text()
    yield path, Path(shutil.copytree(output, tmp_path / "run"))
    path.write_text(text)


def command(pairs, output, *more):
    units = ["--source-units", "characters", "--target-units", "characters"]
    return [str(pairs), "--output", str(output), *units, *SMALL, *more]


def parameters(path):
    return load_task(path).model.state_dict()


def test_a_run_reports_on_held_out_data_and_saves_what_generating_needs(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(command(pairs, output, "--layers", "2", "--dropout", "0.1")) == 0
    printed = capsys.readouterr().out
    for line in (
        "held out by a hash",
        "examples that nothing was decided by",
        "token error rate",
        "sentences per second",
        "MB on average",
        f"model: {output / 'model.best.safetensors'}",
    ):
        assert line in printed, line
    records = read_metrics(output / "metrics.jsonl")
    assert [r["epoch"] for r in records if "metric" in r] == [0, 1, 2]
    assert all(r["peak_bytes"] > 0 for r in records if "loss" in r)
    translator = load_task(output / "model.best.safetensors")
    assert (translator.source_units, len(translator.source)) == ("characters", 6)


def test_it_learns(tmp_path, capsys):
    pairs = reversals(tmp_path / "reverse.tsv", 80, 5)
    options = ["--epochs", "16", "--batch-size", "8", "--hidden", "24", "--lr", "0.02"]
    options += ["--attention", "general", "--dropout", "0"]
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


def test_a_gpu_is_chosen_by_its_number(pairs, tmp_path, capsys, monkeypatch):
    """Where several processes train, `connect` gives each one its own."""
    connected, connect = [], parallel.connect
    monkeypatch.setattr(
        parallel, "connect", lambda device: connected.append(device) or connect(device=device)
    )
    command_line = command(pairs, tmp_path / "run", "--limit", "16", "--epochs", "1", "--device")
    with devices.device("shuffled") as cupy, several_gpus(), cupy.cuda.Device(0):
        assert main([*command_line, "cuda:3"]) == 1
        assert capsys.readouterr().err.startswith("error: device 'cuda:3': this machine has 3 GPUs")
        assert main([*command_line, "cuda:1"]) == 0
        assert connected == ["cuda:1"] and cupy.cuda.runtime.getDevice() == 1


def test_an_interrupted_run_says_how_to_go_on_and_then_ends_as_if_never_interrupted(
    pairs, tmp_path, capsys, monkeypatch
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(command(pairs, whole, "--dropout", "0.3")) == 0
    train_batch = Trainer._update

    def interrupted(self, batch):
        if self.step == 9:
            raise KeyboardInterrupt
        return train_batch(self, batch)

    monkeypatch.setattr(Trainer, "_update", interrupted)
    assert main(command(pairs, cut, "--dropout", "0.3")) == 130
    hint = f"dynbatch train --output {cut} --resume"
    assert hint in capsys.readouterr().err
    assert read_checkpoint(cut / "model.safetensors").step == 9

    monkeypatch.setattr(Trainer, "_update", train_batch)
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
    rates = first.split("nothing was decided by:\n")[1].splitlines()[0]
    assert "error rate" in rates and rates in capsys.readouterr().out


def test_a_run_goes_on_with_its_own_settings_and_refuses_others(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    given = command(pairs, output)
    assert main(given) == 0
    assert main([*given, "--resume"]) == 0  # the same command again
    for flags, says in [
        (["--hidden", "9"], "the run has --hidden 8, not 9"),
        (["--hidden", "256"], "the run has --hidden 8, not 256"),  # which is the usual
        (["--max-tokens", "70"], "the run has --max-tokens None, not 70"),
        (["--epochs", "2"], "the run has --epochs 3, not 2.\n  rule: --epochs may be raised"),
    ]:
        assert main(["--output", str(output), "--resume", *flags]) == 1
        assert says in capsys.readouterr().err


def test_a_run_keeps_what_its_factors_are_rounded_to(pairs, tmp_path, capsys):
    losses = {}
    for matmul in ("float32", "bfloat16"):
        output = tmp_path / matmul
        assert main(command(pairs, output, "--epochs", "1", "--matmul", matmul)) == 0
        records = read_metrics(output / "metrics.jsonl")
        losses[matmul] = [record["loss"] for record in records if "loss" in record]
    first, rounded = losses.values()
    assert first != rounded and first == pytest.approx(rounded, rel=1e-2)
    assert main(["--output", str(output), "--resume", "--quiet", "--matmul", "tf32"]) == 1
    assert "the run has --matmul bfloat16, not tf32" in capsys.readouterr().err
    assert main(["--output", str(output), "--resume", "--quiet", "--epochs", "2"]) == 0


def test_batches_can_be_made_by_tokens_and_data_limited(pairs, tmp_path, capsys):
    options = ["--max-tokens", "40", "--limit", "50", "--epochs", "1"]
    assert main(command(pairs, tmp_path / "run", *options)) == 0
    assert "50 sources with 50 targets" in capsys.readouterr().out
    records = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert sum(r["sentences"] for r in records) == 50
    assert len({r["sentences"] for r in records}) > 1


def test_a_run_is_not_written_over(done, capsys):
    pairs, output = done
    before = parameters(output / "model.safetensors")
    assert main(command(pairs, output)) == 1
    assert "there is a run already" in capsys.readouterr().err
    after = parameters(output / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def lengthen(path, lines):
    path.write_text(path.read_text() + lines)


def test_a_run_is_not_resumed_on_data_with_other_words(done, capsys):
    pairs, output = done
    before = (output / "model.safetensors").read_bytes()
    pairs.write_text(pairs.read_text().replace("a", "d"))  # as many words, and other ids
    assert main(["--output", str(output), "--resume", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert "the data gives other vocabularies than when the run was begun" in error
    for side in ("source", "target"):
        assert re.search(rf"{side} vocabulary: 1 new, 1 gone, .*; the first: id \d was '\w'", error)
    assert "--resume --data-changed" in error
    assert (output / "model.safetensors").read_bytes() == before


def test_a_run_is_not_resumed_on_other_data_of_the_same_words(done, capsys):
    pairs, output = done
    lengthen(pairs, "abcabcabcabc\tcba\n")
    assert main(["--output", str(output), "--resume", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert "number of examples: " in error and "digest of the examples: " in error
    assert "--data-changed" in error


def test_a_run_goes_on_with_other_data_on_purpose(done, tmp_path, capsys):
    pairs, output = done
    own = load_task(output / "model.safetensors")
    lengthen(pairs, "dada\tadad\nabcabcabcabc\tcba\n")
    resumed = ["--output", str(output), "--resume", "--quiet"]
    capsys.readouterr()
    assert main([*resumed, "--data-changed", "--epochs", "2"]) == 0
    assert "% of it is unknown to the run's vocabularies" in capsys.readouterr().out
    records = read_metrics(output / "metrics.jsonl")
    assert [r["epoch"] for r in records if "metric" in r] == [0, 1]
    now = load_task(output / "model.safetensors")
    assert (now.source.tokens, now.target.tokens) == (own.source.tokens, own.target.tokens)
    assert main([str(pairs), "--output", str(tmp_path / "new"), "--data-changed"]) == 1
    assert "--data-changed is for runs that go on" in capsys.readouterr().err


def test_a_run_that_is_done_can_be_extended(done, tmp_path, capsys):
    """Its learning rate goes on as that of a run of so many epochs, above where it ended."""
    (pairs, output), whole = done, tmp_path / "whole"
    assert main(["--output", str(output), "--resume", "--quiet", "--epochs", "3"]) == 0
    assert main(command(pairs, whole)) == 0
    rates = [
        {r["step"]: r["lr"] for r in read_metrics(path / "metrics.jsonl") if "lr" in r}
        for path in (output, whole)
    ]
    last = read_checkpoint(output / "model.safetensors").step
    ended = last // 3
    assert rates[0].keys() == rates[1].keys() == set(range(1, last + 1))
    assert all(rates[0][step] == rates[1][step] for step in range(ended + 1, last + 1))
    assert read_checkpoint(output / "model.safetensors").extra["settings"]["epochs"] == 3


def test_a_run_that_ended_early_says_so_and_goes_on_with_more_patience(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    options = ["--lr", "1e-9", "--epochs", "5", "--patience", "1"]  # learns nothing
    assert main(command(pairs, output, *options)) == 0
    assert read_checkpoint(output / "model.safetensors").epoch == 2
    resumed = ["--output", str(output), "--resume", "--quiet"]
    assert main(resumed) == 0
    assert "ended early by --patience 1; a larger one goes on" in capsys.readouterr().out
    assert main([*resumed, "--patience", "2"]) == 0
    assert read_checkpoint(output / "model.safetensors").epoch == 3


def test_two_runs_in_one_folder_are_refused(pairs, tmp_path, capsys):
    output = tmp_path / "run"
    with locked(output / "model.safetensors"):
        statuses = []
        thread = threading.Thread(target=lambda: statuses.append(main(command(pairs, output))))
        thread.start()
        thread.join()
    assert statuses == [1] and not output.exists()
    assert "is training there; two runs would write over each other" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/dynbatch"])
def test_an_output_that_cannot_be_written_is_told_before_the_data_is_read(tmp_path, capsys, where):
    (tmp_path / "file").touch()
    data = ["wmt", "--task", "translation"]
    assert main([*data, "--output", str(tmp_path / where)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "nothing can be written there: " in error


def test_metrics_that_are_damaged_or_gone_when_a_run_goes_on(done, capsys):
    _, output = done
    resumed = ["--output", str(output), "--resume", "--quiet"]
    metrics = output / "metrics.jsonl"
    metrics.write_text("what?\n" + metrics.read_text())
    assert main(resumed) == 1
    error = capsys.readouterr().err
    assert f"error: {metrics}:1: not a line of a metrics file" in error and "fix:  remove" in error
    metrics.unlink()
    assert main(resumed) == 0
    printed = capsys.readouterr().out
    assert "error rate" in printed and "sentences per second" not in printed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda extra: extra["settings"].update(hidden="x"), "settings: str for 'hidden'"),
        (
            lambda extra: extra["settings"].update(hidden=0),
            "settings: argument --hidden: 0 is belo",
        ),
        (lambda extra: extra["settings"].update(epochs=10**300), "settings: int for 'epochs'"),
        (
            lambda extra: extra["settings"].update(epochs=2**31),
            "argument --epochs: 2147483648 is a",
        ),
        (lambda extra: extra["settings"].update(lr=None), "settings: NoneType for 'lr'"),
        (lambda extra: extra["settings"].update(dropout=7), "argument --dropout: 7 is not between"),
        (lambda extra: extra["settings"].update(colour="red"), "settings: unknown: 'colour'"),
        (lambda extra: extra.update(settings=[1]), r"settings: '[1]' for an object"),
        (lambda extra: extra.pop("task"), "a checkpoint of dynbatch, but"),
        (lambda extra: extra.update(description=3), "the model has '3' for an object"),
        (lambda extra: extra["description"].pop("source"), "the model has no 'source'"),
        (lambda extra: extra["description"].update(source=[1]), "[1] for 'source'"),
        (lambda extra: extra["description"]["source"].append("a"), "sizes of (7, 6) for 'model/so"),
        (lambda extra: extra["description"].update(source=["a", "a", "b"]), "['a'] given twice"),
        (lambda extra: extra["description"].update(max_length=0), "0 for 'max_length'"),
        (lambda extra: extra["description"]["sizes"].update(hidden=10**15), "for 'model/output."),
        (lambda extra: extra["description"]["sizes"].update(layers=10**9), "1000000000 layers whe"),
        (lambda extra: extra["description"]["sizes"].update(attention="x"), "attention"),
        (lambda extra: extra["description"]["sizes"].update(colour=1), "colour"),
        (lambda extra: extra["description"]["sizes"].update(dropout="x"), "'x' for 'dropout'"),
    ],
)
def test_what_was_saved_and_is_damaged_is_one_message(done, capsys, change, says):
    _, output = done
    path = output / "model.safetensors"
    model, info = load_task(path).model, read_checkpoint(path)
    optimizer = optim.Adam(model)
    schedule = optim.Cosine(optimizer, 9)
    load_checkpoint(path, model, optimizer, schedule)
    change(info.extra)
    save_checkpoint(path, model, optimizer, schedule, info.step, epoch=1, extra=info.extra)
    assert main(["--output", str(output), "--resume", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and "fix:" in error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no pair.\n  rule: source<TAB>target on each line"),
        (b"\n  \n\t\n", "no pair.\n  rule: source<TAB>target on each line"),
        (b"# a comment\n# and another\n", ":1: expected source<TAB>target, found no tab"),
        (b"source\n", ":1: expected source<TAB>target, found no tab"),
        (b"source\t\n", ":1: expected source<TAB>target, found nothing on one side"),
        (b"\ttarget\n", ":1: expected source<TAB>target, found nothing on one side"),
        (b"\x89PNG\r\n\x1a\n\0\0", ":1: byte 1, 0x89, is not UTF-8"),
        (b"\0\0\0\1\0\0", ":1: it holds a zero byte"),
    ],
)
def test_a_file_without_pairs_is_one_message(tmp_path, capsys, content, says):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    data = [str(path), "--task", "translation"]
    assert main([*data, "--output", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}") and says in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pair", ["padding\tx", "hello\ty", "aardvark\tz"])  # dev, test, train
def test_one_pair_is_trained_on_whatever_part_it_would_be(tmp_path, capsys, pair):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{pair}\n")
    options = [str(path), "--task", "translation", "--output", str(tmp_path / "run"), *SMALL]
    assert main([*options, "--epochs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "1 sources with 1 targets\nvalidate  nothing" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wmt"], "wmt: cannot be read: No such file"),
        (["--resume"], "there is no run to go on with"),
    ],
)
def test_a_mistake_is_one_message_and_status_1(tmp_path, capsys, arguments, message):
    assert main([*arguments, "--output", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epochs", "0"],
        ["--dropout", "1"],
        ["--seed", "-1"],
        ["--lr", "-1"],
        ["--threads", "x"],
        ["--clip", "nan"],
    ],
)
def test_a_number_out_of_range_is_refused_with_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_file_too_small_to_hold_anything_out_still_trains(tmp_path, capsys):
    path = tmp_path / "pairs.tsv"
    path.write_text("padding\tx\naardvark\ty\n")
    assert main([str(path), "--output", str(tmp_path / "run"), *SMALL]) == 0
    assert "validate  1 sources with 1 targets" in capsys.readouterr().out


def test_a_malformed_line_is_named_by_file_and_number(tmp_path, capsys):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\nno tab\n")
    data = [str(path), "--task", "translation"]
    assert main([*data, "--output", str(tmp_path / "run")]) == 1
    assert f"{path}:2: expected source<TAB>target" in capsys.readouterr().err


def test_a_checkpoint_of_something_else_cannot_be_resumed(tmp_path, capsys):
    from dynbatch.models import Linear
    from dynbatch.train import save_checkpoint

    save_checkpoint(tmp_path / "model.safetensors", Linear(2, 2))
    assert main(["--output", str(tmp_path), "--resume"]) == 1
    assert "a checkpoint of dynbatch, but" in capsys.readouterr().err
    load_checkpoint(tmp_path / "model.safetensors", Linear(2, 2))
