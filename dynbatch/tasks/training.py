"""One way to train, to save and to go on, for every task and example."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dynbatch import backend, optim, parallel
from dynbatch.errors import CheckpointError
from dynbatch.graph import Graph
from dynbatch.kernels.backends import rounding
from dynbatch.kernels.runtime.parallel import num_threads, set_num_threads
from dynbatch.kernels.runtime.precision import checked
from dynbatch.models import Module
from dynbatch.models.pretrained.folder import CONFIG
from dynbatch.parallel.environment import place_in_run
from dynbatch.random import seed
from dynbatch.tasks.settings import TrainingSettings, kept, refuse_other_settings
from dynbatch.train import (
    PreparedBatches,
    SentenceBatches,
    TokenBatches,
    Trainer,
    TrainingResult,
    locked,
    read_checkpoint,
)
from dynbatch.train.batching import epoch_order
from dynbatch.train.run_folder import METRICS, best_of

Item = TypeVar("Item")


@contextmanager
def prepared(settings: TrainingSettings) -> Iterator[None]:
    """Threads, precision and random numbers as the settings say; alone in the run's folder.

    Of several processes that train as one, the first holds the folder, and the others print
    nothing.

    Raises:
        CheckpointError: another process trains there, or nothing can be written.
        ArgumentError, ImportError: there is no such precision, or no such device.
    """
    if settings.threads is not None:
        set_num_threads(settings.threads)
    checked(settings.matmul, np.dtype(np.float32), backend.device(settings.device))
    seed(settings.seed)
    if place_in_run().rank:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
        return
    with locked(settings.checkpoint):
        yield


def sample(items: Sequence[Item], settings: TrainingSettings) -> list[Item]:
    """The first `--limit` in an order that the seed decides; all if there is no limit."""
    if settings.limit is None:
        return list(items)
    order = epoch_order(len(items), settings.seed, epoch=-1)
    return [items[k] for k in order[: settings.limit].tolist()]


def train(
    model: Module,
    loss: Callable[[Graph, Any, Any], Any],
    examples: Sequence[Any],
    settings: TrainingSettings,
    num_tokens: Callable[[Any], int] | None = None,
    *,
    optimizer: optim.Optimizer | None = None,
    batches: SentenceBatches[Any] | TokenBatches[Any] | PreparedBatches[Any, Any] | None = None,
    accumulate: int = 1,
    extra: Mapping[str, object] | None = None,
    hint: str = "the same command with --resume",
    **more: Any,
) -> TrainingResult:
    """Adam under a warm-up and a cosine, clipped; saved and resumed as the settings say.

    Processes that a launcher started train as one.

    Args:
        loss:       loss(graph, model, example), of one example; with `num_tokens` its sum. With
                    `loss_of_batch` it takes the examples of a mini-batch.
        num_tokens: what an example's loss was summed over.
        optimizer:  another one than Adam.
        batches:    other mini-batches than `batch_size` examples each.
        accumulate: mini-batches of one update.
        extra:      what a checkpoint holds beside the settings.
        hint:       what to tell someone who interrupts the run.
        more:       other arguments of `Trainer`, such as `validate`.

    Raises:
        CheckpointError: the run cannot go on so; see `refuse_other_settings` and `Trainer.resume`.
    """
    batches = batches or SentenceBatches(examples, settings.batch_size, settings.seed)
    of_epochs = [batches.num_batches(epoch) for epoch in range(settings.epochs)]
    updates = sum([-(-number // accumulate) for number in of_epochs])
    warmup = min(settings.warmup, updates - 1)
    with parallel.connect(device=settings.device) as communicator:
        model.to(settings.device)  # of several processes "cuda" is a GPU for each
        optimizer = optimizer or optim.Adam(model, lr=settings.lr)
        trainer = Trainer(
            model,
            optimizer,
            loss,
            batches,
            num_tokens=num_tokens,
            accumulate=accumulate,
            schedule=optim.Cosine(optimizer, updates, warmup, min_lr=settings.lr / 100),
            clip_norm=settings.clip,
            checkpoint_path=settings.checkpoint,
            checkpoint_every=1000,
            metrics_path=None if settings.output is None else Path(settings.output, METRICS),
            extra={"settings": kept(settings), **(extra or {})},
            make_graph=partial(Graph, backend.device(settings.device), **settings.rounding),
            communicator=communicator,
            show_progress=not settings.quiet,
            resume_hint=hint,
            **more,
        )
        _begin_or_go_on(trainer, settings)
        return trainer.fit(settings.epochs)


def _begin_or_go_on(trainer: Trainer, settings: TrainingSettings) -> None:
    """Load the run in the folder where it is to go on, and refuse to write over it where not."""
    checkpoint = settings.checkpoint
    refuse_to_write_over_a_run(settings)
    if checkpoint is None:
        if settings.resume:
            raise CheckpointError("--resume needs --output, the folder of the run that goes on.")
    elif checkpoint.exists():
        saved = read_checkpoint(checkpoint).extra.get("settings", {})
        if isinstance(saved, dict):  # without them it is one of before, or of another program
            asked = kept(settings)
            refuse_other_settings(checkpoint, saved, asked, settings.data_changed)
        trainer.resume(data_changed=settings.data_changed)
        if trainer.stopping.is_over:
            print(f"The run ended early by --patience {trainer.patience}; a larger one goes on.")


def refuse_to_write_over_a_run(settings: TrainingSettings) -> None:
    """Check that no run is where a new one would be saved, and no published model.

    Raises:
        CheckpointError: there is one, or what is left of one.
    """
    checkpoint = settings.checkpoint
    if checkpoint is None:
        return
    if not settings.resume and (checkpoint.parent / CONFIG).exists():  # its weights may be in parts
        raise CheckpointError(
            f"{checkpoint.parent}: a folder of Hugging Face, where {checkpoint.name} stands for "
            "the model's weights.\n  fix: give another --output."
        )
    if not checkpoint.exists():
        if (best := best_of(checkpoint)).exists():
            raise CheckpointError(
                f"{best}: of a run whose {checkpoint.name} is gone; a new run would write over it."
                f"\n  fix: go on from the best validation by cp {best} {checkpoint} and --resume, "
                "remove it, or give another --output."
            )
    elif not settings.resume:
        raise CheckpointError(
            f"{checkpoint}: there is a run already.\n"
            "  fix: go on with it by --resume, remove it, or give another --output."
        )


def place(settings: TrainingSettings) -> str:
    """The device and processes of a run, for its first line."""
    on_gpu = backend.device(settings.device).is_cuda
    processes = place_in_run().size
    on = "on a GPU" if on_gpu else f"{num_threads()} threads"
    on = ", ".join(filter(None, [on, rounding(on_gpu=on_gpu, **settings.rounding)]))
    return on if processes == 1 else f"{processes} processes, each {on}"
