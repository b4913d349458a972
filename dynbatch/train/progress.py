"""`Progress`: one bar over all epochs of a training run, with the time left of the whole."""

from __future__ import annotations

import time
from operator import length_hint
from types import TracebackType

from tqdm import tqdm

from dynbatch.train.metrics import Record
from dynbatch.train.protocols import Batches

FORMAT = "{desc} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
ENDLESS_FORMAT = "{desc} {n} batches{postfix}"
"""The number of batches is not known where they come from a generator."""

COLUMNS = 80


class Progress:
    """A progress bar of at most 80 columns on standard error.

    It counts mini-batches of all epochs together, so that the time left is that of the run. Beside
    it stand the loss in nats, sentences per second since this `fit` began, and the memory of a
    mini-batch beside what it would take padded.

    Args:
        batches:    gives the number of mini-batches of an epoch as `batches.num_batches(epoch)`;
                    without that method all epochs are taken to be as long as the first one.
        num_epochs: at the end of the run.
        epoch:      from which the run goes on, counted from 0.
        position:   mini-batches of that epoch that are done.
    """

    def __init__(
        self, batches: Batches, num_epochs: int, epoch: int, position: int, is_shown: bool
    ) -> None:
        self._num_epochs = num_epochs
        self._begin = time.perf_counter()
        self._sentences = 0
        self._memory = ""
        lengths = _lengths(batches, num_epochs) if is_shown else []
        total = sum(lengths)
        self._bar = tqdm(
            desc=self._named(epoch),
            total=total or None,
            initial=min(total, sum(lengths[:epoch]) + position),
            bar_format=FORMAT if total else ENDLESS_FORMAT,
            ncols=COLUMNS,
            disable=not is_shown,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def begin_epoch(self, epoch: int) -> None:
        """Say which epoch is running."""
        self._bar.set_description_str(self._named(epoch), refresh=False)

    def _named(self, epoch: int) -> str:
        return f"epoch {epoch + 1}/{self._num_epochs}"

    def advance(self, num_sentences: int, record: Record) -> None:
        """Count one mini-batch.

        Args:
            num_sentences: sentences of the mini-batch.
            record:        what the last finished update said about itself; it may be empty.
        """
        self._sentences += num_sentences
        if self._bar.disable:
            return
        if "planned_bytes" in record:
            self._memory = f", {memory_text(record)}"
        loss = f"loss {record['loss']:.3f}, " if record else ""
        speed = self._sentences / (time.perf_counter() - self._begin)
        self._bar.set_postfix_str(f"{loss}{speed:.0f} sent/s{self._memory}", refresh=False)
        self._bar.update()


def memory_text(record: Record) -> str:
    """The peak of an update, beside the padded one where it is known.

    Example:
        >>> memory_text({"peak_bytes": 2_000_000, "padded_bytes": 8_120_000})
        '2 MB, padded 8.12'
    """
    unit, name = (1e9, "GB") if record["peak_bytes"] >= 1e9 else (1e6, "MB")
    padded = f", padded {record['padded_bytes'] / unit:.3g}" if "padded_bytes" in record else ""
    return f"{record['peak_bytes'] / unit:.3g} {name}{padded}"


def _lengths(batches: Batches, num_epochs: int) -> list[int]:
    """Mini-batches of each epoch; none where nobody knows."""
    counted = getattr(batches, "num_batches", None)
    if counted is not None:
        return [counted(epoch) for epoch in range(num_epochs)]
    return [length_hint(batches.epoch(0), 0)] * num_epochs
