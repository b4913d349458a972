import errno
import io
import math
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dynbatch import Graph, optim, random
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError, DataError, NumericError, ShapeError
from dynbatch.kernels.runtime.transfer import to_device, to_host
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.train import (
    SentenceBatches,
    TokenBatches,
    Trainer,
    load_checkpoint,
    locked,
    read_checkpoint,
    read_metrics,
    save_checkpoint,
)
from dynbatch.train.update import Update
from tests.marks import exhaustive

EXAMPLES = [
    (np.random.default_rng(i).integers(0, 11, 1 + i % 6), i % 5) for i in range(14)
]  # (words, class of every word)


class Tagger(Module):
    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.table = Parameter(rng.standard_normal((11, 6)).astype(np.float32))
        self.weight = Parameter(rng.standard_normal((5, 6)).astype(np.float32))
        self.bias = Parameter(np.zeros(5, np.float32))


def num_tokens(example):
    return len(example[0])


class Run:
    """A trainer that draws on every random state there is, and may be stopped by `event`."""

    def __init__(self, folder, event=lambda what, run: None, device="cpu", **settings):
        self.event = event
        self.model = Tagger().to(device)
        self.optimizer = optim.Adam(self.model, lr=0.05)
        self.generator = np.random.default_rng(3)
        options = dict(
            num_tokens=num_tokens,
            schedule=optim.InverseSqrt(self.optimizer, warmup_steps=3),
            clip_norm=1.0,
            validate=self.validate,
            checkpoint_path=folder / "run.safetensors",
            checkpoint_every=3,
            metrics_path=folder / "metrics.jsonl",
            random_state=self.generator,
            show_progress=False,
        )
        batches = SentenceBatches(EXAMPLES, batch_size=3, seed=5)
        self.trainer = Trainer(
            self.model, self.optimizer, self.loss, batches, **(options | settings)
        )
        self.optimizer.step = self.updating(self.optimizer.step)

    def loss(self, graph, model, example):
        self.event("loss", self)
        words, target = example
        noise = 1.0 + 0.1 * float(self.generator.standard_normal())
        h = F.dropout(F.lookup(graph, model.table, words) * noise, 0.2, model.training)
        logits = F.linear(h, model.weight, model.bias)
        return F.cross_entropy(logits, [target] * len(words), reduction="sum")

    def validate(self, model):
        self.event("validate", self)
        with Graph(device=model.bias.device, grad=False) as graph:
            losses = [self.loss(graph, model, example) for example in EXAMPLES[:4]]
            return float(F.mean(losses).value)

    def updating(self, step):
        def spied():
            self.event("update", self)
            step()
            self.event("updated", self)

        return spied

    def everything(self):
        """Values, and the optimizer's and the schedule's state."""
        states = (self.model.state_dict(), self.optimizer.state_dict())
        return {**states[0], **states[1], **self.trainer.schedule.state_dict()}

    def outcome(self):
        """Everything that a resumed run must have in common with an undisturbed one."""
        state = {**self.model.state_dict(), **self.optimizer.state_dict()}
        bits = {name: value.tobytes() for name, value in state.items()}
        records = read_metrics(self.trainer.metrics_path)
        for record in records:
            record.pop("sentences_per_second", None)
        trainer = self.trainer
        at = (trainer.step, trainer.epoch, trainer.position, trainer.stopping, self.optimizer.lr)
        return bits, records, at, random.get_state(), self.generator.bit_generator.state


@pytest.fixture(autouse=True)
def fresh_seed():
    before = random.get_state()
    random.seed(1)
    yield
    random.set_state(before)


@pytest.fixture(scope="module")
def outcomes():
    """By device, what three epochs come to."""
    return {}


@pytest.fixture
def undisturbed(request, tmp_path_factory, outcomes):
    """Outcomes without disturbance, of the test's device."""
    device = request.getfixturevalue("device") if "device" in request.fixturenames else "cpu"
    if device not in outcomes:
        before = random.get_state()
        random.seed(1)
        run = Run(tmp_path_factory.mktemp("undisturbed"), device=device)
        run.trainer.fit(3)
        outcomes[device] = run.outcome()
        random.set_state(before)
    return outcomes[device]


class Killed(BaseException):
    """The process ends here: nothing may be saved on the way out."""


def after(count, what, act):
    """An event that acts at the count-th `what`, counted from 1."""
    seen = []

    def event(name, run):
        if name == what:
            seen.append(name)
            if len(seen) == count:
                act()

    return event


def kill():
    raise Killed


def interrupt():
    signal.raise_signal(signal.SIGINT)


def insist():
    interrupt()
    interrupt()  # which is not waited for


def terminate():
    signal.raise_signal(signal.SIGTERM)


def hang_up():
    signal.raise_signal(signal.SIGHUP)


def go_on(folder, **settings):
    """A new process: other seeds, other weights, until the checkpoint is loaded."""
    random.seed(99)
    run = Run(folder, **settings)
    run.generator.standard_normal(17)
    for parameter in run.model.parameters():
        parameter.assign(parameter.numpy() + 1.0)
    assert run.trainer.resume()
    run.trainer.fit(3)
    return run.outcome()


# 14 sentences in batches of 3: 5 updates an epoch; checkpoints after 3, 5, 6, 9, 10, 12, 15.
@pytest.mark.parametrize(
    ("what", "count"),
    [
        *[("loss", 10), exhaustive("loss", 26), exhaustive("loss", 29)],
        *[("update", 13), ("updated", 4), exhaustive("updated", 7)],
        *[exhaustive("validate", 1), ("validate", 2), exhaustive("validate", 3)],
    ],
)
def test_killed_and_resumed_run_equals_the_run_never_killed(
    tmp_path, undisturbed, device, what, count
):
    run = Run(tmp_path, after(count, what, kill), device)
    with pytest.raises(Killed):
        run.trainer.fit(3)
    assert go_on(tmp_path, device=device) == undisturbed


