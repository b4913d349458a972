"""The tasks by name, and the one of a checkpoint."""

from __future__ import annotations

import os

from dynbatch.errors import CheckpointError
from dynbatch.tasks.task import Task
from dynbatch.train import load_checkpoint, read_checkpoint

TASKS: dict[str, type[Task]] = {}
"""By name, as `--task` and checkpoints give it."""


def load_task(path: str | os.PathLike[str]) -> Task:
    """The task of a checkpoint, with its trained model.

    Raises:
        CheckpointError: the file is missing or damaged, or of another program.
    """
    info = read_checkpoint(path)
    name = info.extra.get("task")
    if not isinstance(name, str) or name not in TASKS:
        raise CheckpointError(
            f"{path}: a checkpoint of dynbatch, but not of a task.\n"
            f"  rule: its task is one of {', '.join(TASKS)}\n"
            "  fix:  give a run of `dynbatch train`"
        )
    task = TASKS[name].described(info)
    load_checkpoint(path, task.model)
    return task
