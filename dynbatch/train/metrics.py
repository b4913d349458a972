"""The metrics file: one JSON object per line, flushed at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dynbatch.arguments import is_count, is_number, refused
from dynbatch.atomic import remove_leftover, replacing
from dynbatch.errors import DataError

Record = dict[str, Any]

PARAMETERS = "parameters"
"""What a line about watched parameters has beside its step: their statistics by name."""


METRICS = "metrics"
"""What a line about a validation has beside its metric, where it has a name: metrics by name."""


def validated(measures: float | Mapping[str, float]) -> Record:
    """A validation's part of a line: the metric that decides which model is
    best; and by name, where there are names, all of them, of which the first one decides.

    Raises:
        ArgumentError: there is none.

    Example:
        >>> validated({"exact match": 0.5, "BLEU": 61.3})
        {'metric': 0.5, 'metrics': {'exact match': 0.5, 'BLEU': 61.3}}
    """
    if not isinstance(measures, Mapping):
        return {"metric": float(measures)}
    named = {str(name): float(value) for name, value in measures.items()}
    if not named:
        raise refused(
            "Trainer", "validate gave no metric", "the first of those by name tells the best model",
            'return a number, or {"accuracy": 0.9}',
        )  # fmt: skip
    return {"metric": next(iter(named.values())), METRICS: named}


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
        """Append one record; numbers that are not finite are written as null.

        Raises:
            DataError: the file cannot be written.
        """
        if self._path is None:
            return
        with _writing(self._path):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self._path, "a", encoding="utf-8", newline="\n")
            self._file.write(json.dumps(finite(record)))
            self._file.write("\n")
            self._file.flush()

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        """Remove the records that are not wanted, and a last line that was cut short.

        The file is made if there is none, so that it is known from here on that it can be written.

        Raises:
            DataError: a line is not a record of a training run, or the file cannot be written.
        """
        self.close()
        if self._path is None:
            return
        with _writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            open(self._path, "ab").close()
            remove_leftover(self._path)
        lines = _whole_lines(self._path)
        kept = [line for line, record in lines if wanted(record)]
        text = b"".join([line + b"\n" for line in kept])
        if text != self._path.read_bytes():
            with _writing(self._path), replacing(self._path) as temporary:
                temporary.write_bytes(text)

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with _writing(self._path):
                file.close()


def read_metrics(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a metrics file; a last line that was cut short is left out.

    Raises:
        DataError: it cannot be read, or a line is not a record. Names file and line.
    """
    return [record for _, record in _whole_lines(Path(path))]


def _whole_lines(path: Path) -> list[tuple[bytes, Record]]:
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    return [(line, _record(f"{path}:{number}", line)) for number, line in enumerate(lines, 1)]


def _record(where: str, line: bytes) -> Record:
    """One line as a record: numbers by name, with the update they tell of."""
    try:
        record = json.loads(line)
        if _is_record(record):
            return dict(record)
    except (ValueError, RecursionError):
        pass
    raise DataError(
        f"{where}: not a line of a metrics file.\n"
        f"  line: {line[:60].decode('utf-8', 'replace')!r}\n"
        '  rule: each line is a JSON object with the update it tells of, {"step": 3, …};\n'
        "        one with a metric names its epoch, too\n"
        "  fix:  remove the line, or move the file away: a run that goes on begins a new one"
    )


def _is_record(value: object) -> bool:
    if not isinstance(value, dict) or not is_count(value.get("step")):
        return False
    is_complete = "metric" not in value or is_count(value.get("epoch"))
    watched, named = value.get(PARAMETERS, {}), value.get(METRICS, {})
    return (
        is_complete
        and isinstance(watched, dict)
        and all([isinstance(each, dict) and _has_numbers(each) for each in watched.values()])
        and isinstance(named, dict)
        and _has_numbers(named)
        and _has_numbers({k: each for k, each in value.items() if k not in (PARAMETERS, METRICS)})
    )


def _has_numbers(value: dict[str, object]) -> bool:
    return all(each is None or isinstance(each, bool) or is_number(each) for each in value.values())


@contextmanager
def _writing(path: Path | None) -> Iterator[None]:
    """Raise a DataError where the system does not let the file be written."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: the metrics cannot be written: {error.strerror}.\n"
            "  fix: free space on the disk, or give a folder that can be written."
        ) from error


def finite(value: object) -> object:
    """A value for JSON, which has no numbers but finite ones: others are None in it, at any depth.

    Example:
        >>> finite({"loss": float("nan"), "log_probs": (-1.5, float("-inf"))})
        {'loss': None, 'log_probs': [-1.5, None]}
    """
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
