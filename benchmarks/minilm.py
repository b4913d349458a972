"""Sentences a second of MiniLM: `python -m benchmarks.minilm [--folder FOLDER] [--threads 2]`.

Vectors of sentences (the mean of their tokens' last values) by all-MiniLM-L6-v2: 6 layers of 384,
12 heads, inner width 1,536. dynbatch takes the sentences as they come; PyTorch takes them padded,
as they come and sorted by length, which sentence-transformers does. Its attention is the fused
kernel. All sides must give the same vectors, to 1e-4.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.lengths import Array, draw_lengths
from benchmarks.report import show
from dynbatch.models.pretrained.bert import Bert, BertConfig

SIZES: dict[str, Any] = {
    "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536,
    "hidden_dropout_prob": 0.0,
}  # fmt: skip
TOLERANCE = 1e-4

Encode = Callable[[Sequence[Array]], Array]
"""Ids of sentences -> their vectors (N, D)."""


def of_dynbatch(bert: Bert, batch: int) -> Encode:
    """Mini-batches of `batch` sentences, in the order given."""

    def encode(sentences: Sequence[Array]) -> Array:
        vectors: list[Array] = []
        for first in range(0, len(sentences), batch):
            with db.Graph(grad=False) as graph:
                nodes = [bert.vector(graph, ids) for ids in sentences[first : first + batch]]
                vectors += graph.values(nodes)
        return np.array(vectors)

    return encode


def of_pytorch(bert: Bert, batch: int, threads: int, sorts: bool) -> Encode:
    """Padded mini-batches, in the order given or by length."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from benchmarks.bert.torch_twin import TorchBert

    torch.set_num_threads(threads)
    network = TorchBert(bert.config)
    network.take_values(bert)
    network.eval()

    @torch.inference_mode()
    def encode(sentences: Sequence[Array]) -> Array:
        order = np.argsort([-len(ids) for ids in sentences], kind="stable")
        order = order if sorts else np.arange(len(sentences))
        vectors = np.empty((len(sentences), bert.config.hidden_size), np.float32)
        for first in range(0, len(sentences), batch):
            chosen = order[first : first + batch]
            ids = [torch.from_numpy(sentences[k]) for k in chosen]
            padded = pad_sequence(ids, batch_first=True)
            lengths = torch.tensor([len(each) for each in ids])
            is_word = torch.arange(padded.shape[1]) < lengths[:, None]
            mask = None if bool(is_word.all()) else is_word[:, None, None]
            states = network.states(padded, mask) * is_word[:, :, None]
            vectors[chosen] = (states.sum(1) / lengths[:, None]).numpy()
        return vectors

    return encode


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Sentences a second of each side: they take turns on all sentences, after one turn that is
    not counted.

    Raises:
        SystemExit: two sides do not give the same vectors.
    """
    db.set_num_threads(options.threads)
    others = OtherWork()
    rng = np.random.default_rng(options.seed)
    bert = model_of(options.folder)
    lengths = np.minimum(draw_lengths(rng, options.sentences), bert.config.max_position_embeddings)
    sentences = [rng.integers(0, bert.config.vocab_size, length) for length in lengths]
    sides = {"dynbatch": of_dynbatch(bert, options.batch)}
    if find_spec("torch") and not options.no_pytorch:
        for name, sorts in (("pytorch-padded", False), ("pytorch-sorted", True)):
            sides[name] = of_pytorch(bert, options.batch, options.threads, sorts)
    vectors = {name: encode(sentences) for name, encode in sides.items()}
    for name, found in vectors.items():
        if not np.abs(found - vectors["dynbatch"]).max() <= TOLERANCE * np.abs(found).max():
            raise SystemExit(f"benchmarks.minilm: {name} and dynbatch give other vectors.")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, encode in sides.items():
            begin = time.perf_counter()
            encode(sentences)
            seconds[name].append(time.perf_counter() - begin)
    rates = {name: len(sentences) / statistics.median(times) for name, times in seconds.items()}
    return {
        "sentences": len(sentences),
        "tokens": int(lengths.sum()),
        "batch": options.batch,
        "threads": options.threads,
        "weights": "real" if options.folder else "random",
        "sentences_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "warning": others.warning(),
    }


def model_of(folder: Path | None) -> Bert:
    """The checkpoint in a folder, or MiniLM's sizes with random values."""
    if folder is None:
        return Bert(BertConfig(**SIZES), rng=1).eval()
    return Bert.from_pretrained(folder).eval()


def as_text(found: dict[str, Any]) -> str:
    """A line for each side."""
    rates = found["sentences_per_second"]
    lines = [
        f"MiniLM, {found['weights']} weights: {found['sentences']} sentences, {found['tokens']} "
        f"tokens, mini-batches of {found['batch']}, {found['threads']} threads",
        found["warning"],
        *[
            f"{name:16}{rate:10.1f} sentences a second{rate / rates['dynbatch']:8.2f} × dynbatch"
            for name, rate in rates.items()
        ],
    ]
    return "\n".join([line for line in lines if line])


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minilm", description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the checkpoint; else random values")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-pytorch", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object; text to stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    found = run(options)
    show(as_text(found), found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
