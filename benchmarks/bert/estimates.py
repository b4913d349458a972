"""The memory of a training step, planned: arena, index tables, parameters, Adam's moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dynbatch as db
from benchmarks.bert.examples import Example, examples
from dynbatch import nodes as F
from dynbatch.models.pretrained.bert_heads import BertForMaskedWords
from dynbatch.padding import pad_model

GIB = 1 << 30
ADAM = 4  # arrays of a parameter: values, gradient, two moments

Lengths = Callable[[int, int], list[int]]
"""(sentences, longest length) -> their lengths."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step.

    Args:
        tokens:     of the mini-batch, without padding.
        state:      parameters, their gradients and Adam's two moments.
        arena:      values, gradients of values and workspaces at the peak.
        tables:     index tables.
        peak_stage: what runs then.
        by_type:    of the arena, by node type.
    """

    tokens: int
    state: int
    arena: int
    tables: int
    peak_stage: str
    by_type: Mapping[str, int]

    @property
    def total(self) -> int:
        """All bytes."""
        return self.state + self.arena + self.tables

    @property
    def gib(self) -> float:
        """All bytes, in GiB."""
        return self.total / GIB


def state_bytes(model: BertForMaskedWords) -> int:
    """Parameters, their gradients and Adam's moments, all dense."""
    return ADAM * sum([parameter.value.nbytes for parameter in model.parameters()])


def mean_loss(model: BertForMaskedWords, graph: db.Graph, batch: Sequence[Example]) -> db.Node:
    """The mean of the losses of the predicted words."""
    count = sum([int((targets >= 0).sum()) for _, targets in batch])
    return F.sum([model.loss(graph, ids, targets) for ids, targets in batch]) * (1.0 / count)


def estimate(model: BertForMaskedWords, lengths: Sequence[int], pads: bool = False) -> StepMemory:
    """Plan the step; no kernel runs.

    Args:
        pads: lengthen all sentences to the longest, as a rectangle would have them.
    """
    given = batch = examples(lengths, model.config)
    if pads:
        padded = pad_model(model, model.loss).batch(batch)
        batch = [(ids, targets) for ids, targets in padded]
    with db.Graph(seed=0) as graph:
        use = graph.estimate(mean_loss(model, graph, batch))
    return StepMemory(
        tokens=sum([len(ids) for ids, _ in given]),
        state=state_bytes(model),
        arena=use.peak_bytes,
        tables=use.tables_bytes,
        peak_stage=use.peak_stage,
        by_type=use.by_type,
    )


def most_sentences(total: Callable[[int], int], limit: int, first: int = 4) -> int:
    """The most sentences whose step fits a limit; 0 if not one does.

    Args:
        total: bytes of a step of so many sentences: the more the larger, nearly on a line.
        first: how many more to try at first.
    """
    fits, held = 1, total(1)
    if held > limit:
        return 0
    count = fits + first
    while (needed := total(count)) <= limit:
        each = max(1, (needed - held) // (count - fits))
        fits, held = count, needed
        count += max(1, (limit - needed) // each)
    while count - fits > 1:
        share = (limit - held) / (needed - held)
        guess = min(max(fits + round(share * (count - fits)), fits + 1), count - 1)
        if (found := total(guess)) <= limit:
            fits, held = guess, found
        else:
            count, needed = guess, found
    return fits
