"""What came of a training: error rates, and a mini-batch's memory beside that of a padded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.models import Seq2Seq
from dynbatch.train import padding_ratio
from examples.seq2seq.corpus import Example, Tokens
from examples.seq2seq.data import Pair
from examples.seq2seq.metrics import ErrorRates, error_rates
from examples.seq2seq.translator import Translator
from examples.seq2seq.vocabulary import Array


def evaluate(
    translator: Translator, examples: Sequence[Example], beam_size: int = 1
) -> tuple[ErrorRates, list[Tokens]]:
    """Error rates over the examples, and the target generated for each."""
    sources = [example.source for example in examples]
    found = [best.tokens for best, *_ in translator.translate(sources, beam_size)]
    return error_rates(found, [example.references for example in examples]), found


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """Bytes of arenas in use at the peak of one training step: values, their gradients, scratch.

    `padded` is measured on the same model with the same pairs, every source and every target
    extended to the longest of the mini-batch. Parameters and the optimizer's state, the same for
    both, are not counted. `tokens_ratio` is how many times the tokens a padded batch has.
    """

    unpadded: int
    padded: int
    num_pairs: int
    tokens_ratio: float

    def __str__(self) -> str:
        return (
            f"{self.unpadded / 1e6:.1f} MB unpadded, {self.padded / 1e6:.1f} MB with every "
            f"sentence extended to the longest ({self.padded / self.unpadded:.2f} times, for "
            f"{self.tokens_ratio:.2f} times the tokens)"
        )


def measure_memory(model: Seq2Seq, batch: Sequence[Pair]) -> BatchMemory:
    """Run loss and gradient of a mini-batch twice, as it is and extended, and compare."""
    sources = [pair.source.size for pair in batch]
    targets = [pair.target.size for pair in batch]
    longest = max(sources), max(targets)
    padded = [
        Pair(_extended(pair.source, longest[0]), _extended(pair.target, longest[1]))
        for pair in batch
    ]
    tokens = sum(sources) + sum(targets)
    ratio = (padding_ratio(sources) * sum(sources) + padding_ratio(targets) * sum(targets)) / tokens
    return BatchMemory(_peak_bytes(model, batch), _peak_bytes(model, padded), len(batch), ratio)


def _peak_bytes(model: Seq2Seq, batch: Sequence[Pair]) -> int:
    with db.Graph(model.parameters()[0].device) as graph:
        loss = F.mean([model.loss(graph, pair.source, pair.target) for pair in batch])
        graph.backward(loss)
    for parameter in model.parameters():
        parameter.zero_grad()
    return graph.peak_bytes


def _extended(ids: Array, length: int) -> Array:
    """Ids with more of any kind behind them: memory depends on their number alone."""
    return np.resize(ids, length) if ids.size else np.zeros(length, np.int64)
