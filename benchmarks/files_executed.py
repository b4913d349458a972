"""Files of the package that a training step runs through: `python -m benchmarks.files_executed`.

Somebody who wants to know how a step is carried out has to read these files, so the list should be
short. The step trains an LSTM language model with Adam, on one thread. It is warm: it has run
before on the same sentences, so the cell is compiled and the plan is in the cache.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import numpy as np

import dynbatch as db
from benchmarks.report import show
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.backend import Array

PACKAGE = Path(db.__file__).parent
VOCABULARY, WIDTH = 50, 64  # as wide as loops that are worth compiling
LENGTHS = (5, 9, 3, 7)


class LanguageModel(models.Module):
    """Embedding, LSTM, linear layer: each word from those before it."""

    def __init__(self) -> None:
        self.embedding = models.Embedding(VOCABULARY, WIDTH)
        self.encoder = models.LSTM(WIDTH, WIDTH)
        self.output = models.Linear(WIDTH, VOCABULARY)

    def loss(self, graph: db.Graph, words: Array) -> db.Node:
        """Mean cross-entropy of a sentence's words but the first."""
        states = self.encoder(self.embedding(graph, words[:-1]))
        return F.cross_entropy(self.output(states), words[1:])


def training_step() -> Callable[[], None]:
    """A step of training a new language model, which always takes the same sentences."""
    rng = np.random.default_rng(1)
    model = LanguageModel()
    optimizer = optim.Adam(model.parameters())
    sentences = [rng.integers(VOCABULARY, size=length) for length in LENGTHS]

    def step() -> None:
        with db.Graph() as graph:
            loss = F.mean([model.loss(graph, words) for words in sentences])
            graph.backward(loss)
        optimizer.step()

    return step


def calls_by_file(function: Callable[[], object]) -> dict[str, int]:
    """Calls of Python functions in each file of the package while `function` runs, most first.

    Files are named by their path inside the package. Calls on other threads are not counted.
    """
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    inside = {Path(name): n for name, n in calls.items() if Path(name).is_relative_to(PACKAGE)}
    ranked = sorted(inside.items(), key=lambda item: (-item[1], item[0]))
    return {path.relative_to(PACKAGE).as_posix(): n for path, n in ranked}


def warm_step_files(warm_up: int = 3) -> dict[str, int]:
    """Calls by file of a warm training step on one thread."""
    step = training_step()
    threads = db.num_threads()
    db.set_num_threads(1)
    try:
        for _ in range(warm_up):
            step()
        return calls_by_file(step)
    finally:
        db.set_num_threads(threads)


def table(calls: Mapping[str, int]) -> str:
    """A line for each file, then their number."""
    lines = [f"{n:8,}  {name}" for name, n in calls.items()]
    return "\n".join([*lines, f"{sum(calls.values()):8,}  calls in {len(calls)} files"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.files_executed", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    calls = warm_step_files()
    show(table(calls), calls, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
