"""A small training run for compute-sanitizer, with every kernel of the benchmark models.

Each array is an allocation of its own, no piece of CuPy's pool: a stray access is outside.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.job import tell
from benchmarks.lengths import Corpus
from benchmarks.networks import (
    Seq2SeqSizes,
    TaggerSizes,
    TransformerSizes,
    TreeSizes,
    initial_values,
)
from benchmarks.workloads import Workload
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.tagger import DynbatchTagger
from benchmarks.workloads.transformer import DynbatchTransformer
from benchmarks.workloads.tree import DynbatchTree
from dynbatch import backend
from dynbatch.kernels.cuda.runtime.launch import REAL
from dynbatch.kernels.cuda.runtime.queue import queue

MODELS = (
    Workload(TaggerSizes(vocabulary=50, embedding=20, hidden=36, tags=7), DynbatchTagger),
    Workload(
        Seq2SeqSizes(source_vocabulary=50, target_vocabulary=60, embedding=20, hidden=36),
        DynbatchSeq2Seq,
    ),
    Workload(TreeSizes(vocabulary=50, embedding=20, hidden=18), DynbatchTree),
    Workload(
        TransformerSizes(vocabulary=50, hidden=36, inner=40, heads=2, layers=1), DynbatchTransformer
    ),
)
LENGTHS = np.array([[5, 5], [1, 1], [9, 9], [34, 34]])
STEPS = 2


def run(lengths: np.ndarray = LENGTHS) -> Iterator[dict[str, Any]]:
    """The losses of a few steps of each model, and the kernels of ours that ran for them."""
    rng = np.random.default_rng(0)
    losses: list[float] = []
    for model in MODELS:
        side = model.ours(model.sizes, initial_values(model.sizes, rng), "cuda")
        corpus: Corpus = model.corpus(0.5)
        batch = corpus.fill(rng, lengths)
        losses += [side.train(batch) for _ in range(STEPS)]
        side.wait()
        counts = [queue().kernels(dtype).launches for dtype in REAL]
        yield {
            "losses": losses,
            "kernels": len(set().union(*counts)),
            "launches": sum([count.total() for count in counts]),
        }


def main() -> int:
    """The command: JSON after each model; status 1 where a loss is not finite."""
    backend.device("cuda").xp.cuda.set_allocator(None)
    return 0 if np.isfinite(tell(run())["losses"]).all() else 1


if __name__ == "__main__":
    sys.exit(main())
