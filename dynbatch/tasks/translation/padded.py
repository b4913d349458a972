"""Pairs of a Transformer with padding, to compare memory with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.models import TransformerTranslation
from dynbatch.nodes.node import Node, Owner
from dynbatch.padding.padded_model import lengthened
from dynbatch.padding.targets import ignored_after


def padded_loss(
    model: TransformerTranslation, graph: Owner, source: Array, target: Array, num_source: int,
    num_target: int,
) -> Node:  # fmt: skip
    """The loss of a pair that is padded behind its last tokens: keys are masked, and targets that
    do not count ignored."""
    mask = np.arange(len(source)) < num_source
    memory = model.encode(graph, source, mask)
    states = model.decode(graph, model.opened(target), memory, mask)
    written = np.append(target, model.end)
    written[num_target] = model.end
    return model.cross_entropy(states, ignored_after(written, num_target + 1))


def padded_pair(
    pair: tuple[ArrayLike, ArrayLike], longest: tuple[int, ...]
) -> tuple[Array, Array, int, int]:
    """A pair with both sides lengthened, and their lengths: what `padded_loss` takes."""
    source, target = [
        lengthened(side, length, 0) for side, length in zip(pair, longest, strict=True)
    ]
    return source, target, len(np.asarray(pair[0])), len(np.asarray(pair[1]))