# Every 5 updates: the epoch's last checkpoint is written twice, before and after validation.
@pytest.mark.parametrize("checkpoint_every", [3, 5])
@pytest.mark.parametrize("save", [1, 2, 3, 4, 5, 6])
def test_kill_within_a_save_is_made_good_by_the_checkpoint_before(
    tmp_path, undisturbed, monkeypatch, save, checkpoint_every
):
    replace, calls = os.replace, []

    def killing(source, target):
        if Path(target).suffix == ".safetensors":
            calls.append(target)
            if len(calls) == save + 1:
                raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", killing)
    with pytest.raises(Killed):
        Run(tmp_path, checkpoint_every=checkpoint_every).trainer.fit(3)
    assert go_on(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("what", "count", "step", "act"),
    [
        ("loss", 1, 1, interrupt), ("loss", 1, 0, insist), ("loss", 4, 2, interrupt),
        ("loss", 4, 1, insist), ("update", 4, 4, interrupt), ("updated", 7, 7, interrupt),
        ("validate", 1, 5, interrupt), ("validate", 1, 5, insist),
    ],
)  # fmt: skip
def test_ctrl_c_saves_the_last_whole_update_and_says_how_to_resume(
    tmp_path, undisturbed, device, capsys, what, count, step, act
):
    hint = "python train.py --resume"
    run = Run(tmp_path, after(count, what, act), device, resume_hint=hint)
    with pytest.raises(KeyboardInterrupt):
        run.trainer.fit(3)
    path = tmp_path / "run.safetensors"
    assert read_checkpoint(path).step == step
    said = capsys.readouterr().err
    assert f"after step {step}: saved {path} (step {step})" in said
    assert f"To go on: {hint}" in said
    assert go_on(tmp_path, device=device) == undisturbed


def test_a_second_ctrl_c_while_the_first_one_saves_leaves_it_told(tmp_path, undisturbed, capsys):
    run = Run(tmp_path, after(7, "loss", interrupt))
    save = run.trainer.save
    run.trainer.save = lambda: (interrupt(), save())
    with pytest.raises(KeyboardInterrupt):
        run.trainer.fit(3)
    assert f"saved {tmp_path / 'run.safetensors'} (step 3)" in capsys.readouterr().err
    assert go_on(tmp_path) == undisturbed


