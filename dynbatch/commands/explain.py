"""`dynbatch explain RUN`: where a training step's time and memory go, and what to change."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from dynbatch import backend
from dynbatch import nodes as F
from dynbatch.commands.arguments import add_base
from dynbatch.errors import CheckpointError, DataError
from dynbatch.graph import Graph
from dynbatch.kernels.backends import rounding
from dynbatch.kernels.runtime.parallel import num_threads, set_num_threads
from dynbatch.optim import Optimizer
from dynbatch.tasks.options import device_name, positive
from dynbatch.tasks.registry import load_task
from dynbatch.tasks.settings import TaskSettings, saved_settings
from dynbatch.tasks.task import Task
from dynbatch.train import padding_ratio, read_checkpoint
from dynbatch.train.run_folder import CHECKPOINT

SUMMARY = "say where a run's time and memory go, and what to change"
HELP = """\
Train a run's model for a few steps on lines of its data, and tell where time
and memory go, and what to change so that it is faster. The run stays as it is.

  dynbatch explain runs/poems
  dynbatch explain runs/poems --file other.txt --sentences 1000
  dynbatch explain runs/poems --html page.html
"""
MORE = """\
run:
  The folder of a run of dynbatch train, or its file. Its data is the file that
  it was trained on, where that is still there, or --file.

figures:
  Three mini-batches train once to warm up, and once to be measured.
  "planning" is what the host does between kernels; "making nodes" is Python
  that writes the sentences down. "features: LinearMap" stands for those
  in the block "features". Another program that runs meanwhile makes all worse.

  A change's gain is what it brings at most, as a share of making nodes,
  planning and kernels together. --html has every batch on a timeline.

a training loop of your own:
  print(graph.explain(advice=True)) at the end of a step tells the same of it.

exit status:
  0; 1 after an error; 2 after a wrong option.
