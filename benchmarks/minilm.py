"""Sentences a second of MiniLM: `python -m benchmarks.minilm [--folder FOLDER] [--threads 2]`.

Vectors of sentences (the mean of their tokens' last values) by all-MiniLM-L6-v2: 6 layers of 384,
12 heads, inner width 1,536. dynbatch takes the sentences as they come; PyTorch and onnxruntime take
them padded, as they come and sorted by length, which sentence-transformers does. PyTorch's
attention is the fused kernel. All sides must give the same vectors, to 1e-4.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
import warnings
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
PEERS = ("pytorch", "onnxruntime")

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


def padded(vectors_of: Callable[[Array, Array], Array], batch: int, sorts: bool) -> Encode:
    """Padded mini-batches, in the order given or by length.

    Args:
        vectors_of: (ids (B, T), is_word (B, T)) -> (B, D).
    """

    def encode(sentences: Sequence[Array]) -> Array:
        order = np.argsort([-len(ids) for ids in sentences], kind="stable")
        order = order if sorts else np.arange(len(sentences))
        made = []
        for first in range(0, len(sentences), batch):
            chosen = [sentences[k] for k in order[first : first + batch]]
            lengths = np.array([len(ids) for ids in chosen])
            is_word = np.arange(lengths.max()) < lengths[:, None]
            ids = np.zeros(is_word.shape, np.int64)
            ids[is_word] = np.concatenate(chosen)
            made.append(vectors_of(ids, is_word))
        vectors = np.concatenate(made)
        result = np.empty_like(vectors)
        result[order] = vectors
        return result

    return encode


def of_pytorch(bert: Bert, threads: int) -> Callable[[Array, Array], Array]:
    """Vectors of a padded mini-batch, by PyTorch."""
    import torch

    from benchmarks.bert.torch_twin import SentenceVectors

    torch.set_num_threads(threads)
    network = SentenceVectors(bert)

    @torch.inference_mode()
    def vectors_of(ids: Array, is_word: Array) -> Array:
        vectors: Array = network(torch.from_numpy(ids), torch.from_numpy(is_word)).numpy()
        return vectors

    return vectors_of


def of_onnxruntime(bert: Bert, threads: int) -> Callable[[Array, Array], Array]:
    """Vectors of a padded mini-batch, by onnxruntime from what PyTorch exports."""
    import onnxruntime
    import torch

    from benchmarks.bert.torch_twin import SentenceVectors

    file, either = io.BytesIO(), {0: "sentences", 1: "tokens"}
    example = torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter through TorchScript is an older one
        torch.onnx.export(
            SentenceVectors(bert), example, file, dynamo=False, opset_version=17,
            input_names=["ids", "is_word"], output_names=["vectors"],
            dynamic_axes={"ids": either, "is_word": either},
        )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        file.getvalue(), options, providers=["CPUExecutionProvider"]
    )

    def vectors_of(ids: Array, is_word: Array) -> Array:
        vectors: Array = session.run(None, {"ids": ids, "is_word": is_word})[0]
        return vectors

    return vectors_of


def peers_of(bert: Bert, options: argparse.Namespace) -> dict[str, Encode]:
    """The peers that are installed, padded as the sentences come and sorted."""
    needs = {"pytorch": ("torch",), "onnxruntime": ("torch", "onnx", "onnxruntime")}
    make = {"pytorch": of_pytorch, "onnxruntime": of_onnxruntime}
    sides: dict[str, Encode] = {}
    for name in options.peers:
        if not all(map(find_spec, needs[name])):
            print(f"{name} is left out: it needs {' and '.join(needs[name])}", file=sys.stderr)
            continue
        vectors_of = make[name](bert, options.threads)
        for order in ("padded", "sorted"):
            sides[f"{name}-{order}"] = padded(vectors_of, options.batch, order == "sorted")
    return sides


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
    sides = {"dynbatch": of_dynbatch(bert, options.batch), **peers_of(bert, options)}
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
            f"{name:20}{rate:10.1f} sentences a second{rate / rates['dynbatch']:8.2f} × dynbatch"
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
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
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