@pytest.mark.parametrize(("act", "status"), [(terminate, 143), (hang_up, 129)])
@pytest.mark.parametrize(("what", "count", "step"), [("loss", 4, 2), ("updated", 7, 7)])
def test_sigterm_and_sighup_save_as_ctrl_c_does(
    tmp_path, undisturbed, capsys, act, status, what, count, step
):
    run = Run(tmp_path, after(count, what, act))
    with pytest.raises(SystemExit) as caught:
        run.trainer.fit(3)
    assert caught.value.code == status
    assert read_checkpoint(tmp_path / "run.safetensors").step == step
    assert f"saved {tmp_path / 'run.safetensors'} (step {step})" in capsys.readouterr().err
    for number in (signal.SIGTERM, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_DFL
    assert go_on(tmp_path) == undisturbed


def test_a_terminal_that_is_gone_does_not_keep_a_run_from_being_saved(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def write(self, text):
            if gone:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().write(text)

    gone = []
    end = after(11, "loss", lambda: (gone.append(True), hang_up()))
    run = Run(tmp_path, end, show_progress=True)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(SystemExit):
        run.trainer.fit(1)
    assert read_checkpoint(tmp_path / "run.safetensors").step == 4


@pytest.mark.parametrize("between", [False, True], ids=["in the loss", "after backward"])
def test_interrupted_trainer_may_go_on_in_the_same_process(
    tmp_path, undisturbed, device, monkeypatch, between
):
    run = Run(tmp_path, after(8, "loss", insist), device)
    if between:
        run.event = lambda what, run: None
        backward = Graph.backward
        once = after(2, "backward", insist)
        monkeypatch.setattr(Graph, "backward", lambda *a: (backward(*a), once("backward", run)))
    with pytest.raises(KeyboardInterrupt):
        run.trainer.fit(3)
    assert run.model.table.grad is None and run.trainer.step < 3
    run.trainer.fit(3)
    assert run.outcome() == undisturbed


def test_ctrl_c_without_a_checkpoint_path_says_that_nothing_is_saved(tmp_path, capsys):
    run = Run(tmp_path, after(2, "loss", interrupt), checkpoint_path=None)
    with pytest.raises(KeyboardInterrupt):
        run.trainer.fit(1)
    assert "nothing is saved, as there is no checkpoint_path" in capsys.readouterr().err


SCRIPT = """
import os, signal, sys
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_trainer as t
number = getattr(signal, sys.argv[3])
end = t.after(20, "loss", lambda: os.kill(os.getpid(), number))
t.random.seed(1)
t.Run(Path(sys.argv[2]), end).trainer.fit(3)
"""


def test_a_run_leaves_nothing_of_the_saves_in_which_one_before_it_was_killed(tmp_path):
    for name in ("run.safetensors", "run.best.safetensors", "metrics.jsonl"):
        (tmp_path / f".{name}.saving").mkdir()
        (tmp_path / f".{name}.saving" / name).write_text("half")
    run = Run(tmp_path, validate=None)  # so that no best model is saved
    run.trainer.fit(1)
    left = {path.name for path in tmp_path.iterdir()} - {".run.safetensors.lock"}
    assert left == {"run.safetensors", "metrics.jsonl"}


@pytest.mark.parametrize("name", ["SIGKILL", exhaustive("SIGINT"), "SIGTERM"])
def test_process_ended_by_a_signal_is_resumed_exactly(tmp_path, undisturbed, name):
    here = Path(__file__).parent
    command = [sys.executable, "-c", SCRIPT, str(here), str(tmp_path), name]
    environment = os.environ | {"PYTHONPATH": str(here.parents[1])}
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    # A shell reports death by a signal as 128 + its number: 130 after Ctrl-C.
    number = getattr(signal, name)
    assert ended.returncode == (128 + number if name == "SIGTERM" else -number)
    assert go_on(tmp_path) == undisturbed


def test_loss_is_nats_per_token_over_the_mini_batch(tmp_path):
    torch = pytest.importorskip("torch", reason="an independent loss")
    model = Tagger()
    values = {name: torch.tensor(p.value.copy()) for name, p in model.named_parameters()}
    batches = SentenceBatches(EXAMPLES, batch_size=14)

    def loss(graph, model, example):
        logits = F.linear(F.lookup(graph, model.table, example[0]), model.weight, model.bias)
        return F.cross_entropy(logits, [example[1]] * len(example[0]), reduction="sum")

    def expected(reduction):
        losses = [
            torch.nn.functional.cross_entropy(
                values["table"][torch.tensor(words)] @ values["weight"].T,
                torch.full((len(words),), target),
                reduction="sum",
            )
            for words, target in EXAMPLES
        ]
        total = sum(float(each) for each in losses)
        return total / (sum(map(num_tokens, EXAMPLES)) if reduction == "token" else len(losses))

    for kind, tokens in (("token", num_tokens), ("sentence", None)):
        path = tmp_path / kind
        optimizer = optim.SGD(model, lr=0.0)
        settings = dict(num_tokens=tokens, metrics_path=path, show_progress=False)
        Trainer(model, optimizer, loss, batches, **settings).fit(1)
        (record,) = read_metrics(path)
        assert record["loss"] == pytest.approx(expected(kind), rel=1e-5)


def test_token_weighted_loss_keeps_the_gradient_of_cross_entropy_in_forward(tmp_path):
    explained = []

    class Spy(Graph):
        def close(self):
            explained.append(self.explain())
            super().close()

    Run(tmp_path, make_graph=Spy, validate=None).trainer.fit(1)
    assert len(explained) == 5
    assert all("LinearCrossEntropy +grad" in table for table in explained)


def test_loss_function_that_is_a_method_of_the_model_is_told_how_it_is_called(tmp_path):
    class OwnLoss(Tagger):
        def loss(self, graph, words, kind):
            return F.sum(F.lookup(graph, self.table, words))

    model = OwnLoss()
    batches = SentenceBatches(EXAMPLES, batch_size=2)
    trainer = Trainer(model, optim.Adam(model, lr=0.1), model.loss, batches, show_progress=False)
    with pytest.raises(ShapeError) as raised:
        trainer.fit(1)
    assert "loss_function(graph, model, example)" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"loss_function": lambda graph, model, example: model.loss(graph, *example)},
            "loss_function(graph, model, example), and example is 3",
        ),
        (
            {"loss_function": lambda graph, model, many: [model.loss(graph, n, n) for n in many]},
            "needs loss_of_batch=True",
        ),
        (
            {"loss_function": lambda graph, model, many: model.loss(*many), "loss_of_batch": True},
            "loss_function(graph, model, examples), and examples is a list",
        ),
        (
            {"loss_function": lambda *arguments: None, "num_tokens": len},
            "num_tokens(example), and example is 3",
        ),
    ],
)
def test_a_function_that_cannot_take_an_example_is_told_how_it_is_called(settings, told):
    model = Tagger()
    model.loss = lambda graph, words, kind: F.sum(F.lookup(graph, model.table, words))
    trainer = Trainer(
        model, optim.Adam(model, lr=0.1), batches=SentenceBatches([3], batch_size=1),
        show_progress=False, **settings,
    )  # fmt: skip
    with pytest.raises(TypeError) as raised:
        trainer.fit(1)
    assert told in raised.value.__notes__[0]


def test_metrics_say_what_each_update_and_validation_did(tmp_path):
    run = Run(tmp_path, padded_bytes=lambda batch: 1000 * len(batch), memory_every=3)
    run.trainer.fit(2)
    records = read_metrics(tmp_path / "metrics.jsonl")
    updates = [record for record in records if "metric" not in record]
    validations = [record for record in records if "metric" in record]
    assert [record["step"] for record in updates] == list(range(1, 11))
    assert [record["epoch"] for record in updates] == [0] * 5 + [1] * 5
    assert sum(record["tokens"] for record in updates[:5]) == sum(map(num_tokens, EXAMPLES))
    assert [record["sentences"] for record in updates[:5]] == [3, 3, 3, 3, 2]
    looked_at = [record for record in updates if "padded_bytes" in record]
    assert [record["step"] for record in looked_at] == [1, 4, 7, 10]
    assert all(record["padded_bytes"] == 1000 * record["sentences"] for record in looked_at)
    assert all(record["planned_bytes"] == record["peak_bytes"] for record in looked_at)
    for record in updates:
        assert record["loss"] > 0 and record["gradient_norm"] > 0 and record["peak_bytes"] > 0
        assert record["sentences_per_second"] > 0
    rates = [0.05 * min(t / 3, math.sqrt(3 / t)) for t in range(1, 11)]
    assert [record["lr"] for record in updates] == pytest.approx(rates)
    assert [(record["step"], record["epoch"]) for record in validations] == [(5, 0), (10, 1)]


