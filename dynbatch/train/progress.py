"""`Progress`: one bar over all epochs of a training run, with the time left of the whole."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, suppress
from textwrap import fill
from typing import Any

from dynbatch.kernels.backends import without_c
from dynbatch.parameter import Parameter
from dynbatch.train.metrics import Record

FORMAT = "{desc} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
ENDLESS_FORMAT = "{desc} {n} batches{postfix}"
"""The number of batches is not known where they come from a generator."""

COLUMNS = 80

NOT_SAVED = "nothing is saved, as there is no checkpoint_path."
"""What is told of an interrupted run that is saved nowhere."""


class Progress:
    """A progress bar of at most 80 columns on standard error.

    It counts mini-batches of all epochs together, so that the time left is that of the run; epochs
    that have not begun are taken to be as long as the present one. Beside it stand the loss in
    nats, tokens per second of training where tokens are counted, sentences where they are not, and
    the memory of a mini-batch beside what it would take padded. The first update is slower than all
    others, since it compiles and loads: neither speed nor time left has it, once a second is done.

    Args:
        num_epochs: at the end of the run.
        is_shown:   whether anything is printed.
    """

    def __init__(self, num_epochs: int, is_shown: bool) -> None:
        self._num_epochs = num_epochs
        self._begin = self._advanced = time.perf_counter()
        self._done = 0
        self._is_first = True
        self._memory = ""
        self._is_shown = is_shown
        self._bar: Any = None  # of tqdm, once there is one

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def begin_epoch(self, epoch: int, position: int, num_batches: int) -> None:
        """Show the running epoch.

        Args:
            epoch:       counted from 0.
            position:    its mini-batches that are done.
            num_batches: all of them, or 0 if nobody knows, as of a generator.
        """
        name = f"epoch {epoch + 1}/{self._num_epochs}"
        self._begin += time.perf_counter() - self._advanced  # validation is no training
        if not self._is_shown:
            return
        if self._bar is None:
            self._bar = _tqdm()(
                desc=name,
                total=num_batches * self._num_epochs or None,
                initial=num_batches * epoch + position,
                bar_format=FORMAT if num_batches else ENDLESS_FORMAT,
                ncols=COLUMNS,
                smoothing=0,  # a validation or a checkpoint counts by its share of the time
            )
            return
        self._bar.set_description_str(name, refresh=False)
        if num_batches:
            self._bar.total = self._bar.n + num_batches * (self._num_epochs - epoch)

    def advance(self, num_sentences: int, record: Record, num_batches: int = 1) -> None:
        """Count the mini-batches of one update.

        Args:
            num_sentences: all of theirs.
            record:        what the last finished update said about itself; it may be empty.
            num_batches:   of the update.
        """
        self._advanced = time.perf_counter()
        self._done += record.get("tokens", num_sentences) if record else 0
        if self._bar is None:
            return
        if "planned_bytes" in record:
            self._memory = f", {memory_text(record)}"
        loss = f"loss {record['loss']:.3f}, " if record else ""
        speed = self._done / max(1e-9, self._advanced - self._begin)
        unit = "tok" if "tokens" in record else "sent"
        self._bar.set_postfix_str(f"{loss}{speed:,.0f} {unit}/s{self._memory}", refresh=False)
        if self._is_first:
            self._leave_out(num_batches)
        self._bar.update(num_batches)

    def _leave_out(self, num_batches: int) -> None:
        """Count speed and time left from here on, behind so many mini-batches."""
        assert self._bar is not None
        self._is_first, self._done, self._begin = False, 0, self._advanced
        self._bar.initial += num_batches
        self._bar.unpause()


def _tqdm() -> Any:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            f"a progress bar needs tqdm, which is not installed ({error}).\n"
            "  fix:  pip install tqdm, or show_progress=False"
        ) from error
    return tqdm


def tell(text: str) -> None:
    """Print on standard error, if it is still there: SIGHUP says that the terminal is gone."""
    bars = sys.modules.get("tqdm")  # make room for a line, where there are any
    with suppress(OSError), bars.tqdm.external_write_mode(sys.stderr) if bars else nullcontext():
        print(text, file=sys.stderr)


def tell_backend(parameter: Parameter) -> None:
    """Say why NumPy runs in place of C, where a run on the CPU has to do without."""
    if not parameter.device.is_cuda and (line := without_c()):
        print(fill(f"dynbatch: {line}", COLUMNS), file=sys.stderr)


def memory_text(record: Record) -> str:
    """The peak of an update, beside the padded one where it is known.

    Example:
        >>> memory_text({"peak_bytes": 2_000_000, "padded_bytes": 8_120_000})
        '2 MB, padded 8.12'
    """
    unit, name = (1e9, "GB") if record["peak_bytes"] >= 1e9 else (1e6, "MB")
    padded = f", padded {record['padded_bytes'] / unit:.3g}" if "padded_bytes" in record else ""
    return f"{record['peak_bytes'] / unit:.3g} {name}{padded}"
