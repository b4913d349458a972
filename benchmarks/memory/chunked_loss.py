"""The loss fused with its projection beside logits that exist: bytes and speed.

`python -m benchmarks.memory.chunked_loss [--vocabulary 32000] [--tokens 2000] [--hidden 512]`

Both sides are one forward and backward of `linear` and the cross-entropy behind it, with gradients
of weight, bias and hidden states. Bytes are those of the arena, hidden states and their gradients
among them, and beside it all that NumPy allocates while it runs, but not the gradients of weight
and bias, which outlive the step. They take turns; a side's time is its median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.nodes.losses.cross_entropy import stored_logits

SENTENCE = 25  # tokens


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory.chunked_loss", description=__doc__
    )
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


class Side:
    """One of the two ways, on the same arrays."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        rng = np.random.default_rng(1)
        shape = options.vocabulary, options.hidden
        self.name = name
        self.seconds: list[float] = []
        self.arena_bytes = 0
        self.other_bytes = 0
        self._weight = db.Parameter(0.05 * rng.standard_normal(shape, np.float32), "weight")
        self._bias = db.Parameter(np.zeros(options.vocabulary, np.float32), "bias")
        self._hidden = rng.standard_normal((options.tokens, options.hidden), np.float32)
        self._ids = rng.integers(0, options.vocabulary, options.tokens)
        self._pool = db.memory.Pool()

    def step(self) -> tuple[float, np.ndarray]:
        """One forward and backward: its seconds, and the gradient of the weight."""
        self._weight.zero_grad()
        self._bias.zero_grad()
        with db.Graph(pool=self._pool) as graph:
            losses = []
            for start in range(0, len(self._ids), SENTENCE):
                hidden = F.input(graph, self._hidden[start : start + SENTENCE]).keep()
                logits = F.linear(hidden, self._weight, self._bias)
                losses.append(self._loss(logits, self._ids[start : start + SENTENCE]))
            loss = F.mean(losses)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            begin = time.perf_counter()
            graph.backward(loss)
            seconds = time.perf_counter() - begin
            self.other_bytes = tracemalloc.get_traced_memory()[1] - before
            self.arena_bytes = graph.peak_bytes
        assert isinstance(self._weight.grad, np.ndarray)
        return seconds, self._weight.grad

    def _loss(self, logits: db.Node, ids: np.ndarray) -> db.Node:
        if self.name == "chunked":
            return F.cross_entropy(logits, ids)
        with stored_logits():
            return F.cross_entropy(logits, ids)

    @property
    def peak_bytes(self) -> int:
        return self.arena_bytes + self.other_bytes


def run(options: argparse.Namespace) -> dict[str, float]:
    """Check that both compute the same, count their bytes, time them."""
    db.set_num_threads(options.threads)
    chunked, whole = sides = [Side("chunked", options), Side("materialised", options)]
    gradients = [side.step()[1] for side in sides]  # arenas and gradients now have their memory
    np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-6)
    tracemalloc.start()
    for side in sides:
        side.step()
    tracemalloc.stop()
    for _ in range(options.rounds):
        for side in sides:
            side.seconds.append(side.step()[0])
    ratios = [b / a for a, b in zip(chunked.seconds, whole.seconds, strict=True)]
    return {
        "logits_bytes": options.tokens * options.vocabulary * 4,
        "chunked_bytes": chunked.peak_bytes,
        "materialised_bytes": whole.peak_bytes,
        "less": 1 - chunked.peak_bytes / whole.peak_bytes,
        "chunked_ms": 1e3 * statistics.median(chunked.seconds),
        "materialised_ms": 1e3 * statistics.median(whole.seconds),
        "relative_speed": statistics.median(ratios),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    found = run(options)
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"{options.vocabulary} words, {options.tokens} tokens, {options.hidden} features, ", end=""
    )
    print(f"{options.threads} threads")
    for name in ("chunked", "materialised"):
        megabytes, ms = found[f"{name}_bytes"] / 1e6, found[f"{name}_ms"]
        print(f"{name:12}  {megabytes:7.1f} MB  {ms:7.1f} ms")
    print(f"chunked takes {100 * found['less']:.1f} % less, ", end="")
    print(f"at {found['relative_speed']:.3f} of the speed")


if __name__ == "__main__":
    main()
