"""The files of a run's folder."""

from __future__ import annotations

import os
from pathlib import Path

CHECKPOINT, BEST, METRICS = "model.safetensors", "model.best.safetensors", "metrics.jsonl"
"""A run's present state, its best validation's model, and its progress."""


def model_file(run: str | os.PathLike[str]) -> Path:
    """The file of a run's model: of its best validation, else of its end; a file is itself."""
    path = Path(run)
    return path if not path.is_dir() else path / (BEST if (path / BEST).exists() else CHECKPOINT)
