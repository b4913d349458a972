"""Ctrl-C at any line of a save leaves a whole checkpoint, and the run as it was."""

import dynbatch as db
from dynbatch import optim, train
from dynbatch.train.checkpoint import read_checkpoint
from tests.interruptions import broken_off
from tests.train.signalled import Model, sentences

FILES = tuple(
    f"dynbatch/{name}.py"
    for name in (
        "train/trainer", "train/saved_run", "train/checkpoint", "train/checkpoint_file",
        "train/random_states", "train/digest", "optim/optimizer", "optim/parameter_state", "atomic",
    )
)  # fmt: skip


def trainer_in(folder):
    db.seed(0)
    model = Model()
    return train.Trainer(
        model, optim.Adam(model, lr=0.01), lambda graph, model, rows: model.loss(graph, rows),
        train.SentenceBatches(sentences(), batch_size=2),
        checkpoint_path=folder / "run.safetensors", show_progress=False,
    )  # fmt: skip


def weights(trainer):
    return [parameter.value.tobytes() for parameter in trainer.model.parameters()]


def test_an_interrupt_at_any_line_of_a_save_leaves_a_whole_checkpoint_and_the_run(tmp_path):
    path, undisturbed = tmp_path / "run.safetensors", trainer_in(tmp_path / "undisturbed")
    undisturbed.fit(2)
    trainer, lines = trainer_in(tmp_path), []
    trainer.fit(1)
    saved = path.read_bytes()
    for line, error in broken_off(trainer.save, FILES):
        lines.append(line)
        assert isinstance(error, KeyboardInterrupt), line
        assert path.read_bytes() == saved, line
        assert read_checkpoint(path).step == 3, line
    assert len(lines) > 50
    trainer.save()
    trainer.fit(2)  # three more updates
    assert weights(trainer) == weights(undisturbed)
    resumed = trainer_in(tmp_path)
    assert resumed.resume() and resumed.step == 6
    assert weights(resumed) == weights(undisturbed)
