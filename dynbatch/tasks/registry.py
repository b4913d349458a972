"""The tasks by name, and the one of a checkpoint."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from dynbatch.caller import users_frame
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime.precision import widened
from dynbatch.tasks.classification import Classification
from dynbatch.tasks.document_tuning import DocumentTuning
from dynbatch.tasks.fine_tuning import FineTuning
from dynbatch.tasks.language_model import DocumentWriter
from dynbatch.tasks.learning import described
from dynbatch.tasks.tagging import Tagging
from dynbatch.tasks.task import Task
from dynbatch.tasks.translation.translator import Translator
from dynbatch.train import CheckpointInfo, load_checkpoint, read_checkpoint
from dynbatch.train.run_folder import model_file

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (DocumentWriter, DocumentTuning, Translator, Classification, FineTuning, Tagging)
}
"""By name, as `--task` and checkpoints give it."""


def task_of_checkpoint(info: CheckpointInfo) -> type[Task]:
    """The kind of task that a checkpoint names.

    Raises:
        CheckpointError: it names none that is known.
    """
    name = info.extra.get("task")
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]
    raise CheckpointError(
        f"{info.path}: a checkpoint of dynbatch, but not of a task.\n"
        f"  rule: it names one of {', '.join(TASKS)}, as those of dynbatch train and of the "
        "examples do; those of earlier versions did not\n"
        "  fix:  give the folder of such a run, or train it anew"
    )


def load_task(path: str | os.PathLike[str], base: str | Path | None = None) -> Task:
    """The task of a run's folder or checkpoint, with its trained model.

    It warns of weights that are NaN or infinite, with which a model answers at random.

    Args:
        base: where the folder is now that a run of LoRA's matrices began from, if it was moved.

    Raises:
        CheckpointError: the file is missing or damaged, or of another program; or its run needs no
            base.
    """
    file = model_file(path)
    info = read_checkpoint(file)
    if base is not None and "from" not in (info.extra.get("description") or ()):
        raise CheckpointError(
            f"--from {base}: {file} has its whole model.\n"
            "  rule: only a run of dynbatch train --lora R on documents needs the folder that it "
            "began from\n  fix:  leave --from out"
        )
    task = described(task_of_checkpoint(info), info, base)
    load_checkpoint(file, task.model)
    _warn_of_weights(file, task)
    return task


def _warn_of_weights(file: Path, task: Task) -> None:
    for name, parameter in task.model.named_parameters():
        finite = np.isfinite(widened(parameter.value))
        if not finite.all():
            warnings.warn(
                f"{file}: {int(np.sum(~finite)):,} of the {finite.size:,} numbers of parameter "
                f"{name!r} are NaN or infinite.\n"
                "  rule: what a model answers follows from all its weights\n"
                "  fix:  use model.best.safetensors of the run's folder, or train again with a "
                "lower learning rate",
                stacklevel=users_frame()[1] + 1,
            )
            return
