"""Checkpoints of a run. They also say what its mini-batches were made of, so that a run that is
resumed on other data is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from operator import length_hint
from pathlib import Path

from dynbatch.arguments import is_count
from dynbatch.atomic import remove_leftover
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
from dynbatch.train.random_states import RandomStates
from dynbatch.train.run_folder import earlier_run, other_copy
from dynbatch.train.settings import TrainerSettings
from dynbatch.train.stopping import EarlyStopping

Summary = dict[str, object]
"""The numbers and digests, by name, that decide a run's mini-batches."""


class SavedRun:
    """A run's checkpoints: the moments that were saved, and how it goes on from one of them.

    Args:
        run: the trainer, whose settings say what is saved.

    Attributes:
        last: the checkpoint of `checkpoint_path` that this run wrote, or went on from, with its
              step; None before.
    """

    def __init__(self, run: TrainerSettings) -> None:
        self._run = run
        self._summary: Summary | None = None
        self.last: str | None = None

    def require_unused(self) -> None:
        """Check that the run writes over no other run's checkpoint.

        Raises:
            CheckpointError: there is one, and this run neither wrote it nor goes on from any.
        """
        path = self._run.checkpoint_path
        if path is None or self.last is not None or (there := earlier_run(path)) is None:
            return
        hint = self._run.resume_hint
        if not Path(path).exists():
            hint = f"cp {there} {path}, {hint}"
        raise CheckpointError(
            f"{there}: of an earlier run; a new one would write over it.\n"
            "  rule: fit begins a run where there is none, and goes on after resume()\n"
            f"  fix:  go on with it: {hint}; or give another checkpoint_path;\n"
            "        or write over it on purpose: trainer.fit(num_epochs, overwrite=True)"
        )

    def begin(self) -> None:
        """Remove what a process that was killed in a save left, and read the data for its digest:
        Ctrl-C should not have to wait for that.
        """
        path, best = self._run.checkpoint_path, self._run.best_path
        if path is not None and best is not None:
            remove_leftover(Path(path))
            remove_leftover(best)
            self.data()

    def save(
        self,
        path: str | os.PathLike[str] | None,
        step: int,
        epoch: int,
        position: int,
        saved: Mapping[str, object],
    ) -> None:
        """Write a checkpoint, if there is a path; `saved` is what only a trainer saves.

        Raises:
            CheckpointError: it cannot be written.
        """
        run = self._run
        if path is None:
            return
        if not run.ranks.is_first and run.optimizer.communicator is None:
            return
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
            save_frozen=run.save_frozen,
            extra={
                **run.extra,
                "trainer": {**saved, "data": self.data(), "rounding": run.rounding},
            },
        )
        if path == run.checkpoint_path and run.ranks.is_first:
            self.last = f"{path} (step {step})"

    def load(
        self, path: str | os.PathLike[str], data_changed: bool
    ) -> tuple[CheckpointInfo, State]:
        """Load a checkpoint. Returns what stands in it, and what a trainer saved there.

        Raises:
            CheckpointError: it is damaged or of another run; everything is as it was.
        """
        run = self._run
        info = read_checkpoint(path)
        saved = _saved_by_trainer(info)
        if not data_changed:
            _require_same_data(info, saved["data"], self.data(), saved["num_batches"], run.batches)
        _require_all_parts(info, run)
        _require_same_rounding(info, saved["rounding"], run)
        info.check_random_state(run.random_state)
        load_checkpoint(path, run.model, run.optimizer, run.schedule, run.average)
        info.restore_random_state(run.random_state)
        self.last = f"{path} (step {info.step})"
        return info, saved

    def data(self) -> Summary:
        """The data that decides the run's updates: its mini-batches and shards, if known."""
        if self._summary is None:
            run = self._run
            batches: Summary = getattr(run.batches, "summary", dict)()
            shards: Summary = getattr(run.shards, "summary", dict)()
            digests = {name: data_digest(data) for name, data in run.other_data.items()}
            updates = {"mini-batches of an update": run.accumulate}
            self._summary = {**batches, **shards, **updates, **digests}
        return self._summary


def _require_all_parts(info: CheckpointInfo, run: TrainerSettings) -> None:
    """Check that a run has the schedule, average and generator that it had when it was saved.

    Raises:
        CheckpointError: one is missing, with which the run would not be the same; says which.
    """
    saved = {
        "schedule": info.schedule,
        "average": info.average,
        "random_state": (info.random_state or {}).get("bit_generator"),
    }
    gone = {name: kind for name, kind in saved.items() if kind and getattr(run, name) is None}
    if gone:
        said = "\n".join(
            [f"  {name}: {kind} in the checkpoint, None now" for name, kind in gone.items()]
        )
        arguments = ", ".join([f"{name}=..." for name in gone])
        raise CheckpointError(
            f"{info.path}: the run was saved with what this trainer lacks; nothing was loaded."
            f"\n{said}\n"
            "  rule: a run goes on with the schedule, average and random_state it was begun with\n"
            f"  fix:  Trainer({arguments}) as before; or begin a new run without, in another file, "
            "from model and optimizer: train.load_checkpoint(path, model, optimizer)"
        )


def _require_same_rounding(info: CheckpointInfo, saved: Summary, run: TrainerSettings) -> None:
    """Check that a run's graphs round to what they did when it was saved, if that is known.

    Raises:
        CheckpointError: they do not; says to what.
    """
    if not saved:
        return
    before = RandomStates.now(run.random_state)
    try:
        run.graph()  # which draws a seed
    finally:
        before.restore(run.random_state)
    changed = {name: value for name, value in run.rounding.items() if saved.get(name) != value}
    if changed:
        said = "\n".join(
            [
                f"  {name}: {saved.get(name)} in the checkpoint, {changed[name]} now"
                for name in changed
            ]
        )
        was = ", ".join([f"{name}={saved.get(name)!r}" for name in changed])
        raise CheckpointError(
            f"{info.path}: the run was saved in another precision; nothing was loaded.\n{said}\n"
            "  rule: a run goes on in the precision it was begun with\n"
            f"  fix:  graphs of {was} as before; or begin a new run, in another file, from model "
            "and optimizer: train.load_checkpoint(path, model, optimizer)"
        )


def _require_same_data(
    info: CheckpointInfo, saved: Summary, now: Summary, saved_batches: int, batches: Batches
) -> None:
    """Check that a checkpoint's run had these mini-batches.

    What a checkpoint does not say is not compared, and what it says is, if it can be said now.
    Mini-batches that cannot be summed up are only counted, and only where a run stopped within an
    epoch.

    Raises:
        CheckpointError: they differ; says in what.
    """
    is_counted = "number of examples" not in saved or not hasattr(batches, "summary")
    names = [name for name in now if name in saved]
    if not is_counted:
        names += [name for name in saved if name not in now]
    changed = {
        name: (saved[name], now.get(name, "nothing"))
        for name in names
        if saved[name] != now.get(name)
    }
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
    usual = {
        "stopping": EarlyStopping().state_dict(), "num_batches": 0, "data": {}, "rounding": {},
    }  # fmt: skip
    added = info.extra.get("trainer", {})
    saved = {**usual, **added} if isinstance(added, dict) else added
    objects = dict.fromkeys(("stopping", "data", "rounding"), is_object)
    fields = {**objects, "num_batches": is_count}
    problem = wrong_field(saved, fields) or EarlyStopping.wrong(saved["stopping"])
    if problem:
        raise CheckpointError(
            f"{info.path}: damaged: what the trainer saved has {problem}; nothing was loaded.\n"
            f"  fix: {other_copy(info.path)}"
        )
    return saved
