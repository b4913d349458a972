"""The metrics file: one JSON object a line, on the disk as soon as it is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from dynbatch.atomic import replacing

Record = dict[str, Any]


class MetricsFile:
    """Appends records to a JSON-lines file, flushed line by line. Without a path it does nothing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "metrics.jsonl")
        >>> metrics = MetricsFile(path)
        >>> metrics.write({"step": 1, "loss": 2.5})
        >>> metrics.close()
        >>> path.read_text(encoding="utf-8")
        '{"step": 1, "loss": 2.5}\\n'
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._file: IO[str] | None = None

    def write(self, record: Record) -> None:
        """Append one record; numbers that are not finite are written as null."""
        if self._path is None:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "a", encoding="utf-8")
        self._file.write(json.dumps({name: _finite(value) for name, value in record.items()}))
        self._file.write("\n")
        self._file.flush()

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        """Remove the records that are not wanted, and a last line that was cut short."""
        self.close()
        if self._path is None or not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and wanted(json.loads(line))]
        if kept != lines:
            with replacing(self._path) as temporary:
                temporary.write_text("".join(kept), encoding="utf-8")

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a metrics file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