def test_a_function_has_each_line_of_the_metrics_file_whatever_it_raises(
    tmp_path, undisturbed, device
):
    """An exception ends `fit` at a whole moment; `fit` again makes the run that never ended."""
    records, fails_at = [], [(3, "loss"), (3, "parameters"), (5, "metric"), (7, "loss")]

    def on_record(record):
        records.append(record)
        if fails_at and record["step"] == fails_at[0][0] and fails_at[0][1] in record:
            raise ConnectionError(fails_at.pop(0))

    run = Run(tmp_path, device=device, watch=2, on_record=on_record)
    while fails_at:
        with pytest.raises(ConnectionError):
            run.trainer.fit(3)
    run.trainer.fit(3)
    assert records == read_metrics(tmp_path / "metrics.jsonl")
    bits, _, *rest = run.outcome()
    assert [bits, *rest] == [part for k, part in enumerate(undisturbed) if k != 1]


def test_the_first_of_several_named_metrics_decides_and_all_are_written(tmp_path):
    accuracies = iter([0.5, 0.75, 0.25])
    run = Run(
        tmp_path, validate=lambda model: {"exact match": next(accuracies), "loss": 2},
        higher_is_better=True,
    )  # fmt: skip
    result = run.trainer.fit(3)
    assert (result.best_metric, result.best_step) == (0.75, 10)
    found = [one for one in read_metrics(tmp_path / "metrics.jsonl") if "metric" in one]
    assert [one["metrics"] for one in found] == [
        {"exact match": x, "loss": 2} for x in (0.5, 0.75, 0.25)
    ]
    assert [one["metric"] for one in found] == [0.5, 0.75, 0.25]
    assert [one["is_best"] for one in found] == [True, True, False]


def test_a_validation_without_a_metric_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"validate gave no metric.*\n.*\n.*accuracy"):
        Run(tmp_path, validate=lambda model: {}).trainer.fit(1)


def test_run_begun_anew_on_purpose_begins_its_metrics_file_anew(tmp_path):
    for _ in range(2):
        Run(tmp_path).trainer.fit(1, overwrite=True)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 6


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_new_run_does_not_write_over_an_earlier_one(tmp_path):
    Run(tmp_path).trainer.fit(1)
    before = contents(tmp_path)
    path = tmp_path / "run.safetensors"
    with pytest.raises(CheckpointError, match="of an earlier run; a new one would") as caught:
        Run(tmp_path).trainer.fit(1)
    for fix in ("go on with it: trainer.resume()", "checkpoint_path", "overwrite=True"):
        assert fix in str(caught.value)
    assert contents(tmp_path) == before
    path.unlink()
    with pytest.raises(
        CheckpointError, match=rf"go on with it: cp .*run\.best\..* {path}, trainer"
    ):
        Run(tmp_path).trainer.fit(1)
    run = Run(tmp_path)
    run.trainer.resume(tmp_path / "run.best.safetensors")
    assert run.trainer.fit(2).step == 10


def test_a_trainer_goes_on_with_what_it_wrote_itself(tmp_path):
    run = Run(tmp_path)
    assert [run.trainer.fit(n).step for n in (0, 1, 2)] == [0, 5, 10]


@pytest.mark.parametrize("num_epochs", [-1, 2.5, "3", True, None])
def test_a_number_of_epochs_that_is_none_is_refused(tmp_path, num_epochs):
    with pytest.raises(ArgumentError, match=r"Trainer\.fit: num_epochs is "):
        Run(tmp_path).trainer.fit(num_epochs)
    assert not list(tmp_path.iterdir())


def test_gradients_are_clipped_before_the_update(tmp_path):
    run = Run(tmp_path, clip_norm=0.01)
    norms = []
    step = run.optimizer.step
    run.optimizer.step = lambda: norms.append(optim.clip_grad_norm_(run.model, math.inf)) or step()
    run.trainer.fit(1)
    assert max(norms) == pytest.approx(0.01, rel=1e-3)
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["gradient_norm"] > 0.01


def test_model_is_trained_in_training_mode_and_validated_in_evaluation_mode(tmp_path):
    modes = {"loss": set(), "validate": set()}
    validating = []

    def event(what, run):
        if what == "validate":
            validating.append(True)
            modes["validate"].add(run.model.training)
        elif what == "loss" and not validating:
            modes["loss"].add(run.model.training)

    run = Run(tmp_path, event)
    run.model.eval()
    run.trainer.fit(1)
    assert modes == {"loss": {True}, "validate": {False}} and not run.model.training


def test_the_next_epoch_trains_in_training_mode_and_the_model_is_left_in_evaluation_mode(tmp_path):
    modes = []

    def event(what, run):
        modes.append(run.model.training)

    run = Run(tmp_path, event, validate=lambda model: modes.append(not model.training) or 0.0)
    for num_epochs in (2, 3):
        run.trainer.fit(num_epochs)
        assert modes and all(modes) and not run.model.training


def test_training_stops_early_and_keeps_the_best_model(tmp_path):
    metrics = iter([0.5, 0.3, 0.4, 0.35, 0.1])
    weights = []

    def validate(model):
        weights.append(model.weight.value.copy())
        return next(metrics)

    trainer = Run(tmp_path, validate=validate, patience=2).trainer
    result = trainer.fit(9)
    assert (result.stopped_early, result.epoch, result.step) == (True, 4, 20)
    assert (result.best_metric, result.best_step) == (0.3, 10)
    best = Tagger()
    info = load_checkpoint(trainer.best_path, best)
    assert info.step == 10 and np.array_equal(best.weight.value, weights[1])

    again = Run(tmp_path, validate=validate, patience=2).trainer
    assert again.resume() and again.fit(9) == result


