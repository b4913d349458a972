"""The files of a run's folder."""

from __future__ import annotations

import os
from pathlib import Path

CHECKPOINT, BEST, METRICS = "model.safetensors", "model.best.safetensors", "metrics.jsonl"
"""A run's present state, its best validation's model, and its progress."""


def best_of(checkpoint: str | os.PathLike[str]) -> Path:
    """The checkpoint of the best validation, `run.best.safetensors` beside `run.safetensors`."""
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.best{path.suffix}")


def earlier_run(checkpoint: str | os.PathLike[str]) -> Path | None:
    """A file of a run that has been there before: its checkpoint, else its best one; or None."""
    files = (Path(checkpoint), best_of(checkpoint))
    return next((path for path in files if path.exists()), None)


def other_copy(checkpoint: str | os.PathLike[str]) -> str:
    """Advice where a checkpoint is damaged or gone: the best one is a whole moment, too."""
    best = best_of(checkpoint)
    if best.is_file():
        return f"take another copy; or go on from the best validation: cp {best} {checkpoint}"
    return "take another copy, or an earlier checkpoint of the run"


def model_file(run: str | os.PathLike[str]) -> Path:
    """The file of a run's model: of its best validation, else of its end; a file is itself."""
    path = Path(run)
    return path if not path.is_dir() else path / (BEST if (path / BEST).exists() else CHECKPOINT)
