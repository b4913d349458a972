"""`Ranks`: what a `Trainer` asks of the other processes of its run; one alone asks nothing."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from dynbatch import random
from dynbatch.arguments import refused, shown
from dynbatch.caller import users_frame
from dynbatch.errors import NumericError
from dynbatch.interrupts import Terminated, noted_interrupts
from dynbatch.kernels.arrays import download
from dynbatch.named_parameters import HasParameters
from dynbatch.optim import Optimizer
from dynbatch.parallel import Communicator, balanced, sum_gradients
from dynbatch.parallel.agreement import require_equal
from dynbatch.parallel.connect import connected
from dynbatch.parallel.run_log import tell_launcher
from dynbatch.train.digest import array_digest, data_digest
from dynbatch.train.metrics import Record
from dynbatch.train.protocols import Example
from dynbatch.train.random_states import RandomStates

Value = TypeVar("Value")
Note = TypeVar("Note")
Failure = TypeVar("Failure", bound=BaseException)

FIXES = {
    "number of examples": "give every rank all examples: the Trainer cuts each mini-batch for them",
    "digest of the examples": "make the same examples in the same order on all ranks: draw with a "
    "fixed seed, and\n        sort what comes from a set or a folder, whose order differs between "
    "processes",
}
"""What to do where ranks differ in one value, for which the general advice says too little."""

_require_equal = partial(require_equal, "Trainer", fixes=FIXES)

COUNTS = ("step", "epoch", "sentences", "tokens")
"""What the record of an update has that is the same on all ranks before gradients are summed."""


class UpdateNote(NamedTuple):
    """A rank's note to the others on an update, before gradients are summed.

    Args:
        same:    what must be the same on all ranks, by name.
        drawn:   seeds drawn so far, by graphs and losses.
        ending:  number of the signal that shall end the run, or 0.
        memory:  bytes of its graphs, by name.
        failure: the error of its loss, or None.
    """

    same: dict[str, object]
    drawn: int
    ending: int
    memory: dict[str, int]
    failure: str | None


class Ranks:
    """The processes of a training run, which make the same updates from different sentences.

    Whatever decides an update is the same on all ranks: the mini-batch, the parameters, the sum of
    gradients, the seed of the graph. Each rank differentiates its own shard of the mini-batch. All
    methods but `shard` are called by all ranks, in the same order.

    Args:
        communicator: joins them; None, or one of a single process, for a process alone.

    Attributes:
        is_first: whether this rank writes files, and tells of the run.
        agree:    whether all ranks end between the same two updates; one alone always does.
    """

    def __init__(self, communicator: Communicator | None) -> None:
        if communicator is None and (size := connected()) > 1:
            warnings.warn(
                f"Trainer: {size} processes are connected, and this one trains alone.\n"
                "  fix: communicator=parallel.connect(); or communicator=parallel.Communicator(), "
                "for runs of their own, with a checkpoint_path each",
                stacklevel=users_frame()[1] + 1,
            )
        alone = communicator is None or communicator.size == 1
        self._communicator = None if alone else communicator
        self._noted: list[int] = []
        self._cuts: list[list[list[int]]] = []
        self._ending, self._asked = 0, 0
        self.is_first = communicator is None or communicator.rank == 0
        self.agree = alone

    @property
    def are_many(self) -> bool:
        """Whether there is more than one."""
        return self._communicator is not None

    def begin(
        self, model: HasParameters, generator: np.random.Generator | None,
        deciding: Callable[[], Mapping[str, object]],
    ) -> None:  # fmt: skip
        """Compare the ranks, and take parameters and random states of rank 0.

        Args:
            deciding: gives all else that decides the updates, by name.

        Raises:
            ParallelError: the ranks differ; says in what, and which ones.
        """
        if self._communicator is None:
            return
        parameters = dict(model.named_parameters())
        forms = {
            f"parameter {name!r}": f"{each.dtype}{each.shape}{each.frozen_shown(', ')}"
            for name, each in parameters.items()
        }
        forms |= {
            f"digest of the frozen rows of {name!r}": array_digest(each.row_is_frozen)
            for name, each in parameters.items()
            if each.row_is_frozen is not None
        }
        self.require_same(
            {**forms, **deciding()},
            "all ranks have the same model, optimizer, settings and data",
            "run the same program with the same arguments and files on all of them",
        )
        for parameter in parameters.values():
            self._communicator.broadcast(parameter.value)
        self._communicator.broadcast_object(RandomStates.now(generator)).restore(generator)

    # An update ------------------------------------------------------------------------------------

    def shard(
        self,
        batch: Sequence[Example],
        num_tokens: Callable[[Example], int] | None,
        shards: Callable[[Sequence[Example], int], Sequence[Sequence[int]]] | None,
    ) -> Sequence[int]:
        """The places of this rank's examples in a mini-batch of all ranks; there may be none.

        Raises:
            ArgumentError: `shards` leaves an example out, or has one twice.
        """
        if self._communicator is None:
            return range(len(batch))
        size, rank = self._communicator.size, self._communicator.rank
        if shards is None:
            costs = [1 if num_tokens is None else num_tokens(example) for example in batch]
            return balanced(costs, size)[rank]
        places = [list(each) for each in shards(batch, size)]
        if len(places) != size or sorted(chain.from_iterable(places)) != list(range(len(batch))):
            raise refused(
                "Trainer", f"shards gave {shown(places)} for {len(batch)} examples",
                f"{size} lists, in which each place from 0 to {len(batch) - 1} stands once",
                "parallel.balanced(costs, size) makes such lists",
            )  # fmt: skip
        self._cuts.append(places)
        return places[rank]

    def sum_gradients(
        self, optimizer: Optimizer, record: Record, generator: np.random.Generator | None,
        failure: NumericError | None,
    ) -> None:  # fmt: skip
        """Sum the gradients, and agree on the rest of an update.

        Seeds that a loss drew, of which ranks may draw different numbers, count for all of them.

        Args:
            record:  of the update: counts are compared, and of bytes the most of a rank are taken.
            failure: of this rank's loss.

        Raises:
            NumericError:  this or another rank's loss failed.
            ParallelError: the ranks are not at the same update, or have other parameters.
        """
        if self._communicator is None:
            if failure is not None:
                raise failure
            return
        same: dict[str, object] = {name: record[name] for name in COUNTS if name in record}
        if self._cuts:
            same["digest of shards"] = data_digest(self._cuts)
            self._cuts.clear()
        if generator is not None:
            same["state of random_state"] = str(generator.bit_generator.state)
        drawn, ending = random.get_state(), max(self._noted, default=0)
        memory = {name: taken for name, taken in record.items() if name.endswith("_bytes")}
        said = None if failure is None else str(failure)
        our_note = UpdateNote(same, drawn["count"], ending, memory, said)
        notes = _gathered(self._communicator, our_note)
        _require_equal(
            [note.same for note in notes],
            "batches.epoch(n) gives all ranks the same mini-batches, and a loss draws nothing from "
            "random_state, of which each rank would draw for its own sentences",
            "make batches from the same list; draw by F.dropout, or in PreparedBatches",
        )
        random.set_state({**drawn, "count": max([note.drawn for note in notes])})
        self._ending, self._asked = max([(note.ending, rank) for rank, note in enumerate(notes)])
        for rank, note in enumerate(notes):
            if note.failure is not None:
                raise NumericError(f"rank {rank}: {note.failure}")
            for name, taken in note.memory.items():
                record[name] = max(taken, record.get(name, 0))
        sum_gradients(self._communicator, optimizer)

    def total(self, number: float) -> float:
        """The sum over all ranks."""
        if self._communicator is None:
            return number
        total = np.array([number])
        self._communicator.all_reduce(total)
        return float(total[0])

    # Agreement ------------------------------------------------------------------------------------

    def first(self, value: Value) -> Value:
        """The value of rank 0."""
        if self._communicator is None:
            return value
        first_value: Value = self._communicator.broadcast_object(value)
        return first_value

    def require_same(self, values: Mapping[str, object], rule: str, fix: str) -> None:
        """Compare values by name.

        Raises:
            ParallelError: ranks differ; on all of them.
        """
        if self._communicator is not None:
            texts = {name: str(value) for name, value in values.items()}
            _require_equal(_gathered(self._communicator, texts), rule, fix)

    def require_same_parameters(self, model: HasParameters) -> None:
        """Compare all numbers of a model.

        Raises:
            ParallelError: ranks differ; names a parameter.
        """
        if self._communicator is not None:
            self.require_same(
                {
                    f"digest of {name!r}": array_digest(download(parameter.value))
                    for name, parameter in model.named_parameters()
                },
                "updates alone change a model: running means of models.BatchNorm would be of one "
                "rank's sentences",
                "norm.eval() uses running means as they are; models.LayerNorm has none",
            )

    def wait(self) -> None:
        """Wait until all ranks have come here."""
        if self._communicator is not None:
            self._communicator.barrier()

    # Interrupts -----------------------------------------------------------------------------------

    @contextmanager
    def noting_interrupts(self) -> Iterator[None]:
        """A block in which a signal that ends a run waits until all ranks know of it.

        One process does as several do: inside a finalizer, which may run at any line, Python drops
        what a signal raises.
        """
        self._noted.clear()
        self.agree = self._communicator is None
        with noted_interrupts(self._noted):
            yield

    def raise_interrupt(self) -> None:
        """End the run, after a whole update or epoch, if a signal came to any rank before it.

        Raises:
            KeyboardInterrupt, Terminated: on all ranks.
        """
        if self._communicator is None:
            self._ending = max(self._noted, default=0)
        if self._ending:
            number, self._ending, self.agree = self._ending, 0, True
            self._noted.clear()
            is_key = number == signal.SIGINT
            if self._communicator is not None:
                tell_launcher(
                    f"rank {self._asked} was asked to end by signal {number} "
                    f"({signal.Signals(number).name})", self._asked
                )  # fmt: skip
            raise self.on_all(KeyboardInterrupt() if is_key else Terminated(number))

    def on_all(self, error: Failure) -> Failure:
        """An error that all ranks raise, so that none is told of another's."""
        if self._communicator is not None:
            error.on_all_ranks = True  # type: ignore[attr-defined]
        return error


def _gathered(communicator: Communicator, own: Note) -> list[Note]:
    """Notes of all ranks, of one type.

    Raises:
        ParallelError: some are at an update, and others have no mini-batches any more.
    """
    gathered: list[Note] = communicator.gather_objects(own)
    _require_equal(
        [
            {"mini-batches left": "some" if isinstance(each, UpdateNote) else "none"}
            for each in gathered
        ],
        "batches.epoch(n) gives all ranks as many mini-batches",
        "make batches from the same list",
    )
    return gathered
