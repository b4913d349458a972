"""Mini-batches whose examples are read, decoded or augmented ahead of training, by workers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from dynbatch.arguments import function, refused, shown, size, switch
from dynbatch.backend import Array
from dynbatch.names import NamesChecked
from dynbatch.train.batching import SentenceBatches, TokenBatches, epoch_key

Raw = TypeVar("Raw")
Prepared = TypeVar("Prepared")
Prepare = Callable[[Raw, np.random.Generator], Prepared]

_STREAM = 0x70726570  # keeps an example's numbers apart from those of `epoch_order`


class PreparedBatches(NamesChecked, Generic[Raw, Prepared]):
    """Mini-batches of `prepare(example, rng)` for each example of other mini-batches, made ahead.

    Workers make the next mini-batches while the present one trains. Batches and examples come in
    the order of `batches`, and `rng` follows from the seed, the epoch and the example's place in
    the list: numbers are the same for any number of workers, threads or processes, and after
    resuming.

    Args:
        batches:   `SentenceBatches` or `TokenBatches`, whose examples may be names of files.
        prepare:   prepare(example, rng) -> the example that the loss function takes; `rng` is a
                   NumPy generator, for augmentation.
        workers:   threads or processes; 0 prepares in the training's own thread.
        processes: whether workers are processes. Threads share memory, and suit NumPy, files and
                   decoders in C; Python code of its own runs in one thread at a time. A process
                   imports the program anew, gets examples pickled, and `prepare` is a function at
                   the top of a module. Such a program begins in `if __name__ == "__main__":`.
        ahead:     mini-batches that are made ahead, for all workers together; twice as many as
                   workers by default.

    With a `communicator` every process prepares whole mini-batches, its own shard and all others:
    shards are cut by the tokens of prepared examples, and the loss is divided by those of all of
    them. `prepare` may change both, so that nobody knows them before. What takes long and is the
    same in every epoch is better done once, before training.

    An error in `prepare` is raised where its mini-batch is taken, after all before it; a note of
    the error has the example's place. Workers end with the epoch, with an error, and with Ctrl-C,
    which processes leave to the training.

    Raises:
        ArgumentError: a number is below 0, `prepare` is not a function of two arguments, or, for
            processes, cannot be pickled.

    Example:
        >>> from dynbatch.train import PreparedBatches, SentenceBatches
        >>> def shifted(number, rng):
        ...     return number + 100
        >>> plain = SentenceBatches([1, 2, 3], batch_size=2)
        >>> batches = PreparedBatches(plain, shifted, workers=2)
        >>> list(plain.epoch(0))
        [[1, 3], [2]]
        >>> list(batches.epoch(0))
        [[101, 103], [102]]
    """

    def __init__(
        self,
        batches: SentenceBatches[Raw] | TokenBatches[Raw],
        prepare: Prepare[Raw, Prepared],
        *,
        workers: int = 2,
        processes: bool = False,
        ahead: int | None = None,
    ) -> None:
        if not isinstance(batches, SentenceBatches | TokenBatches):
            raise refused(
                type(self).__name__, f"batches is {shown(batches)}",
                "mini-batches with the examples' places", "give SentenceBatches(files, batch_size)",
            )  # fmt: skip
        function(self, "prepare", prepare, "prepare(example, rng) -> example")
        self.batches = batches
        self.prepare = prepare
        self.workers = size(self, "workers", workers, 0)
        self.processes = switch(self, "processes", processes)
        self.ahead = 2 * self.workers if ahead is None else size(self, "ahead", ahead, 1)
        if self.processes:
            self._require_pickled()

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def num_batches(self, epoch: int) -> int:
        """Number of batches in an epoch."""
        return self.batches.num_batches(epoch)

    def summary(self) -> dict[str, int | str]:
        """The settings and a digest of the examples before they are prepared."""
        return self.batches.summary()

    def epoch(self, epoch: int) -> PreparedEpoch[Prepared]:
        """The batches of one epoch, one after the other; workers begin when the first is taken."""
        return PreparedEpoch(self, epoch)

    def _require_pickled(self) -> None:
        try:
            pickle.dumps(self.prepare)
        except Exception as error:
            raise refused(
                type(self).__name__, f"prepare cannot be pickled ({error})",
                "processes import prepare by its name",
                "a function at the top of a module, or processes=False",
            ) from error  # fmt: skip


class PreparedEpoch(Generic[Prepared]):
    """The mini-batches of one epoch of `PreparedBatches`, each of which is given once."""

    def __init__(self, batches: PreparedBatches[Any, Prepared], epoch: int) -> None:
        self._owner = batches
        self._epoch = epoch
        self._batches = batches.batches.indices(epoch)
        self._position = 0
        self._made: Generator[list[Prepared]] | None = None

    def __length_hint__(self) -> int:
        return len(self._batches) - self._position

    def __iter__(self) -> Iterator[list[Prepared]]:
        return self

    def __next__(self) -> list[Prepared]:
        if self._made is None:
            self._made = self._make()
        made = next(self._made)
        self._position += 1
        return made

    def skip(self, count: int) -> None:
        """Leave out the first mini-batches, unprepared, as where a run resumes."""
        self._position += count

    def close(self) -> None:
        """End the workers; what they are making now is made first, and lost."""
        if self._made is not None:
            self._made.close()

    def _make(self) -> Generator[list[Prepared]]:
        owner, rest = self._owner, iter(self._batches[self._position :])
        key = epoch_key(owner.batches.seed, self._epoch)
        if not owner.workers:
            for batch in rest:
                yield _prepare_all(owner.prepare, key, *self._named(batch))
            return
        workers = _pool(owner.workers, owner.processes)
        waiting: deque[Future[list[Prepared]]] = deque()

        def begin(count: int) -> None:
            for batch in islice(rest, count):
                named = self._named(batch)
                waiting.append(workers.submit(partial(_prepare_all, owner.prepare, key, *named)))

        try:
            begin(owner.ahead)
            while waiting:
                made = waiting.popleft().result()
                begin(1)
                yield made
        finally:
            workers.shutdown(wait=True, cancel_futures=True)

    def _named(self, batch: list[int]) -> tuple[list[int], list[Any]]:
        return batch, [self._owner.batches.examples[index] for index in batch]


@contextmanager
def started(batches: Iterable[Any], position: int) -> Iterator[Iterator[Any]]:
    """An epoch's mini-batches from `position` on; workers that make them end with the block."""
    if isinstance(batches, PreparedEpoch):
        batches.skip(position)
        with closing(batches):
            yield iter(batches)
    elif isinstance(batches, Sequence):  # those before are not even read
        yield iter(batches[position:])
    else:
        yield islice(batches, position, None)


def _prepare_all(
    prepare: Prepare[Raw, Prepared], key: Array, indices: Sequence[int], examples: Sequence[Raw]
) -> list[Prepared]:
    """A mini-batch; an error gets a note of the example's place."""
    made = []
    for index, example in zip(indices, examples, strict=True):
        stream = np.random.Philox(key=key, counter=[0, 0, _STREAM, index])
        try:
            made.append(prepare(example, np.random.Generator(stream)))
        except Exception as error:
            error.add_note(f"prepare(example, rng) raised it for example {index} of the list.")
            raise
    return made


def _pool(workers: int, processes: bool) -> Executor:
    if not processes:
        return ThreadPoolExecutor(workers, thread_name_prefix="prepare")
    # Not a fork: the training has threads, whose locks a copy would keep forever.
    from concurrent.futures import ProcessPoolExecutor  # which a browser lacks

    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    return ProcessPoolExecutor(workers, context, _leave_interrupts)


def _leave_interrupts() -> None:
    """Ctrl-C goes to all processes of a terminal; the training ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
