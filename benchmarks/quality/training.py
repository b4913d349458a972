"""One training by one side, judged: what a line of the results holds."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import dynbatch as db
from benchmarks.quality.task import Batch, Task
from dynbatch import optim
from dynbatch.backend import CPU
from dynbatch.memory.pool import pool_of

SIDES = ("dynbatch", "dynbatch-bfloat16", "pytorch")
"""float32, `precision="bfloat16"`, and PyTorch in float32."""


@dataclass(frozen=True)
class Trained:
    """The outcome of a training.

    Attributes:
        quality: of `Task.evaluate`.
        seconds: of processor time of the updates, without loading and evaluation.
        peak_mb: what the process grew by while it trained, at most.
        graph_mb: the peak of a mini-batch's graph; 0 for PyTorch.
        first_loss, last_loss: of the first and the last mini-batch, before their updates.
    """

    quality: dict[str, float]
    seconds: float
    peak_mb: float
    graph_mb: float
    first_loss: float
    last_loss: float


def trained(make: Callable[[], Task], side: str, seed: int) -> Trained:
    """Train a task's model on one thread, and evaluate it.

    Raises:
        AssertionError: dynbatch and PyTorch do not compute the same loss of the first mini-batch,
            dropout aside, to 1e-4 of it, before training or after.
    """
    db.set_num_threads(1)
    torch.set_num_threads(1)
    db.seed(seed)
    torch.manual_seed(seed)
    task = make()
    for package in task.packages:
        import_module(package)
    _compare(task)
    optimizer: optim.Adam = optim.Adam(task.model, task.lr)
    if task.decay is not None:
        optimizer = optim.AdamW(task.model, task.lr, weight_decay=task.decay)
    schedule = optim.Cosine(optimizer, task.num_updates, warmup_steps=task.warmup_steps())
    step = _pytorch(task, optimizer) if side == "pytorch" else _dynbatch(task, optimizer, side)
    losses, graphs, seconds = [], [0], 0.0
    before = _resident_mb(forget_peak=True)  # neither optimizer has its moments yet
    for epoch in range(task.epochs):
        task.model.train()
        for batch in tqdm(
            task.batches(epoch), f"{task.name}, {side}, {seed}: epoch {epoch + 1}", mininterval=5
        ):
            begin = time.process_time()
            loss, graph_bytes = step(batch)
            schedule.step()
            seconds += time.process_time() - begin
            losses.append(loss)
            graphs.append(graph_bytes)
    peak = _resident_mb("VmHWM")
    _compare(task)
    return Trained(
        task.evaluate(), seconds, peak - before, max(graphs) / 1e6, losses[0], losses[-1]
    )


Step = Callable[[Batch], tuple[float, int]]
"""An update by a mini-batch: its loss before, and the bytes of its graph."""


def _dynbatch(task: Task, optimizer: optim.Optimizer, side: str) -> Step:
    precision = "bfloat16" if side == "dynbatch-bfloat16" else "float32"

    def step(batch: Batch) -> tuple[float, int]:
        with db.Graph(precision=precision) as graph:
            loss = task.loss(graph, batch)
            graph.backward(loss)
        optim.clip_grad_norm_(task.model, task.clip)
        optimizer.step()
        return float(loss.value), graph.peak_bytes

    return step


def _weights(task: Task) -> dict[str, torch.Tensor]:
    """The model's arrays as PyTorch's parameters: an update of these is one of the model."""
    parameters = task.model.named_parameters()
    return {name: torch.from_numpy(each.value) for name, each in parameters}


def _pytorch(task: Task, rates: optim.Optimizer) -> Step:
    weights = _weights(task)
    trainable = [weights[name] for name, each in task.model.named_parameters() if not each.frozen]
    for each in trainable:
        each.requires_grad_()
    if task.decay is None:
        optimizer: torch.optim.Optimizer = torch.optim.Adam(trainable, rates.lr, fused=True)
    else:
        decay = task.decay
        optimizer = torch.optim.AdamW(trainable, rates.lr, weight_decay=decay, fused=True)

    def step(batch: Batch) -> tuple[float, int]:
        optimizer.zero_grad()
        loss = task.loss_in_pytorch(weights, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trainable, task.clip)
        for group in optimizer.param_groups:
            group["lr"] = rates.lr
        optimizer.step()
        return loss.item(), 0

    return step


def _compare(task: Task) -> None:
    """Compute the first loss by both sides, without dropout."""
    batch = next(iter(task.batches(0)))
    task.model.eval()
    with db.Graph(grad=False) as graph:
        ours = float(task.loss(graph, batch).value)
    with torch.no_grad():
        theirs = float(task.loss_in_pytorch(_weights(task), batch))
    assert np.isclose(ours, theirs, rtol=1e-4), f"{task.name}: {ours} and {theirs} by PyTorch"


def _resident_mb(field: str = "VmRSS", forget_peak: bool = False) -> float:
    """Read what the process has in memory now, or at most since it last forgot its peak (VmHWM).

    Args:
        forget_peak: give back what is kept for later first, so that it counts as new when used.
    """
    if forget_peak:
        gc.collect()
        pool_of(CPU).release()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    (kilobytes,) = re.findall(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1e3