def test_plateau_is_stepped_by_validations(tmp_path):
    metrics = iter([1.0, 2.0, 3.0, 4.0])
    run = Run(tmp_path)
    optimizer = run.optimizer
    optimizer.lr = 0.08
    trainer = Trainer(
        run.model, optimizer, run.loss, run.trainer.batches,
        schedule=optim.Plateau(optimizer, patience=1, factor=0.5),
        validate=lambda model: next(metrics), show_progress=False,
    )  # fmt: skip
    trainer.fit(2)
    assert optimizer.lr == 0.08
    trainer.fit(4)
    assert optimizer.lr == 0.04


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_loss_names_the_step_and_the_last_good_checkpoint(tmp_path):
    run = Run(tmp_path)
    path = tmp_path / "run.safetensors"
    spoil = after(13, "loss", lambda: run.model.bias.value.fill(np.nan))
    run.event = spoil
    with pytest.raises(NumericError, match=r"step 5 \(epoch 1, mini-batch 5\)") as caught:
        run.trainer.fit(3)
    assert f"last good checkpoint: {path} (step 3); nothing was saved" in str(caught.value)
    assert read_checkpoint(path).step == 3
    assert run.trainer.step == 4 and run.model.table.grad is None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_gradient_that_is_not_finite_names_step_and_parameter(tmp_path, monkeypatch, device, step):
    run = Run(tmp_path, device=device, validate=None)
    average = run.trainer.average = optim.Average(run.model, decay=0.9)
    backward, states, means = Graph.backward, [], []

    def spoiled(graph, loss, memory_limit=None):
        states.append(run.everything())
        means.append(average.state_dict())
        backward(graph, loss)
        if len(states) == step:
            grad = to_host(run.model.weight.grad).copy()
            grad[0, 0] = np.inf
            run.model.weight.grad = to_device(grad, run.model.weight.device)

    monkeypatch.setattr(Graph, "backward", spoiled)
    where = rf"step {step} \(epoch 1, mini-batch {step}\)"
    with pytest.raises(NumericError, match=rf"(?s){where}.*'weight' is not finite") as caught:
        run.trainer.fit(1)
    saved = "none was saved" if step < 4 else "(step 3)"
    assert f"{saved}; nothing was saved over it" in str(caught.value)
    assert run.trainer.step == step - 1
    assert step == 1 or len(read_metrics(tmp_path / "metrics.jsonl")) == step - 1
    assert all(parameter.grad is None for parameter in run.model.parameters())
    monkeypatch.undo()
    assert average.num_updates == step - 1
    for name, mean in average.state_dict().items():
        assert np.array_equal(mean, means[step - 1][name])
    before, now = states[step - 1], run.everything()
    assert before.keys() == now.keys()
    schedule = run.trainer.schedule
    assert now.pop("num_steps") == step - 1 and now.pop("lr") == schedule.rate(step)
    assert [name for name in now if not np.array_equal(before[name], now[name])] == []


def test_disk_that_fills_ends_the_run_with_the_old_checkpoint_whole(tmp_path, monkeypatch):
    run = Run(tmp_path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fill = after(4, "updated", lambda: monkeypatch.setattr(os, "fsync", full))
    run.event = fill
    with pytest.raises(CheckpointError, match="No space left on device"):
        run.trainer.fit(2)
    assert read_checkpoint(tmp_path / "run.safetensors").step == 3


def test_resume_without_a_checkpoint_says_so_and_starts_afresh(tmp_path, undisturbed):
    run = Run(tmp_path)
    assert not run.trainer.resume()
    run.trainer.fit(3)
    assert run.outcome() == undisturbed


def test_resume_within_an_epoch_of_other_data_is_refused_whole(tmp_path):
    with pytest.raises(Killed):
        Run(tmp_path, after(12, "loss", kill)).trainer.fit(1)
    other = Run(tmp_path)
    other.trainer.batches = SentenceBatches(EXAMPLES, batch_size=2, seed=5)
    before = other.model.state_dict()
    with pytest.raises(CheckpointError, match="batch_size: 3 in the checkpoint, 2 now"):
        other.trainer.resume()
    assert all(np.array_equal(before[k], v) for k, v in other.model.state_dict().items())
    assert other.trainer.step == 0


def permuted(examples):
    """Sentences with other numbers for the words, as of a vocabulary that has changed."""
    return [(10 - words, target) for words, target in examples]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(examples=EXAMPLES[:-1]), r"number of examples: 14 in .*, 13 now\n  digest of the ex"),
        (dict(examples=permuted(EXAMPLES)), "  digest of the examples: [0-9a-f]{32} in the checkp"),
        (dict(examples=EXAMPLES[::-1]), "  digest of the examples: [0-9a-f]{32} in the checkpoint"),
        (dict(seed=6), "seed: 5 in the checkpoint, 6 now"),
    ],
)
def test_resume_at_the_end_of_an_epoch_with_other_data_is_refused_whole(tmp_path, change, says):
    Run(tmp_path).trainer.fit(1)
    other = Run(tmp_path)
    settings = dict(examples=EXAMPLES, batch_size=3, seed=5) | change
    other.trainer.batches = SentenceBatches(**settings)
    before = other.model.state_dict()
    with pytest.raises(CheckpointError, match=says) as caught:
        other.trainer.resume()
    assert "by resume(data_changed=True)" in str(caught.value)
    assert all(np.array_equal(before[k], v) for k, v in other.model.state_dict().items())
    assert other.trainer.step == 0


def test_other_data_that_the_run_names_is_compared_too(tmp_path):
    Run(tmp_path, other_data={"development set": EXAMPLES[:4]}).trainer.fit(1)
    assert Run(tmp_path, other_data={"development set": EXAMPLES[:4]}).trainer.resume()
    other = Run(tmp_path, other_data={"development set": EXAMPLES[:5]})
    with pytest.raises(CheckpointError, match=r"development set: [0-9a-f]{32} in the checkpoint"):
        other.trainer.resume()


def test_resume_with_other_tensors_of_pytorchs_is_refused(tmp_path):
    torch = pytest.importorskip("torch")

    def run_on(examples):
        run = Run(tmp_path)
        tensors = [(torch.from_numpy(words), target) for words, target in examples]
        run.trainer.batches = SentenceBatches(tensors, batch_size=3, seed=5)
        return run.trainer

    run_on(EXAMPLES).fit(1)
    assert run_on(EXAMPLES).resume()
    with pytest.raises(CheckpointError, match="digest of the examples: "):
        run_on(permuted(EXAMPLES)).resume()


