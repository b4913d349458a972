"""Memory of a GPU, planned without one and measured: `python -m benchmarks.memory.planned`.

A step of each model is planned by a graph of the CPU, then runs on the stand-in for a GPU, where
its bytes are counted: the arena by the pool, the rest by their arrays. The last column is the most
of all memory of the device at once, over the sum that was planned. A busy machine changes nothing.
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
    """

    arena: int
    tables: int
    parameters: int
    gradients: int
    moments: int


@dataclass(frozen=True)
class Compared:
    """A step as planned and as measured, and the most that the device held in it."""

    name: str
    planned: StepBytes
    measured: StepBytes
    device_bytes: int

    @property
    def is_equal(self) -> bool:
        """Whether all but the tables, which are estimated, is equal."""
        ours, theirs = asdict(self.planned), asdict(self.measured)
        return all([ours[name] == theirs[name] for name in ours if name != "tables"])

    @property
    def share(self) -> float:
        """What the device held, over the sum of what was planned."""
        return float(self.device_bytes / sum(asdict(self.planned).values()))


def loss_of(graph: db.Graph, build: Build, lengths: Sequence[int]) -> db.Node:
    """The mean loss of sentences of these lengths."""
    rng = np.random.default_rng(0)
    made: list[Any] = [build(Sentence(graph, rng.integers(WORDS, size=n))) for n in lengths]
    return F.mean([loss for _, loss in made])


def compare(name: str, lengths: Sequence[int]) -> Compared:
    """Plan the step of a model, then run two of them, the second of which is counted."""
    build, parameters = _made(KINDS[name])
    optimizer = optim.Adam(parameters)
    with db.Graph(seed=3) as graph:
        use = graph.estimate(loss_of(graph, build, lengths), device="cuda")
    assert use.parameter_bytes is not None and use.gradient_bytes is not None
    planned = StepBytes(
        use.peak_bytes, use.tables_bytes, use.parameter_bytes, use.gradient_bytes,
        optimizer.state_bytes,
    )  # fmt: skip
    with devices.device("shuffled"):
        before = memory.used_bytes()
        for parameter in parameters:
            parameter.to("cuda")
        for _ in range(2):
            arena, uploaded, most = _step(build, lengths)
            gradients = sum([held(parameter.grad) for parameter in parameters])
            optimizer.step()
        slots = [array for state in optimizer._states for array in state.slots.values()]
        measured = StepBytes(
            arena,
            uploaded,
            sum([held(parameter.value) for parameter in parameters]),
            gradients,
            sum(map(held, slots)),
        )
    return Compared(name, planned, measured, most - before)


def _step(build: Build, lengths: Sequence[int]) -> tuple[int, int, int]:
    """Bytes of a step's arena, of its tables, and the most of the device."""
    pool = Pool(upstream=DeviceMemory(backend.device("cuda")))
    with db.Graph("cuda", seed=3, pool=pool) as graph:
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
    before = {id(each) for each in gc.get_objects() if isinstance(each, Parameter)}
    build = make()
    made = [each for each in gc.get_objects() if isinstance(each, Parameter)]
    return build, [each for each in made if id(each) not in before]


def table(found: Sequence[Compared]) -> str:
    """The report: planned and measured bytes of each part."""
    names = [*asdict(found[0].planned)]
    head = "".join([f"{name:>22}" for name in names])
    lines = [f"{'planned, measured':<30}{head}  device / planned"]
    for each in found:
        pairs = zip(asdict(each.planned).values(), asdict(each.measured).values(), strict=True)
        cells = "".join([f"{ours:>11,}{theirs:>11,}" for ours, theirs in pairs])
        verdict = "equal" if each.is_equal else "DIFFERS"
        lines.append(f"{each.name:<30}{cells}{each.share:>10.3f}  {verdict}")
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
