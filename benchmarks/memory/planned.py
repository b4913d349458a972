"""Memory of a GPU, planned without one and measured: `python -m benchmarks.memory.planned`.

A step of each model is planned by a graph of the CPU, then runs on the stand-in for a GPU, where
its bytes are counted: the arena by the pool, tables by the queue, the rest by their arrays, and the
most of the device's memory at once. A busy machine changes nothing.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import backend, optim
from dynbatch import nodes as F
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.memory import Pool
from dynbatch.memory.upstream import DeviceMemory
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.cuda import devices
from tests.cuda.fake_cupy import memory
from tests.sentence_models import KINDS, WORDS, Build, Sentence

MODELS = (
    "tagger", "seq2seq", "transformer", "gpt", "tree", "text_cnn", "crf", "biaffine",
    "graph_rounds", "scan_with_additive_attention", "calls", "images",
)  # fmt: skip
SENTENCES, MEAN, MOST = 32, 18, 45  # how many, and their words


@dataclass(frozen=True)
class StepBytes:
    """Bytes of a training step with Adam on a GPU.

    Args:
        arena:      values, their gradients, workspaces.
        tables:     index tables and inputs, which are brought up.
        parameters, gradients, moments: of what the model learns.
        device:     most of all at once, with what kernels take for themselves.
    """

    arena: int
    tables: int
    parameters: int
    gradients: int
    moments: int
    device: int


@dataclass(frozen=True)
class Compared:
    """A step as planned and as measured."""

    name: str
    planned: StepBytes
    measured: StepBytes

    @property
    def is_equal(self) -> bool:
        """Whether all of it is equal."""
        return self.planned == self.measured


def loss_of(graph: db.Graph, build: Build, lengths: Sequence[int]) -> db.Node:
    """The mean loss of sentences of these lengths."""
    rng = np.random.default_rng(0)
    made: list[Any] = [build(Sentence(graph, rng.integers(WORDS, size=n))) for n in lengths]
    return F.mean([loss for _, loss in made])


def compare(name: str, lengths: Sequence[int], device: str = "cuda") -> Compared:
    """Plan the step of a model, then run two of them, the second of which is counted."""
    build, parameters = _made(KINDS[name])
    optimizer = optim.Adam(parameters)
    with db.Graph(seed=3) as graph:
        use = graph.estimate(loss_of(graph, build, lengths), device=device)
    assert use.parameter_bytes is not None and use.gradient_bytes is not None
    assert use.device_bytes is not None
    moments = optimizer.state_bytes
    planned = StepBytes(
        use.peak_bytes, use.tables_bytes, use.parameter_bytes, use.gradient_bytes, moments,
        use.device_bytes + moments,
    )  # fmt: skip
    with devices.device("shuffled"):
        before = memory.used_bytes()
        for parameter in parameters:
            parameter.to(device)
        for _ in range(2):
            arena, uploaded, most = _step(build, lengths, device)
            gradients = sum([held(parameter.grad) for parameter in parameters])
            optimizer.step()
        slots = [array for state in optimizer._states for array in state.slots.values()]
        measured = StepBytes(
            arena,
            uploaded,
            sum([held(parameter.value) for parameter in parameters]),
            gradients,
            sum(map(held, slots)),
            most - before,
        )
    return Compared(name, planned, measured)


def _step(build: Build, lengths: Sequence[int], device: str) -> tuple[int, int, int]:
    """Bytes of a step's arena, of its tables, and the most of the device."""
    pool = Pool(upstream=DeviceMemory(backend.device(device)))
    with db.Graph(device, seed=3, pool=pool) as graph:
        loss, uploaded = loss_of(graph, build, lengths), queue().uploaded_bytes
        memory.forget_peak()
        graph.backward(loss)
        uploaded, most = queue().uploaded_bytes - uploaded, memory.peak_bytes()
    return pool.statistics().peak_requested_bytes, uploaded, most


def held(array: Any) -> int:
    """Bytes of an array on the device."""
    values = array.values if isinstance(array, RowSparse) else array
    return int(values.nbytes) if backend.is_device_array(values) else 0


def _made(make: Callable[[], Build]) -> tuple[Build, list[Parameter]]:
    """A model, and the parameters that were made for it."""
    before = {id(each) for each in _parameters()}
    build = make()
    return build, [each for each in _parameters() if id(each) not in before]


def _parameters() -> list[Parameter]:
    # By type: objects of other libraries may warn where their `__class__` is read.
    return [each for each in gc.get_objects() if issubclass(type(each), Parameter)]


def table(found: Sequence[Compared]) -> str:
    """The report: planned and measured bytes of each part."""
    names = [*asdict(found[0].planned)]
    head = "".join([f"{name:>22}" for name in names])
    lines = [f"{'planned, measured':<30}{head}"]
    for each in found:
        pairs = zip(asdict(each.planned).values(), asdict(each.measured).values(), strict=True)
        cells = "".join([f"{ours:>11,}{theirs:>11,}" for ours, theirs in pairs])
        verdict = "equal" if each.is_equal else "DIFFERS"
        lines.append(f"{each.name:<30}{cells}  {verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if a plan differs from what was measured."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory.planned", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"of {', '.join(KINDS)}")
    models = parser.parse_args(arguments).models
    drawn = np.random.default_rng(5).geometric(1 / MEAN, size=SENTENCES)
    lengths = drawn.clip(1, MOST).tolist()
    found = []
    for name in models:
        with ThreadPoolExecutor(1) as thread:  # whose queue ends with it
            found.append(thread.submit(compare, name, lengths).result())
        gc.collect()
    print(f"{SENTENCES} sentences, {sum(lengths)} words\n{table(found)}")
    return 0 if all([each.is_equal for each in found]) else 1


if __name__ == "__main__":
    sys.exit(main())
