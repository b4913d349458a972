"""Settings of every training command, and which of them may change when a run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from dynbatch.errors import CheckpointError, problem_of
from dynbatch.kernels.runtime.precision import FULL, Rounding, of_matmul
from dynbatch.tasks.options import (
    ROUNDING,
    above_zero,
    device_name,
    flag_of,
    from_json,
    not_negative,
    option,
    passes,
    precision_name,
    precision_of_values,
    share,
)
from dynbatch.train import read_checkpoint
from dynbatch.train.run_folder import CHECKPOINT, other_copy


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of every training command; a task adds its own, and other defaults."""

    limit: int | None = option(None, "train on X sentences, drawn at random (all)")
    epochs: int = option(2, "passes over the data", passes)
    batch_size: int = option(32, "sentences in a mini-batch")
    dropout: float = option(0.25, "probability that a feature is dropped while training", share)
    lr: float = option(2e-3, "peak of Adam's learning rate", above_zero)
    warmup: int = option(200, "updates until the peak; then the rate falls as a cosine")
    clip: float = option(5.0, "largest norm of the gradient", above_zero)
    precision: str = option(FULL, ROUNDING["precision"], precision_of_values)
    matmul: str | None = option(None, ROUNDING["matmul"], precision_name)
    seed: int = option(0, "of all that is drawn", not_negative)
    threads: int | None = option(None, "threads (one a processor)", is_kept=False)
    device: str = option("cpu", "cpu, cuda or cuda:N", device_name, is_kept=False)
    output: str | None = option(
        None, "folder for checkpoint and metrics (none is saved)", str, is_kept=False
    )
    resume: bool = option(False, "go on with the run in --output", is_kept=False)
    data_changed: bool = option(
        False, "with --resume: the data is another, on purpose", is_kept=False
    )
    quiet: bool = option(False, "no progress bar", is_kept=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matmul", of_matmul(self.matmul, self.precision))

    @property
    def rounding(self) -> Rounding:
        """The arguments of a graph that say what it rounds."""
        return {"matmul": self.matmul, "precision": self.precision}

    @classmethod
    def usual(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Usual settings that depend on the given ones; the others are the fields' defaults."""
        return {}

    @property
    def checkpoint(self) -> Path | None:
        """The file of the run's present state; None if it is not saved."""
        return None if self.output is None else Path(self.output, CHECKPOINT)


@dataclass(frozen=True, kw_only=True)
class TaskSettings(TrainingSettings):
    """Settings of `dynbatch train` for every task."""

    data: str | None = option(None, "a file of text, whose form --help shows", str, is_first=True)
    output: str | None = option(
        None, "folder of the run (runs/NAME of the file)", str, is_kept=False
    )
    dev: str | None = option(None, "file for validation (a part of the data is held out)", str)
    patience: int | None = option(None, "stop after X validations without a better one (never)")
    accumulate: int = option(1, "mini-batches of one update")
    watch: int | None = option(None, "note how every parameter moves, at each X-th update (never)")
    samples: int = option(
        3, "held-out texts, or texts made up, shown after each epoch", not_negative
    )


Settings = TypeVar("Settings", bound=TrainingSettings)


def kept(settings: TrainingSettings) -> dict[str, Any]:
    """The settings that a checkpoint holds: all that a run's result depends on."""
    names = [each.name for each in fields(settings) if each.metadata["kept"]]
    return {name: getattr(settings, name) for name in names}


def settings_of(kind: type[Settings], options: Mapping[str, Any]) -> Settings:
    """The settings of a run: the given ones, and for the others the usual ones, or those with which
    the run began where `resume` is given and there is one.

    Args:
        options: of the command line, by name.

    Raises:
        CheckpointError: the run has other settings than the given ones, or damaged ones.
    """
    asked = kind(**{**kind.usual(options), **options})
    if asked.data_changed and not asked.resume:
        raise CheckpointError("--data-changed is for runs that go on.\n  fix: give --resume, too.")
    if not asked.resume or asked.checkpoint is None or not asked.checkpoint.exists():
        return asked
    saved = saved_settings(kind, asked.checkpoint)
    named = {name: value for name, value in kept(asked).items() if name in options}
    refuse_other_settings(asked.checkpoint, kept(saved), named, asked.data_changed)
    return replace(saved, **options)


def saved_settings(kind: type[Settings], checkpoint: Path) -> Settings:
    """The settings that a checkpoint holds.

    Raises:
        CheckpointError: there are none, or they are damaged.
    """
    saved = read_checkpoint(checkpoint).extra.get("settings")
    if saved is None:
        raise CheckpointError(
            f"{checkpoint}: a checkpoint, but without settings, so not of a run of this command.\n"
            "  fix: give the --output of a run that this command began."
        )
    try:
        of_run = from_json(kind, saved)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint}: damaged: its settings: {problem_of(error)}; nothing was loaded.\n"
            f"  fix: {other_copy(checkpoint)}; or begin a run in another --output"
        ) from error
    passing: dict[str, Any] = {e.name: e.default for e in fields(kind) if not e.metadata["kept"]}
    return replace(of_run, **passing)  # some were kept in older checkpoints


def refuse_other_settings(
    checkpoint: Path, saved: Mapping[str, Any], asked: Mapping[str, Any], data_changed: bool = False
) -> None:
    """Check that a run goes on with the settings it began with.

    `epochs` may be raised, which extends it, also when it is done: its learning rate then goes on
    where a run of that many epochs would be, higher than it was at the end. `patience`, `samples`
    and `watch` are free, as nothing that was done depends on them, and so are names of files, whose
    content is compared. What the checkpoint does not have is not compared.

    Args:
        saved:        of the checkpoint.
        asked:        of the command line.
        data_changed: whether it goes on with other data on purpose: `limit` is free, too.

    Raises:
        CheckpointError: another one is asked for; says which.
    """
    free: Sequence[str] = (
        "patience",
        "samples",
        "watch",
        "data",
        "dev",
        *(("limit",) if data_changed else ()),
    )
    for name, value in asked.items():
        flag, has = flag_of(name), saved.get(name, value)
        if value == has or name in free:
            continue
        rule, fix = "a run goes on with the settings it began with", f"leave {flag} out"
        if name == "epochs":
            if value > has:
                continue
            rule, fix = "--epochs may be raised, which extends a run", f"{flag} {has} or more"
        elif isinstance(value, bool):
            fix = f"give {flag} as before" if has else fix
        elif has is not None:
            fix = f"{flag} {has}"
        raise CheckpointError(
            f"{checkpoint}: the run has {flag} {has}, not {value}.\n"
            f"  rule: {rule}\n"
            f"  fix:  {fix}; or begin a run in another --output without --resume"
        )