def test_examples_that_cannot_be_compared_are_warned_of_once_a_run(tmp_path):
    class Labelled:
        def __init__(self, words, target):
            self.parts = words, target

        def __getitem__(self, k):
            return self.parts[k]

    run = Run(tmp_path)
    examples = [Labelled(*example) for example in EXAMPLES]
    run.trainer.batches = SentenceBatches(examples, batch_size=3, seed=5)
    with pytest.warns(UserWarning, match="Labelled only the type counts") as warned:
        run.trainer.fit(3)
    assert len(warned) == 1 and warned[0].filename == __file__


def test_batches_by_tokens_are_compared_with_their_lengths(tmp_path):
    def batches(examples=EXAMPLES, length=num_tokens, max_tokens=9):
        return TokenBatches(examples, max_tokens, length, seed=5)

    run = Run(tmp_path)
    run.trainer.batches = batches()
    run.trainer.fit(1)
    for changed, says in [
        (batches(length=lambda example: 1), "digest of their lengths: "),
        (batches(max_tokens=10), "max_tokens: 9 in the checkpoint, 10 now"),
        (batches(permuted(EXAMPLES)), "digest of the examples: "),
    ]:
        other = Run(tmp_path)
        other.trainer.batches = changed
        with pytest.raises(CheckpointError, match=f"(?m)^  {says}"):
            other.trainer.resume()


def test_a_run_goes_on_with_changed_data_on_purpose_and_begins_the_epoch_anew(tmp_path):
    with pytest.raises(Killed):
        Run(tmp_path, after(24, "loss", kill)).trainer.fit(3)
    other = Run(tmp_path)
    other.trainer.batches = SentenceBatches(EXAMPLES[:12], batch_size=3, seed=5)
    assert other.trainer.resume(data_changed=True)
    at = (other.trainer.step, other.trainer.epoch, other.trainer.position)
    assert at == (6, 1, 0)
    other.trainer.fit(2)
    updates = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r]
    assert [r["step"] for r in updates] == list(range(1, 11))
    assert sum(r["sentences"] for r in updates if r["step"] > 6) == 12
    again = Run(tmp_path)
    again.trainer.batches = SentenceBatches(EXAMPLES[:12], batch_size=3, seed=5)
    assert again.trainer.resume()  # the new data is the run's from here on


def test_an_update_of_several_mini_batches_is_done_whole_or_not_at_all(tmp_path):
    whole = Run(tmp_path / "whole", accumulate=2)
    whole.trainer.fit(3)
    # 5 mini-batches an epoch make 3 updates; the 10th sentence is of the second's second one.
    run = Run(tmp_path, after(10, "loss", insist), accumulate=2)
    random.seed(1)
    with pytest.raises(KeyboardInterrupt):
        run.trainer.fit(3)
    info = read_checkpoint(tmp_path / "run.safetensors")
    assert (info.step, info.position) == (1, 2)
    assert go_on(tmp_path, accumulate=2) == whole.outcome()
    other = Run(tmp_path, accumulate=3)
    with pytest.raises(CheckpointError, match="mini-batches of an update: 2 in the checkpoint, 3"):
        other.trainer.resume()
    with pytest.raises(ValueError, match=r"(?s)Trainer: accumulate is 0.*accumulate >= 1"):
        Run(tmp_path, accumulate=0)


def test_a_run_that_averages_is_validated_and_resumed_with_the_mean(tmp_path, device):
    def averaging(folder, event=lambda what, run: None):
        run = Run(folder, event, device)
        run.trainer.average = optim.Average(run.model, decay=0.8)
        return run

    def outcome(run):
        mean = {name: value.tobytes() for name, value in run.trainer.average.state_dict().items()}
        return run.outcome(), mean, run.trainer.average.num_updates

    seen = []
    whole = averaging(tmp_path / "whole")
    validate = whole.trainer.validate
    whole.trainer.validate = lambda model: seen.append(model.state_dict()) or validate(model)
    whole.trainer.fit(1)
    mean = whole.trainer.average.state_dict()
    best = read_checkpoint(whole.trainer.best_path)
    loaded = Tagger()
    load_checkpoint(best.path, loaded)
    for name, value in mean.items():
        assert np.array_equal(seen[0][name], value)
        assert np.array_equal(loaded.state_dict()[name], value)
        assert not np.array_equal(whole.model.state_dict()[name], value)
    whole.trainer.fit(3)
    random.seed(1)
    run = averaging(tmp_path, after(26, "loss", kill))
    with pytest.raises(Killed):
        run.trainer.fit(3)
    random.seed(99)
    resumed = averaging(tmp_path)
    assert resumed.trainer.resume()
    resumed.trainer.fit(3)
    assert outcome(resumed) == outcome(whole)
    plain = Run(tmp_path / "plain", device=device)
    plain.trainer.fit(1)
    with pytest.raises(CheckpointError, match="saved with no average, given Average"):
        averaging(tmp_path / "plain").trainer.resume()


