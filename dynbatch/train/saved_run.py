"""Checkpoints of a run. They also say what its mini-batches were made of, so that a run that is
resumed on other data is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import length_hint

from dynbatch.arguments import is_count
from dynbatch.errors import CheckpointError
from dynbatch.train.checkpoint import (
    CheckpointInfo,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from dynbatch.train.checkpoint_file import is_object, wrong_field
from dynbatch.train.digest import data_digest
from dynbatch.train.protocols import Batches, State
from dynbatch.train.run_folder import other_copy
from dynbatch.train.settings import TrainerSettings
from dynbatch.train.stopping import EarlyStopping

Summary = dict[str, object]
"""The numbers and digests, by name, that decide a run's mini-batches."""


def save_run(
    run: TrainerSettings,
    path: str | os.PathLike[str],
    step: int,
    epoch: int,
    position: int,
    saved: Mapping[str, object],
) -> None:
    """Write a checkpoint of a run; `saved` is what only a trainer saves.

    Raises:
        CheckpointError: it cannot be written.
    """
    save_checkpoint(
        path,
        run.model,
        run.optimizer,
        run.schedule,
        step,
        epoch=epoch,
        position=position,
        random_state=run.random_state,
        average=run.average,
        extra={**run.extra, "trainer": saved},
    )


def load_run(
    run: TrainerSettings, path: str | os.PathLike[str], summary: Summary, data_changed: bool
) -> tuple[CheckpointInfo, State]:
    """Load a checkpoint into a run. Returns what stands in it, and what a trainer saved there.

    Raises:
        CheckpointError: it is damaged or of another run; everything is as it was.
    """
    info = read_checkpoint(path)
    saved = _saved_by_trainer(info)
    if not data_changed:
        _require_same_data(info, saved["data"], summary, saved["num_batches"], run.batches)
    info.check_random_state(run.random_state)
    load_checkpoint(path, run.model, run.optimizer, run.schedule, run.average)
    info.restore_random_state(run.random_state)
    return info, saved


def summary_of(run: TrainerSettings) -> Summary:
    """What decides a run's updates: its mini-batches, if known, and digests of its other data."""
    summary = getattr(run.batches, "summary", dict)
    digests = {name: data_digest(data) for name, data in run.other_data.items()}
    return {**summary(), "mini-batches of an update": run.accumulate, **digests}


def _require_same_data(
    info: CheckpointInfo, saved: Summary, now: Summary, saved_batches: int, batches: Batches
) -> None:
    """Check that a checkpoint's run had these mini-batches.

    What a checkpoint does not say is not compared. Mini-batches that cannot be summed up are only
    counted, and only where a run stopped within an epoch.

    Raises:
        CheckpointError: they differ; says in what.
    """
    changed = {
        name: (saved[name], now[name]) for name in now if name in saved and saved[name] != now[name]
    }
    is_counted = "number of examples" not in saved or not hasattr(batches, "summary")
    if not changed and is_counted and info.position:
        number = length_hint(batches.epoch(info.epoch), 0)
        if number != saved_batches:
            changed = {"mini-batches of an epoch": (saved_batches, number)}
    if changed:
        said = "\n".join(
            f"  {name}: {_shown(before)} in the checkpoint, {_shown(after)} now"
            for name, (before, after) in changed.items()
        )
        raise CheckpointError(
            f"{info.path}: the run was begun with other data or mini-batches; nothing was "
            f"loaded.\n{said}\n"
            "  rule: a run is resumed with the data, the seed and the sizes of mini-batches and "
            "updates it was begun with\n"
            "  fix:  give what it was begun with; or go on with these on purpose, the running "
            "epoch anew, by resume(data_changed=True), which is --data-changed on a command line"
        )


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _saved_by_trainer(info: CheckpointInfo) -> State:
    """The trainer's part of a checkpoint; defaults if it was saved without a trainer.

    Raises:
        CheckpointError: it is damaged.
    """
    usual = {"stopping": EarlyStopping().state_dict(), "num_batches": 0, "data": {}}
    added = info.extra.get("trainer", {})
    saved = {**usual, **added} if isinstance(added, dict) else added
    fields = {"stopping": is_object, "num_batches": is_count, "data": is_object}
    problem = wrong_field(saved, fields) or EarlyStopping.wrong(saved["stopping"])
    if problem:
        raise CheckpointError(
            f"{info.path}: damaged: what the trainer saved has {problem}; nothing was loaded.\n"
            f"  fix: {other_copy(info.path)}"
        )
    return saved
