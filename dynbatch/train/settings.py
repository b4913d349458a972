"""Checks the arguments of a `Trainer` when it is made, not after the first epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dynbatch.arguments import function, number, refused, shown, size, switch
from dynbatch.errors import ArgumentError
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL, of_values
from dynbatch.memory.sizes import parse_bytes
from dynbatch.names import NamesChecked
from dynbatch.optim import Average, Optimizer, Schedule
from dynbatch.parallel import Communicator
from dynbatch.parameter import ModelBuffer
from dynbatch.train.checkpoint import frozen_of, require_trained
from dynbatch.train.checkpoint_file import safetensors
from dynbatch.train.digest import data_digest
from dynbatch.train.metrics import Record
from dynbatch.train.moment import Moment
from dynbatch.train.protocols import Batches, Example, TrainedModel
from dynbatch.train.ranks import Ranks
from dynbatch.train.run_folder import best_of

# How each function is called.
FUNCTIONS = {
    "loss_function": "loss_function(graph, model, example) -> scalar node, with loss_of_batch=True "
    "(graph, model, examples) -> list of them",
    "num_tokens": "num_tokens(example) -> tokens",
    "validate": "validate(model) -> metric, or metrics by name",
    "padded_bytes": "padded_bytes(batch) -> bytes",
    "on_record": "on_record(record), a dict of a line of the metrics file",
    "make_graph": "make_graph() -> Graph",
    "shards": "shards(batch, size) -> for each of size processes, the places of its examples",
}
# The least that each count may be.
COUNTS = {
    "accumulate": 1,
    "memory_every": 1,
    "watch": 1,
    "advise_after": 1,
    "checkpoint_every": 0,
    "patience": 0,
}
NEEDED = ("accumulate", "memory_every")
# What all ranks of a run have in common, beside model and data.
COMMON = (
    "accumulate", "checkpoint_every", "clip_norm", "higher_is_better", "memory_every", "patience",
    "precision",
)  # fmt: skip


@dataclass
class TrainerSettings(NamesChecked):
    """The arguments of `Trainer`, which explains them.

    Raises:
        ArgumentError: one is not what it must be.
        ValueError:    `patience` or the schedule needs a metric, and there is no `validate`.
    """

    model: TrainedModel
    optimizer: Optimizer
    loss_function: Callable[[Graph, Any, Any], Any]
    batches: Batches
    _: KW_ONLY
    loss_of_batch: bool = False
    num_tokens: Callable[[Example], int] | None = None
    accumulate: int = 1
    schedule: Schedule | None = None
    clip_norm: float | None = None
    average: Average | None = None
    validate: Callable[[Any], float | Mapping[str, float]] | None = None
    higher_is_better: bool = False
    patience: int | None = None
    checkpoint_path: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    metrics_path: str | os.PathLike[str] | None = None
    tensorboard: str | os.PathLike[str] | None = None
    on_record: Callable[[Record], object] | None = None
    memory_limit: int | str | None = None
    padded_bytes: Callable[[Sequence[Example]], int] | None = None
    memory_every: int = 20
    watch: int | None = None
    advise_after: int | None = None
    random_state: np.random.Generator | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    save_frozen: bool = True
    other_data: Mapping[str, object] = field(default_factory=dict)
    precision: str = FULL
    make_graph: Callable[[], Graph] | None = None
    communicator: Communicator | None = None
    shards: Callable[[Sequence[Example], int], Sequence[Sequence[int]]] | None = None
    show_progress: bool = True
    resume_hint: str = "trainer.resume(), then trainer.fit(num_epochs)"

    @property
    def best_path(self) -> Path | None:
        """Checkpoint of the best validation: `run.best.safetensors` beside `run.safetensors`."""
        return None if self.checkpoint_path is None else best_of(self.checkpoint_path)

    def averaged(self) -> AbstractContextManager[None]:
        """A block in which the model has its mean weights, if the run averages them."""
        return nullcontext() if self.average is None else self.average.applied()

    def deciding(self) -> dict[str, object]:
        """Settings that decide the updates beside model and data, by name."""
        parts = {"optimizer": self.optimizer, "schedule": self.schedule}
        states = {
            f"state of the {name}": data_digest(part.state_dict())
            for name, part in parts.items()
            if part is not None
        }
        optional = ("num_tokens", "shards", "schedule", "average", "validate", "random_state")
        return {
            **{name: getattr(self, name) for name in COMMON},
            **{name: type(getattr(self, name)).__name__ for name in ("optimizer", *optional)},
            **self._rates(),
            **states,
        }

    def _rates(self) -> dict[str, object]:
        """The numbers that optimizer and schedule were made with: of a digest nobody learns which
        of them differs."""
        groups = self.optimizer.groups
        owners = [f"group {k} of the optimizer" for k in range(len(groups))]
        named: dict[str, object] = {
            f"{name} of {owner}": value
            for owner, group in zip(
                owners if groups[1:] else ["the optimizer"], groups, strict=True
            )
            for name, value in {"lr": group.lr, **vars(group)}.items()
            if not name.startswith("_") and isinstance(value, int | float | tuple)
        }
        state = {} if self.schedule is None else self.schedule.state_dict()
        return named | {f"{name} of the schedule": value for name, value in state.items()}

    def moment(self) -> Moment:
        return Moment.now(self._buffers, self.random_state)

    def __post_init__(self) -> None:
        self._check_types()
        self.ranks = Ranks(self.communicator)
        self.rounding: dict[str, object] = {}
        self._buffers = [p for _, p in self.model.named_parameters() if isinstance(p, ModelBuffer)]
        needs_metric = self.schedule is not None and self.schedule.needs_metric
        if self.validate is None and (self.patience is not None or needs_metric):
            what = "patience" if self.patience is not None else type(self.schedule).__name__
            raise ValueError(f"Trainer: {what} needs a metric.\n  fix: give validate=...")
        if self.memory_limit is not None:
            self.memory_limit = parse_bytes("memory_limit", self.memory_limit)

    def graph(self) -> Graph:
        """The graph of a mini-batch; `rounding` is what the last one rounds to."""
        if self.make_graph is not None:
            graph = self.make_graph()
        else:
            _, parameter = next(self.optimizer.named_parameters())
            graph = Graph(device=parameter.device, precision=self.precision)
        self.rounding = {"precision": graph.precision, "matmul": graph.matmul}
        return graph

    def _check_types(self) -> None:
        model, optimizer, schedule = self.model, self.optimizer, self.schedule
        if not all([callable(getattr(model, name, None)) for name in ("train", "eval")]):
            raise _refused(
                "model", model, "a model with train() and eval()", "give a models.Module"
            )
        if isinstance(model, type):
            raise _refused("model", model, "a model, made", f"make it first: {model.__name__}(…)")
        if not isinstance(optimizer, Optimizer):
            fix = "give optim.Adam(model)"
            raise _refused("optimizer", optimizer, "an optimizer of the model's parameters", fix)
        if all([parameter.frozen for _, parameter in optimizer.named_parameters()]):
            raise refused(
                "Trainer", "all parameters of the optimizer are frozen", "it trains one or more",
                "models.unfreeze(model); after models.add_adapter(model) an optimizer is made anew",
            )  # fmt: skip
        if schedule is not None and not isinstance(schedule, Schedule):
            fix = "give optim.Cosine(optimizer, total_steps), or leave it out"
            raise _refused("schedule", schedule, "a schedule of the optimizer", fix)
        if self.average is not None and not isinstance(self.average, Average):
            fix = "give optim.Average(model, decay=0.999), or leave it out"
            raise _refused("average", self.average, "a running mean of the model's weights", fix)
        if not callable(getattr(self.batches, "epoch", None)):
            raise _refused(
                "batches", self.batches,
                "an object whose epoch(n) gives the mini-batches of epoch n, lists of examples",
                "train.SentenceBatches(examples, batch_size=32), or train.TokenBatches",
            )  # fmt: skip
        path = self.checkpoint_path
        if path is not None and Path(path).suffix != ".safetensors":
            fix = f"give {str(Path(path, 'model.safetensors'))!r}"
            raise _refused("checkpoint_path", path, "the name of a file, NAME.safetensors", fix)
        if path is not None:
            safetensors()  # before training that could not be saved
        for name, form in FUNCTIONS.items():
            value = getattr(self, name)
            if value is not None or name == "loss_function":
                function("Trainer", name, value, form)
        of_values(self.precision, np.dtype(np.float32))
        if self.precision != FULL and self.make_graph is not None:
            raise refused(
                "Trainer", f"precision is {self.precision!r} beside make_graph",
                "make_graph makes the graphs, with all of their settings",
                f"make_graph=partial(db.Graph, precision={self.precision!r}), without precision",
            )  # fmt: skip
        for name, least in COUNTS.items():
            value = getattr(self, name)
            if value is not None or name in NEEDED:
                size("Trainer", name, value, least)
        if self.clip_norm is not None:
            number("Trainer", "clip_norm", self.clip_norm, "[0, inf]")
        switch("Trainer", "higher_is_better", self.higher_is_better)
        switch("Trainer", "loss_of_batch", self.loss_of_batch)
        if not switch("Trainer", "save_frozen", self.save_frozen) and self.average is not None:
            require_trained(self.average, frozen_of(dict(model.named_parameters())).values())
        if self.communicator is not None:
            self._check_communicator(self.communicator)

    def _check_communicator(self, communicator: Communicator) -> None:
        if not isinstance(communicator, Communicator):
            fix = "give parallel.connect(), or leave it out"
            raise _refused("communicator", communicator, "the processes of the run", fix)
        if self.loss_of_batch and communicator.size > 1:
            raise refused(
                "Trainer", f"loss_of_batch with {communicator.size} processes",
                "a process has its shard of a mini-batch alone, and models.BatchNorm or another "
                "loss of all examples together would be of the shard",
                "loss_function(graph, model, example), of one example; models.LayerNorm",
            )  # fmt: skip


def _refused(name: str, value: object, rule: str, fix: str) -> ArgumentError:
    return refused("Trainer", f"{name} is {shown(value)}", rule, fix)