def test_batches_that_cannot_be_summed_up_are_counted_within_an_epoch(tmp_path):
    class Listed:
        def __init__(self, size):
            self.size = size

        def epoch(self, epoch):
            return SentenceBatches(EXAMPLES, batch_size=self.size, seed=5).epoch(epoch)

    run = Run(tmp_path, after(12, "loss", kill))
    run.trainer.batches = Listed(3)
    with pytest.raises(Killed):
        run.trainer.fit(1)
    other = Run(tmp_path)
    other.trainer.batches = Listed(2)
    with pytest.raises(CheckpointError, match="mini-batches of an epoch: 5 in the checkpoint, 7 "):
        other.trainer.resume()
    other.trainer.batches = Listed(3)
    assert other.trainer.resume()


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (3, "'3' for an object"),
        ({"stopping": {}}, "no 'best'"),
        ({"stopping": {"best": "x", "best_step": 1, "num_bad": 1}}, "'x' for 'best'"),
        ({"stopping": {"best": None, "best_step": -1, "num_bad": 1}}, "-1 for 'best_step'"),
        ({"num_batches": "5"}, "'5' for 'num_batches'"),
        ({"data": [1]}, r"\[1\] for 'data'"),
    ],
)
def test_what_the_trainer_saved_and_is_damaged_is_one_error(tmp_path, saved, says):
    run = Run(tmp_path)
    path = tmp_path / "run.safetensors"
    save_checkpoint(
        path, run.model, run.optimizer, run.trainer.schedule, random_state=run.generator,
        extra={"trainer": saved},
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=f"what the trainer saved has .*{says}"):
        run.trainer.resume()


def test_a_checkpoint_saved_without_a_trainer_can_be_resumed(tmp_path):
    run = Run(tmp_path)
    saved = (run.model, run.optimizer, run.trainer.schedule, 7)
    save_checkpoint(tmp_path / "run.safetensors", *saved, random_state=run.generator)
    assert run.trainer.resume() and run.trainer.step == 7


def test_resume_without_parts_that_the_run_had_is_refused_and_names_them(tmp_path):
    run = Run(tmp_path)
    run.trainer.average = optim.Average(run.model)
    run.trainer.fit(1)
    path = tmp_path / "run.safetensors"
    info = read_checkpoint(path)
    assert (info.optimizer, info.schedule, info.average) == ("Adam", "InverseSqrt", "Average")
    kinds = {"schedule": "InverseSqrt", "average": "Average", "random_state": "PCG64"}
    for gone in (["average"], ["schedule", "average", "random_state"]):
        other = Run(tmp_path)
        other.trainer.average = optim.Average(other.model)
        for name in gone:
            setattr(other.trainer, name, None)
        before = other.model.state_dict()
        said = r"\n".join(
            [rf"  {name}: {kinds[name]} in the checkpoint, None now" for name in gone]
        )
        with pytest.raises(CheckpointError, match=said) as caught:
            other.trainer.resume()
        assert f"Trainer({', '.join([f'{name}=...' for name in gone])}) as" in str(caught.value)
        assert all([np.array_equal(before[k], v) for k, v in other.model.state_dict().items()])
    fresh = Run(tmp_path / "new")  # the fix that the error names
    assert load_checkpoint(path, fresh.model, fresh.optimizer).step == 5


def test_other_data_and_sizes_that_the_run_no_longer_names_are_refused(tmp_path):
    Run(tmp_path, other_data={"words": [1, 2]}).trainer.fit(1)
    with pytest.raises(CheckpointError, match=r"(?m)^  words: [0-9a-f]{32} in .*, nothing now$"):
        Run(tmp_path).trainer.resume()
    other = Run(tmp_path, other_data={"words": [1, 2]})
    other.trainer.batches = TokenBatches(EXAMPLES, 9, num_tokens, seed=5)
    with pytest.raises(CheckpointError, match="batch_size: 3 in the checkpoint, nothing now"):
        other.trainer.resume()


def test_resume_in_another_precision_is_refused_whole(tmp_path):
    Run(tmp_path, precision="bfloat16").trainer.fit(1)
    factors = partial(Graph, precision="bfloat16", matmul="float32")
    for settings, says in [
        ({}, "precision: bfloat16 in the checkpoint, float32 now\n  matmul: bfloat16 in the"),
        (
            {"make_graph": factors},
            "nothing was loaded.\n  matmul: bfloat16 in the checkpoint, float",
        ),
    ]:
        run = Run(tmp_path, **settings)
        before = run.everything(), random.get_state()
        with pytest.raises(CheckpointError, match=f"(?s){says}.*fix: .*'bfloat16' as before"):
            run.trainer.resume()
        assert random.get_state() == before[1]
        for name, value in run.everything().items():
            assert np.array_equal(value, before[0][name]), name
    same = Run(tmp_path, make_graph=partial(Graph, precision="bfloat16"))
    assert same.trainer.resume() and same.trainer.epoch == 1


def test_a_precision_that_graphs_cannot_have_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="precision is 'half'"):
        Run(tmp_path, precision="half")
    with pytest.raises(
        ArgumentError, match=r"(?s)beside make_graph.*partial\(db.Graph, precision="
    ):
        Run(tmp_path, precision="bfloat16", make_graph=Graph)


def test_resume_with_a_generator_of_another_kind_is_refused_whole(tmp_path):
    Run(tmp_path).trainer.fit(1)
    other = Run(tmp_path, random_state=np.random.Generator(np.random.MT19937(0)))
    before = other.model.state_dict()
    with pytest.raises(CheckpointError, match="holds PCG64, not MT19937"):
        other.trainer.resume()
    assert all(np.array_equal(before[k], v) for k, v in other.model.state_dict().items())
    assert other.trainer.step == 0


def test_two_runs_at_a_time_are_refused_before_the_first_mini_batch(tmp_path):
    seen = []

    def other(what, run):
        if not seen:
            thread = threading.Thread(target=train_too)
            thread.start()
            thread.join()

    def train_too():
        second = Run(tmp_path, lambda what, run: seen.append("mini-batch"))
        try:
            second.trainer.fit(1)
        except CheckpointError as error:
            seen.append(str(error))

    Run(tmp_path, other).trainer.fit(1)
    assert len(seen) == 1 and "another thread of this process is training there" in seen[0]
    assert sorted(os.listdir(tmp_path)) == [
        "metrics.jsonl", "run.best.safetensors", "run.safetensors",
    ]  # fmt: skip


