"""`RunRecords`: where a run's records go: the metrics file, TensorBoard's, a function."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from dynbatch.train.event_files import EventFiles
from dynbatch.train.metrics import MetricsFile, Record, finite


class RunRecords:
    """Writes each record to every place that was asked for, and cuts what a resumed run repeats."""

    def __init__(
        self,
        metrics_path: str | os.PathLike[str] | None,
        tensorboard: str | os.PathLike[str] | None,
        on_record: Callable[[Record], object] | None = None,
    ) -> None:
        self._places = (MetricsFile(metrics_path), EventFiles(tensorboard))
        self._on_record = on_record
        self._untold: deque[Record] = deque()

    def write(self, *records: Record) -> None:
        """Append records.

        Raises:
            DataError: a file cannot be written.
        """
        for record in records:
            for file in self._places:
                file.write(record)
        if self._on_record is not None:
            self._untold.extend(records)

    def tell(self) -> None:
        """Call `on_record` with each record that is written and that it has not had yet.

        What it raises comes out of here, and costs no other record: they wait for the next call.
        """
        while self._on_record is not None and self._untold:
            record = finite(self._untold.popleft())
            assert isinstance(record, dict)
            self._on_record(record)

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
        self._untold = deque(filter(is_done, self._untold))

    def close(self) -> None:
        """Close the files; the next record opens them again."""
        for file in self._places:
            file.close()
