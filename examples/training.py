"""What the smaller training examples share: settings, one way to train, errors as one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import dynbatch as db
from dynbatch import Node, backend, optim
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime.precision import checked
from dynbatch.models import Module
from dynbatch.parameter import Array
from dynbatch.train import SentenceBatches, TokenBatches, Trainer, locked, read_checkpoint
from dynbatch.train.batching import epoch_order
from examples.arguments import above_zero, exit_status, not_negative, option, parse, passes, share
from examples.resuming import refuse_other_settings

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What every training command can be told; an example adds its own, and other defaults."""

    limit: int | None = option(None, "train on X sentences, drawn at random (all)")
    epochs: int = option(2, "passes over the data", passes)
    batch_size: int = option(32, "sentences in a mini-batch")
    dropout: float = option(0.25, "probability that a feature is dropped while training", share)
    lr: float = option(2e-3, "peak of Adam's learning rate", above_zero)
    warmup: int = option(200, "updates until the peak; then the rate falls as a cosine")
    clip: float = option(5.0, "largest norm of the gradient", above_zero)
    matmul: str = option("float32", "what products' factors are rounded to: tf32, bfloat16", str)
    seed: int = option(0, "of all that is drawn", not_negative)
    threads: int | None = option(None, "threads (one a processor)")
    device: str = option("cpu", "cpu or cuda", str)
    output: str | None = option(None, "folder for checkpoint and metrics (none is saved)", str)
    resume: bool = option(False, "go on with the run in --output")
    data_changed: bool = option(False, "with --resume: the data is another, on purpose")
    quiet: bool = option(False, "no progress bar")


NOT_KEPT = ("data", "threads", "device", "output", "resume", "data_changed", "quiet")
"""Settings that a run's result does not depend on, or that say where its data is."""

CHECKPOINT, METRICS = "model.safetensors", "metrics.jsonl"


Settings = TypeVar("Settings", bound=TrainingSettings)


def command(
    settings: type[Settings], run: Callable[[Settings], None], argv: Sequence[str] | None,
    prog: str, what: str,
) -> int:  # fmt: skip
    """Run an example. The exit status is that of `exit_status`."""
    given = parse(settings, argv, f"python -m {prog}", what)

    def prepared() -> None:
        if given.threads is not None:
            db.set_num_threads(given.threads)
        checked(given.matmul, np.dtype(np.float32), backend.device(given.device))
        db.seed(given.seed)
        with locked(None if given.output is None else Path(given.output, CHECKPOINT)):
            run(given)

    return exit_status(prepared)


def sample(items: Sequence[Item], settings: TrainingSettings) -> list[Item]:
    """The first `--limit` in an order that the seed decides; all if there is no limit."""
    if settings.limit is None:
        return list(items)
    order = epoch_order(len(items), settings.seed, epoch=-1)
    return [items[k] for k in order[: settings.limit].tolist()]


def train(
    model: Module,
    loss: Callable[[db.Graph, Any, Any], Node],
    examples: Sequence[Any],
    settings: TrainingSettings,
    num_tokens: Callable[[Any], int] | None = None,
    *,
    optimizer: optim.Optimizer | None = None,
    max_tokens: int | None = None,
    extra: Mapping[str, object] | None = None,
    **more: Any,
) -> None:
    """Adam under a warm-up and a cosine, clipped; saved and resumed as the settings say.

    Args:
        loss:       loss(graph, model, example), of one example; with `num_tokens` its sum.
        num_tokens: what an example's loss was summed over.
        optimizer:  another one than Adam.
        max_tokens: of a mini-batch, counted by `num_tokens`, instead of `batch_size` sentences.
        extra:      what a checkpoint holds beside the settings.
        more:       other arguments of `Trainer`, such as `validate`.

    Raises:
        CheckpointError: the run cannot go on so; see `refuse_other_settings` and `Trainer.resume`.
    """
    model.to(settings.device)
    batches: SentenceBatches[Any] | TokenBatches[Any]
    if max_tokens is None or num_tokens is None:
        batches = SentenceBatches(examples, settings.batch_size, settings.seed)
    else:
        batches = TokenBatches(examples, max_tokens, num_tokens, settings.seed)
    optimizer = optimizer or optim.Adam(model, lr=settings.lr)
    updates = sum([batches.num_batches(epoch) for epoch in range(settings.epochs)])
    warmup = min(settings.warmup, updates - 1)
    folder = None if settings.output is None else Path(settings.output)
    kept = {name: value for name, value in asdict(settings).items() if name not in NOT_KEPT}
    trainer = Trainer(
        model,
        optimizer,
        loss,
        batches,
        num_tokens=num_tokens,
        schedule=optim.Cosine(optimizer, updates, warmup, min_lr=settings.lr / 100),
        clip_norm=settings.clip,
        checkpoint_path=None if folder is None else folder / CHECKPOINT,
        checkpoint_every=1000,
        metrics_path=None if folder is None else folder / METRICS,
        extra={"settings": kept, **(extra or {})},
        make_graph=partial(db.Graph, backend.device(settings.device), matmul=settings.matmul),
        show_progress=not settings.quiet,
        resume_hint="the same command with --resume",
        **more,
    )
    if settings.resume:
        _resume(trainer, folder, kept, settings)
    elif folder is not None and (folder / CHECKPOINT).exists():
        raise CheckpointError(
            f"{folder / CHECKPOINT}: there is a run already.\n"
            "  fix: go on with it by --resume, remove it, or give another --output."
        )
    trainer.fit(settings.epochs)


def _resume(
    trainer: Trainer, folder: Path | None, kept: dict[str, Any], settings: TrainingSettings
) -> None:
    """Go on with the run in the folder, where there is one."""
    if folder is None:
        raise CheckpointError("--resume needs --output, the folder of the run that is to go on.")
    if (folder / CHECKPOINT).exists():
        saved = read_checkpoint(folder / CHECKPOINT).extra.get("settings", {})
        if isinstance(saved, dict):  # without them it is one of before, or of another program
            refuse_other_settings(folder / CHECKPOINT, saved, kept)
        trainer.resume(data_changed=settings.data_changed)


def values(
    model: Module, build: Callable[[db.Graph, Any], Node], examples: Sequence[Any], size: int = 64
) -> list[Array]:
    """The values of build(graph, example) for each example, `size` examples in a run.

    The model is in evaluation mode meanwhile.
    """
    was_training, parameter = model.training, model.parameters()[0]
    model.eval()
    found: list[Array] = []
    try:
        for first in range(0, len(examples), size):
            with db.Graph(parameter.device, parameter.dtype, grad=False) as graph:
                batch = [build(graph, example) for example in examples[first : first + size]]
                found += graph.values(batch)
    finally:
        model.train(was_training)
    return found


def place(settings: TrainingSettings) -> str:
    """What a run is computed on, for its first line."""
    on_gpu = backend.device(settings.device).is_cuda
    return "on a GPU" if on_gpu else f"{db.num_threads()} threads"
