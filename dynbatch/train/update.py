"""`Update`: one update of training, whose numbers a GPU may still be working on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan

from dynbatch import nodes as F
from dynbatch.arguments import refused, shown
from dynbatch.errors import NumericError
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node
from dynbatch.optim import GradientNorm, clip_grad_norm_
from dynbatch.train.advisor import Advisor
from dynbatch.train.metrics import PARAMETERS, Record
from dynbatch.train.moment import Moment
from dynbatch.train.protocols import Example
from dynbatch.train.ranks import Ranks
from dynbatch.train.settings import TrainerSettings
from dynbatch.train.watch import Watched

CALL = "loss_function(graph, model, example)"
CALL_OF_BATCH = "loss_function(graph, model, examples)"


@dataclass(slots=True)
class Update:
    """One update's loss and gradients, and what the metrics file says about them.

    Args:
        record:        the line of the metrics file; `read` fills in `loss` and `gradient_norm`.
        losses:        of its mini-batches, after backward; their sum is this rank's loss.
        norm:          of all gradients, before clipping.
        num_batches:   of all ranks.
        ranks:         of the run.
        moment:        random states and buffers after its loss, where the next update begins.
        begun:         when it began, of `time.perf_counter`.
        watched:       statistics of the parameters, if it is the update's turn.
    """

    record: Record
    losses: list[Node]
    norm: float | GradientNorm
    num_batches: int
    ranks: Ranks
    moment: Moment
    begun: float
    watched: Watched | None = None

    @property
    def is_on_device(self) -> bool:
        """Whether reading would wait for a GPU."""
        return isinstance(self.norm, GradientNorm)

    def read(self) -> None:
        """Read the loss and the norm; on a GPU this waits for them.

        Raises:
            NumericError: one is NaN or infinite.
        """
        if isinstance(self.norm, GradientNorm):
            self.norm.was_read = True  # whatever is wrong with it is told here
            self.norm.is_finite()  # waits: then all ranks that say their loss have summed gradients
        total = sum([float(loss.value) for loss in self.losses])
        self.record["loss"] = self.ranks.total(total)
        if not isfinite(self.record["loss"]):
            raise NumericError(f"the loss is {self.record['loss']}.")
        self.record["gradient_norm"] = float(self.norm)

    def apply(self, settings: TrainerSettings) -> None:
        """Change the parameters, and with them their mean and what is watched."""
        self.record["lr"] = float(settings.optimizer.lr)
        settings.optimizer.step()
        if settings.average is not None:
            settings.average.update(self.norm if isinstance(self.norm, GradientNorm) else None)
        if self.watched is not None:
            self.watched.updated()
        seconds = time.perf_counter() - self.begun
        self.record["sentences_per_second"] = round(self.record["sentences"] / seconds, 1)

    def records(self) -> list[Record]:
        """The update's lines of the metrics file."""
        if self.watched is None:
            return [self.record]
        at = {name: self.record[name] for name in ("step", "epoch")}
        return [self.record, {**at, PARAMETERS: self.watched.statistics()}]


def differentiate(
    settings: TrainerSettings, batches: Sequence[Sequence[Example]], step: int, epoch: int,
    advisor: Advisor,
) -> Update:  # fmt: skip
    """Compute the loss of an update's mini-batches and its gradients, and clip these.

    Each mini-batch has a graph of its own, which is gone before the next one begins. All losses are
    divided by the same count, that of all ranks, so that the gradients add up to those of one large
    mini-batch. Each rank differentiates its shard of every mini-batch.

    Raises:
        NumericError: the loss or a gradient is NaN or infinite; on a GPU `Update.read` raises it.
    """
    begun = time.perf_counter()
    sentences = count = sum(map(len, batches))
    record: Record = {"step": step, "epoch": epoch, "sentences": sentences}
    if settings.num_tokens is not None:
        record["tokens"] = count = _tokens_of(settings.num_tokens, batches)
    record |= {"loss": nan, "peak_bytes": 0}  # read later; here for their places in the line
    losses, failure = [], None
    try:
        for batch in batches:
            losses += _add_gradients(settings, batch, max(1, count), record, advisor)
    except NumericError as error:
        failure = error
    settings.ranks.sum_gradients(settings.optimizer, record, settings.random_state, failure)
    record["gradient_norm"] = nan
    is_watched = settings.watch is not None and (step - 1) % settings.watch == 0
    is_watched = is_watched and settings.ranks.is_first
    watched = Watched(settings.optimizer) if is_watched else None
    limit = inf if settings.clip_norm is None else settings.clip_norm
    norm = clip_grad_norm_(settings.optimizer, limit)
    return Update(
        record, losses, norm, len(batches), settings.ranks, settings.moment(), begun, watched
    )


