"""`RunRecords`: where a run's records go, the metrics file and TensorBoard's event files."""

from __future__ import annotations

import os

from dynbatch.train.event_files import EventFiles
from dynbatch.train.metrics import MetricsFile, Record


class RunRecords:
    """Writes each record to every place that was asked for, and cuts what a resumed run repeats."""

    def __init__(
        self,
        metrics_path: str | os.PathLike[str] | None,
        tensorboard: str | os.PathLike[str] | None,
    ) -> None:
        self._places = (MetricsFile(metrics_path), EventFiles(tensorboard))

    def write(self, *records: Record) -> None:
        """Append records.

        Raises:
            DataError: a file cannot be written.
        """
        for record in records:
            for file in self._places:
                file.write(record)

    def keep_before(self, step: int, epoch: int) -> None:
        """Keep what tells of updates up to `step` and of validations of epochs before `epoch`.

        Raises:
            DataError: the metrics file is damaged, or cannot be written.
        """

        def is_done(record: Record) -> bool:
            if "metric" in record:
                return bool(record["epoch"] < epoch)
            return bool(record["step"] <= step)

        for file in self._places:
            file.keep(is_done)

    def close(self) -> None:
        """Close the files; the next record opens them again."""
        for file in self._places:
            file.close()