"""

STEPS = 3
MB = 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's folder, or its checkpoint")
    add("--file", metavar="DATA", help="take lines of this file (the run's own data)")
    add("--sentences", type=positive, default=256, metavar="N", help="examples to take, from all "
        "over the file (%(default)s)")  # fmt: skip
    add_base(add)
    add("--html", metavar="FILE", help="write a page with every batch on a timeline")
    add("--trace", metavar="FILE", help="write the timeline for ui.perfetto.dev")
    add("--device", type=device_name, default="cpu", metavar="NAME", help="where to train: cpu, "
        "cuda or cuda:N (%(default)s)")  # fmt: skip
    add("--threads", type=positive, metavar="N", help="on the CPU (one a processor)")


@dataclass(frozen=True)
class MeasuredStep:
    """A training step's examples and graph, and what it took: seconds in all and of the update, and
    tokens."""

    batch: Sequence[Any]
    graph: Graph
    seconds: float
    update_seconds: float
    tokens: int


def run(options: argparse.Namespace) -> None:
    """Train for some steps, and print what they took.

    Raises:
        DynbatchError, ImportError, OSError: as their messages say.
    """
    path = Path(options.run)
    if path.is_dir():
        path = path / CHECKPOINT
    if not path.exists():
        raise CheckpointError(
            f"{options.run}: there is no run.\n  fix:  give the --output of dynbatch train"
        )
    info = read_checkpoint(path)
    if "task" not in info.extra:
        raise CheckpointError(
            f"{path}: a run of your own training loop, which this command cannot repeat.\n"
            "  rule: it repeats steps of dynbatch train and of the examples\n"
            "  fix:  print(graph.explain(advice=True)) in your loop, after the second step or "
            "later, tells the same"
        )
    if options.threads:
        set_num_threads(options.threads)
    task = load_task(path, options.from_)
    settings = saved_settings(task.Settings, path)
    assert isinstance(settings, TaskSettings)
    data = _data_of(options.file or settings.data, path)
    texts = task.read(data, settings)
    chosen = texts[:: max(1, len(texts) // options.sentences)][: options.sentences]
    batches = list(task.batches(task.examples(chosen), settings).epoch(0))
    task.model.to(options.device)
    step = _fastest(task, batches, settings, options.device)
    print(
        f"{path}: {task.name}, {task.model.num_parameters():,} parameters, "
        f"{info.step:,} updates\n{data}: {len(chosen):,} of {len(texts):,} "
        f"examples, in {len(batches)} mini-batch{'es' * (len(batches) > 1)}; nothing is saved\n"
    )
    graph = step.graph
    for part in (*_speed(step), *_memory(task, step), "", graph.profile(), "", graph.advice()):
        print(part)
    if options.html:
        step.graph.explain(html=options.html)
    if options.trace:
        step.graph.to_trace(options.trace)


def _data_of(name: str | None, path: Path) -> Path:
    """The file of examples.

    Raises:
        DataError: it is not known, or not there.
    """
    if name is None or not Path(name).is_file():
        where = "does not say where its data is" if name is None else f"read {name}, not there now"
        raise DataError(f"{path}: the run {where}.\n  fix:  --file DATA, a file of the same form")
    return Path(name)


def _fastest(
    task: Task, batches: Sequence[Any], settings: TaskSettings, device: str
) -> MeasuredStep:
    """The step with most tokens per second, of some whose mini-batches have been seen once."""
    optimizer = task.optimizer(settings)
    make_graph = partial(Graph, backend.device(device), **settings.rounding)
    task.model.train()
    chosen = list(islice(cycle(batches), STEPS))
    for batch in chosen[: len(batches)]:
        _step(task, batch, optimizer, make_graph())
    steps = [_step(task, batch, optimizer, make_graph()) for batch in chosen]
    return max(steps, key=lambda step: step.tokens / step.seconds)


def _step(task: Task, batch: Sequence[Any], optimizer: Optimizer, graph: Graph) -> MeasuredStep:
    begin = time.perf_counter()
    count = sum([task.num_tokens(example) for example in batch])
    with graph:
        loss = F.sum([task.loss(graph, task.model, example) for example in batch]) / max(1, count)
        graph.backward(loss)
    updated = time.perf_counter()
    optimizer.step()
    float(loss.value)  # which waits for a GPU
    end = time.perf_counter()
    tokens = sum([task.length(example) for example in batch])
    return MeasuredStep(batch, graph, end - begin, end - updated, tokens)


def _speed(step: MeasuredStep) -> list[str]:
    """Tokens per second, batches, and the parts of the time."""
    record, statistics = step.graph._record(), step.graph.statistics
    threads = num_threads()
    where = "on a GPU" if record.is_cuda else f"{threads} thread{'s' * (threads > 1)}"
    where = ", ".join(
        filter(None, [where, rounding(record.matmul, record.precision, record.is_cuda)])
    )
    parts = {
        "making nodes": record.build_seconds, "planning": statistics.host_seconds,
        "kernels": statistics.kernel_seconds, "the update": step.update_seconds,
    }  # fmt: skip
    whole = sum(parts.values())
    return [
        f"a training step, {where}: the fastest of {STEPS}, after they have warmed up",
        f"  {step.tokens / step.seconds:,.0f} tokens per second, {step.tokens:,} tokens in "
        f"{step.seconds * 1e3:,.1f} ms",
        f"  {', '.join([f'{name} {part / whole:.0%}' for name, part in parts.items()])}",
        f"  {statistics.batches} batches, at least {record.lower_bound}; "
        f"{record.mean_batch:.1f} nodes in one on average",
    ]


def _memory(task: Task, step: MeasuredStep) -> list[str]:
    """The step's peak, beside what padding would make of it."""
    peak = step.graph.peak_bytes
    kept = sum([p.size * p.value.dtype.itemsize for p in task.model.parameters()])
    if padded_bytes := task.padded_bytes(step.graph.precision):
        padded = padded_bytes(step.batch)
        said = f"padded it would be {padded / MB:,.2f} MB, {padded / peak:.1f} times as much"
    else:
        ratio = padding_ratio([task.length(example) for example in step.batch])
        said = f"padded there would be {ratio:.1f} times as many tokens"
    return [
        f"  memory at the peak {peak / MB:,.2f} MB; {said}",
        f"  beside it parameters of {kept / MB:,.2f} MB, their gradients, the optimizer's state",
    ]