def _tokens_of(num_tokens: Callable[[Example], int], batches: Sequence[Sequence[Example]]) -> int:
    count = 0
    try:
        for example in [example for batch in batches for example in batch]:
            count += num_tokens(example)
    except TypeError as error:
        _note_call(error, "num_tokens(example)", example)
        raise
    return count


def _add_gradients(
    settings: TrainerSettings, batch: Sequence[Example], count: int, record: Record,
    advisor: Advisor,
) -> list[Node]:  # fmt: skip
    """Add the gradients of this rank's shard of a mini-batch; memory goes into the record.

    Returns:
        Its part of the loss; none of a shard without examples, whose graph still takes a seed.
    """
    with settings.graph() as graph:
        places = settings.ranks.shard(batch, settings.num_tokens, settings.shards)
        if not places:
            return []
        losses = _losses(settings, graph, batch, places)
        loss = F.sum(losses) / count
        shard = [batch[number] for number in places]
        memory = _planned_memory(settings, record["step"], graph, loss, shard)
        graph.backward(loss, settings.memory_limit)
        memory["peak_bytes"] = graph.peak_bytes
    advisor.note(graph)
    for name, taken in memory.items():
        record[name] = max(taken, record.get(name, 0))
    return [loss]


def _losses(
    settings: TrainerSettings, graph: Graph, batch: Sequence[Example], places: Sequence[int]
) -> list[Node]:
    """The loss of each example; an error of a method of the model says how it was called.

    Dropout follows from an example's place in the mini-batch too: equal sentences have masks of
    their own, whichever rank they are on.
    """
    loss = settings.loss_function
    call, argument = CALL_OF_BATCH if settings.loss_of_batch else CALL, batch
    try:
        if settings.loss_of_batch:
            return _of_each(loss(graph, settings.model, batch), batch)
        losses = []
        for number in places:
            argument = batch[number]
            with graph.example(number):
                losses.append(loss(graph, settings.model, argument))
        return losses
    except Exception as error:
        if isinstance(error, TypeError):
            _note_call(error, call, argument)
        if getattr(loss, "__self__", None) is settings.model:
            error.add_note(
                f"Trainer calls {CALL}, and it is {loss.__name__} of "
                f"the model.\n  fix: lambda graph, model, example: model.{loss.__name__}(graph, "
                "*example)"
            )
        raise


def _note_call(error: TypeError, call: str, argument: object) -> None:
    last = call[:-1].rpartition(", ")[2].rpartition("(")[2]
    error.add_note(
        f"Trainer calls {call}, and {last} is {shown(argument)}.\n"
        "  fix: write the function for such examples; *example takes a tuple apart, and a "
        "function\n       of a whole mini-batch needs loss_of_batch=True"
    )


def _of_each(losses: object, batch: Sequence[Example]) -> list[Node]:
    if not isinstance(losses, list | tuple) or len(losses) != len(batch):
        number = f"{len(losses)} losses" if isinstance(losses, list | tuple) else shown(losses)
        raise refused(
            "Trainer", f"loss_function returned {number} for {len(batch)} examples",
            "with loss_of_batch=True it returns a list, one scalar node an example",
            "return [loss of each example]; the Trainer takes their mean",
        )  # fmt: skip
    return list(losses)


def _planned_memory(
    settings: TrainerSettings, step: int, graph: Graph, loss: Node, batch: Sequence[Example]
) -> dict[str, int]:
    """The peak as it is planned, and as it would be padded, for every `memory_every`-th update."""
    if (step - 1) % settings.memory_every:
        return {}
    planned = {"planned_bytes": graph.estimate(loss, settings.memory_limit).peak_bytes}
    if settings.padded_bytes is not None:
        planned["padded_bytes"] = int(settings.padded_bytes(batch))
    return planned
