"""Training of a task: begun from parts of a corpus or gone on with, validated and saved."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from dynbatch import random
from dynbatch.errors import CheckpointError
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import Parts, Task, divided
from dynbatch.tasks.training import sample, train
from dynbatch.tasks.tuning import moved
from dynbatch.train import CheckpointInfo, TrainingResult, read_checkpoint

COLUMNS = 76
"""Of a sample's line; longer ones are broken."""

DATA_CHANGED = "data_changed"
"""In a checkpoint's `extra`, where the data once was another: its words are not the run's."""

AnyTask = TypeVar("AnyTask", bound=Task)


def parts_of(kind: type[Task], settings: TaskSettings) -> Parts:
    """The examples of the data's file, of which those for validation and test are held out by their
    keys; none where nothing would be left, and where `dev` names a file of them.

    Raises:
        DataError: a file cannot be read, or a line of it.
    """
    assert settings.data is not None
    texts = kind.read(settings.data, settings)
    if settings.dev is not None:
        parts = Parts(texts, kind.read(settings.dev, settings), [])
    else:
        parts = divided(texts, kind.key)
    if not parts.train:
        parts = Parts(texts, [], [])
    return replace(parts, train=sample(parts.train, settings))


def begun(kind: type[AnyTask], parts: Parts, settings: TaskSettings) -> AnyTask:
    """The task with a new model, or that of the run that goes on, with its own vocabularies.

    Raises:
        CheckpointError: there is none, it is damaged or of another task, or its vocabularies are
            not those of the data, which then must be another on purpose (`data_changed`). Of a run
            that went on with other data before, the trainer compares the data alone.
    """
    if not settings.resume or settings.checkpoint is None:
        return kind.begin(parts, settings)
    info = read_checkpoint(settings.checkpoint)
    earlier = described(kind, info, getattr(settings, "from_", None))
    if settings.data_changed:
        share = earlier.unknown(parts.train)
        print(f"The data is another: {share:.2%} of it is unknown to the run's vocabularies.")
    elif (
        not info.extra.get(DATA_CHANGED)
        and earlier.vocabularies()  # without any, no second model is made to compare them
        and (said := earlier.differences(kind.begin(parts, settings)))
    ):
        raise CheckpointError(
            f"{settings.checkpoint}: the data gives other vocabularies than when the run was "
            "begun; nothing was loaded.\n" + "\n".join([f"  {line}" for line in said]) + "\n"
            "  rule: a run is resumed with the data it was begun with\n"
            "  fix:  give this data; or begin a run in another --output; or go on with the new "
            "data by --resume --data-changed, where words that the run lacks are unknown"
        )
    return earlier


def described(
    kind: type[AnyTask], info: CheckpointInfo, base: str | Path | None = None
) -> AnyTask:  # fmt: skip
    """The task of a checkpoint, with an untrained model.

    Args:
        base: the folder of the published model that a run needs, where it was moved.

    Raises:
        CheckpointError: it is of another task or none, or damaged.
    """
    if info.extra.get("task") != kind.name:
        raise CheckpointError(
            f"{info.path}: a checkpoint, but not of {kind.name}.\n"
            "  rule: dynbatch train and the examples name the task in their checkpoints; those of "
            "earlier versions did not\n"
            "  fix:  give the folder of such a run, or train it anew."
        )
    return kind.described(moved(info, base))


def learn(
    task: Task,
    parts: Parts,
    settings: TaskSettings,
    *,
    metric: str | None = None,
    hint: str = "the same command with --resume",
) -> TrainingResult:
    """Train a task, and print metrics and samples of the held-out texts after each epoch.

    Args:
        metric: that decides which model is best; by default the first one.
        hint:   what to tell someone who interrupts the run.
    """
    dev = parts.dev[: task.most_validated]
    shown = dev[:: max(1, len(dev) // max(1, settings.samples))][: settings.samples]
    rng = np.random.default_rng(settings.seed)
    goes_on = settings.resume and settings.checkpoint is not None
    before = read_checkpoint(str(settings.checkpoint)) if goes_on else None
    epochs = count(1 if before is None else before.epoch + 1)
    extra: dict[str, object] = {"task": task.name, "description": task.description()}
    if settings.data_changed or (before is not None and before.extra.get(DATA_CHANGED)):
        extra[DATA_CHANGED] = True

    def validate(model: Any) -> dict[str, float]:
        measures = task.evaluate(dev)
        drawn = random.get_state()  # so that a run does not depend on how much of it is shown
        samples = [broken(line) for line in task.samples(shown, settings, rng)]
        random.set_state(drawn)
        said = f"epoch {next(epochs)}, {task.told(measures, dev)}"
        tqdm.write("\n  | ".join([said, *[x for lines in samples for x in lines]]))
        first = metric or next(iter(measures))
        return {first: measures[first], **measures}

    examples = task.examples(parts.train)
    has_tokens = any([task.num_tokens(example) != 1 for example in examples])
    return train(
        task.model, task.loss, examples, settings, task.num_tokens if has_tokens else None,
        optimizer=task.optimizer(settings), batches=task.batches(examples, settings),
        extra=extra, hint=hint,
        validate=validate if dev else None, higher_is_better=task.higher_is_better,
        patience=settings.patience if dev else None, other_data={"the development set": dev},
        random_state=rng, padded_bytes=task.padded_bytes(settings.precision),
        accumulate=settings.accumulate, watch=settings.watch, save_frozen=task.saves_frozen,
    )  # fmt: skip


def broken(line: str) -> list[str]:
    """A line in pieces that fit the terminal, cut at blanks where there are some."""
    pieces = wrap(
        line, COLUMNS, drop_whitespace=False, replace_whitespace=False, expand_tabs=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return pieces or [""]