def test_whoever_holds_the_checkpoint_may_train(tmp_path):
    with locked(tmp_path / "run.safetensors"):
        Run(tmp_path).trainer.fit(1)


@pytest.mark.parametrize("where", ["file", "file/below", "folder.safetensors", "/proc/dynbatch"])
def test_a_place_that_cannot_be_written_is_told_before_the_first_mini_batch(tmp_path, where):
    (tmp_path / "file").touch()
    (tmp_path / "folder.safetensors" / "run.safetensors").mkdir(parents=True)
    done = []
    run = Run(tmp_path / where, lambda what, run: done.append(what), metrics_path=None)
    with pytest.raises(CheckpointError, match="nothing can be written there: "):
        run.trainer.fit(1)
    assert done == []


def test_damaged_metrics_are_told_before_the_first_mini_batch(tmp_path):
    Run(tmp_path).trainer.fit(1)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write("what?\n")
    run = Run(tmp_path)
    run.trainer.resume()
    with pytest.raises(DataError, match=r"metrics.jsonl:7: not a line of a metrics file"):
        run.trainer.fit(2)
    assert run.trainer.step == 5


def test_a_run_whose_metrics_are_gone_begins_the_file_anew(tmp_path):
    Run(tmp_path).trainer.fit(1)
    (tmp_path / "metrics.jsonl").unlink()
    run = Run(tmp_path)
    run.trainer.resume()
    run.trainer.fit(2)
    updates = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r]
    assert [record["step"] for record in updates] == list(range(6, 11))


def test_extra_is_kept_beside_the_trainers_own_state(tmp_path):
    Run(tmp_path, extra={"hidden": 6}).trainer.fit(1)
    assert read_checkpoint(tmp_path / "run.safetensors").extra["hidden"] == 6


def test_batches_may_come_from_a_generator(tmp_path, undisturbed):
    class Streamed:
        def epoch(self, epoch):
            yield from SentenceBatches(EXAMPLES, batch_size=3, seed=5).epoch(epoch)

    run = Run(tmp_path)
    run.trainer.batches = Streamed()
    run.trainer.fit(3)
    assert run.outcome() == undisturbed


def test_settings_that_need_a_metric_ask_for_validation(tmp_path):
    run = Run(tmp_path)
    model, optimizer = run.model, run.optimizer
    for settings in (dict(patience=2), dict(schedule=optim.Plateau(optimizer))):
        with pytest.raises(ValueError, match="give validate="):
            Trainer(model, optimizer, run.loss, run.trainer.batches, **settings)


# On a GPU -----------------------------------------------------------------------------------------


def test_a_run_on_a_gpu_comes_to_what_one_on_the_cpu_does(tmp_path, cuda):
    runs = [Run(tmp_path / device, device=device) for device in ("cpu", "cuda")]
    for run in runs:
        random.seed(1)
        run.trainer.fit(2)
    assert all(parameter.device.is_cuda for parameter in runs[1].model.parameters())
    here, there = (run.everything() for run in runs)
    for name, value in here.items():
        np.testing.assert_allclose(there[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    ours, theirs = (read_metrics(run.trainer.metrics_path) for run in runs)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for name in ("loss", "gradient_norm", "metric", "lr"):
            assert other.get(name, 0) == pytest.approx(one.get(name, 0), rel=1e-4)


def test_numbers_of_an_update_are_read_when_the_next_has_been_started(
    tmp_path, device, monkeypatch
):
    order = []
    for kind, name in ((Graph, "backward"), (Update, "read")):
        original = getattr(kind, name)

        def noted(*args, original=original, name=name):
            order.append(name)
            original(*args)

        monkeypatch.setattr(kind, name, noted)
    Run(tmp_path, device=device, checkpoint_every=None, validate=None).trainer.fit(1)
    if device == "cpu":
        assert order == ["backward", "read", "read"] * 5
    else:
        assert order == ["backward", *["backward", "read"] * 4, "read"]


def test_a_moved_model_goes_on_from_a_checkpoint(tmp_path, cuda):
    Run(tmp_path, device="cuda").trainer.fit(1)
    run = Run(tmp_path, device="cpu")
    assert run.trainer.resume()
    run.trainer.fit(2)
    run.model.to("cuda")
    run.trainer.fit(3)
    whole = Run(tmp_path / "whole")
    random.seed(1)
    whole.trainer.fit(3)
    here, there = whole.everything(), run.everything()
    for name, value in here.items():
        np.testing.assert_allclose(there[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_memory_limit_holds_for_every_update(tmp_path):
    random.seed(1)
    run = Run(tmp_path / "whole")
    run.trainer.fit(1)
    whole = [r for r in read_metrics(tmp_path / "whole" / "metrics.jsonl") if "loss" in r]
    limit = max(record["peak_bytes"] for record in whole) * 3 // 5
    random.seed(1)
    run = Run(tmp_path / "limited", memory_limit=limit, memory_every=2)
    run.trainer.fit(1)
    limited = [r for r in read_metrics(tmp_path / "limited" / "metrics.jsonl") if "loss" in r]
    assert all(record["peak_bytes"] <= limit for record in limited)
    assert [r["loss"] for r in limited] == pytest.approx([r["loss"] for r in whole], rel=1e-5)
    assert all(r["planned_bytes"] == r["peak_bytes"] for r in limited[::2])
    with pytest.raises(ValueError, match="memory_every is 0"):
        Run(tmp_path, memory_every=0)
    with pytest.raises(ValueError, match="memory_limit: '12 bananas' is not a number of bytes"):
        Run(tmp_path, memory_limit="12 bananas")


def test_a_checkpoint_is_a_file_with_the_suffix_of_its_format(tmp_path):
    with pytest.raises(ArgumentError, match=r"(?s)checkpoint_path is .*give 'runs/mine/model\.saf"):
        Run(tmp_path, checkpoint_path="runs/mine")
