"""`PaddedModel`: a model padded, with the same parameters, kernels, loss and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.errors import DynbatchError
from dynbatch.models.module import Module
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.nodes.node import Node, Owner
from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.recurrent import recurrent
from dynbatch.padding.seq2seq import PaddedSeq2Seq
from dynbatch.padding.targets import IGNORED, ignored_after

Example = Any
"""Ids of one sentence, or a tuple of them with others; what a loss takes behind the graph."""

PaddedExample = Sequence[Any]
Longest = tuple[int, ...]
Loss = Callable[..., Node]
Pad = Callable[[Example, Longest], PaddedExample]


class PaddingError(DynbatchError, ValueError):
    """A model or its data cannot be padded; the message says why and what to do."""


def _nothing() -> None:
    """Collect nothing, as most padded models do."""


@dataclass(frozen=True)
class PaddedModel:
    """A model on padded sentences.

    Args:
        lengths: gives the lengths of an example's sequences; a batch is padded to the longest.
        pad:     (example, longest) -> the padded example: a tuple, what `loss` takes.
        loss:    (graph, *padded example) -> the loss of one padded sentence.
        collect: after backward, gives the model's parameters gradients that went elsewhere.
    """

    lengths: Callable[[Example], Longest]
    pad: Pad
    loss: Loss
    collect: Callable[[], None] = _nothing

    def batch(self, examples: Sequence[Example]) -> list[PaddedExample]:
        """The examples of a mini-batch, each padded to the longest of them.

        Raises:
            PaddingError: `pad` did not give the arguments of a loss, or lengthened nothing.
        """
        longest = tuple([max(side) for side in zip(*map(self.lengths, examples), strict=True)])
        padded = [self.pad(example, longest) for example in examples]
        _require_padded(padded)
        return padded


def pad_model(
    model: Module,
    loss: Loss,
    pad: Pad | None = None,
    padded_loss: Loss | None = None,
) -> PaddedModel:
    """The padded form of a model.

    For a `Seq2Seq`, a `Tagger` or a `LanguageModel` it is exact: attention does not see padding, a
    backward LSTM begins at the last token, padded targets do not count. For any other model it is
    the model's own loss on padded examples. That is exact if what looks ahead is masked.

    Args:
        loss:        (graph, *example) -> the loss of one sentence.
        pad:         (example, longest) -> padded example; `pad_ids` by default.
        padded_loss: the loss of a padded example, where it needs masks; `loss` by default.
    """
    is_own = getattr(loss, "__self__", None) is model and getattr(loss, "__name__", "") == "loss"
    if pad is None and padded_loss is None and is_own:
        if type(model) is Seq2Seq:
            padded = PaddedSeq2Seq(model)
            return PaddedModel(lengths_of, _with_lengths, padded, padded.collect)
        if type(model) is Tagger:
            return PaddedModel(lengths_of, _with_lengths, partial(_tagger_loss, model))
        if type(model) is LanguageModel:
            return PaddedModel(lengths_of, _with_lengths, partial(_language_model_loss, model))
    return PaddedModel(lengths_of, pad or pad_ids, padded_loss or loss)


def lengths_of(example: Example) -> Longest:
    """The length of each sequence of an example; lists and arrays of ids are sequences.

    Raises:
        PaddingError: the example has none; it is a tree, an object or a number.
    """
    lengths = tuple([len(part) for part in parts_of(example) if _is_sequence(part)])
    if not lengths:
        raise PaddingError(
            f"an example is {described(example)}: it has no sequence of tokens that could be "
            "padded.\n"
            "  rule: padding lengthens lists or arrays; to lengthen those of a tree or a graph\n"
            "        would change its shape\n"
            "  fix:  give pad=, a function (example, longest) -> padded example, if the model has\n"
            "        a padded form; without one there is nothing to compare with"
        )
    return lengths


def pad_ids(example: Example, longest: Longest) -> PaddedExample:
    """Lengthen each sequence of the example by zeros, and the last of several by `IGNORED` targets.

    A matrix (T, D) gets rows of zeros. Parts that are not sequences stay as they are.
    """
    parts = list(parts_of(example))
    sequences = [k for k, part in enumerate(parts) if _is_sequence(part)]
    for k, length in zip(sequences, longest, strict=True):
        filler = IGNORED if k == sequences[-1] and len(sequences) > 1 else 0
        parts[k] = lengthened(parts[k], length, filler)
    return parts


def lengthened(ids: ArrayLike, length: int, filler: float) -> Array:
    """The array with rows of `filler` behind it, so that it has `length` rows."""
    array = np.asarray(ids)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # NumPy makes floats of []
    rest = np.full((length - len(array), *array.shape[1:]), filler, array.dtype)
    return np.concatenate([array, rest])


def _require_padded(batch: Sequence[PaddedExample]) -> None:
    for example in batch:
        if not isinstance(example, list | tuple):
            raise PaddingError(
                f"pad returned {described(example)}.\n"
                "  rule: it returns a tuple, and the loss is called with (graph, *padded example)"
            )
    lengths = [[len(part) for part in example if _is_sequence(part)] for example in batch]
    sides = [set(side) for side in zip(*lengths, strict=False)]
    if sides and all([len(side) > 1 for side in sides]):
        raise PaddingError(
            f"pad returned sequences of {lengths[0]} tokens for one example, and of other lengths "
            "for\n  the rest of its batch: it does not pad.\n"
            "  rule: (example, longest lengths) -> the example with sequences of these lengths\n"
            "  fix:  dynbatch.padding.pad_ids does so"
        )


def _with_lengths(example: Example, longest: Longest) -> PaddedExample:
    parts = parts_of(example)
    padded = [lengthened(ids, length, 0) for ids, length in zip(parts, longest, strict=True)]
    return [*padded, *map(len, parts)]


def parts_of(example: Example) -> tuple[Any, ...]:
    """The arguments that a loss takes of an example behind the graph."""
    return example if isinstance(example, tuple) else (example,)


def _is_sequence(part: object) -> bool:
    if isinstance(part, np.ndarray):
        return part.ndim > 0
    return isinstance(part, list) and not any([isinstance(x, list | tuple) for x in part])


def described(example: Example) -> str:
    kinds = ", ".join([type(part).__name__ for part in parts_of(example)])
    return f"({kinds})" if isinstance(example, tuple) else f"a {kinds}"


def _tagger_loss(
    model: Tagger, graph: Owner, words: Array, tags: Array, length: int, _: int
) -> Node:
    states = recurrent(model.encoder, model.embedding(graph, words), length)
    return F.cross_entropy(model.output(states), ignored_after(tags, length), reduction="sum")


def _language_model_loss(model: LanguageModel, graph: Owner, words: Array, length: int) -> Node:
    read, written = model.read_and_written(words)
    written[length] = model.mark
    states = recurrent(model.encoder, model.embedding(graph, read), length + 1)
    targets = ignored_after(written, length + 1)
    return F.cross_entropy(model.output(states), targets, reduction="sum")
