"""`PaddedModel`: a model padded, with the same parameters, kernels, loss and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynbatch import nodes as F
from dynbatch.errors import DynbatchError
from dynbatch.models.module import Module
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.nodes.base import Node, Owner
from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.recurrent import recurrent
from dynbatch.padding.seq2seq import PaddedSeq2Seq
from dynbatch.padding.targets import IGNORED, ignored_after
from dynbatch.parameter import Array

Example = Any
Longest = tuple[int, ...]
Loss = Callable[..., Node]


class PaddingError(DynbatchError, ValueError):
    """A model or its data cannot be padded: says why, and what would make it possible."""


def _nothing() -> None:
    """What most twins have to collect."""


@dataclass(frozen=True)
class PaddedModel:
    """A model on padded sentences.

    Args:
        lengths: of an example's sequences; sentences of a batch are padded to the longest of each.
        pad:     (example, longest) -> the padded example: a tuple, what `loss` takes.
        loss:    (graph, *padded example) -> the loss of one padded sentence.
        collect: after backward, gives the model's parameters gradients that went elsewhere.
    """

    lengths: Callable[[Example], Longest]
    pad: Callable[[Example, Longest], Sequence[Any]]
    loss: Loss
    collect: Callable[[], None] = _nothing

    def batch(self, examples: Sequence[Example]) -> list[Sequence[Any]]:
        """The examples of a mini-batch, each padded to the longest of them.

        Raises:
            PaddingError: `pad` gave no arguments of a loss, or lengthened nothing.
        """
        longest = tuple([max(side) for side in zip(*map(self.lengths, examples), strict=True)])
        padded = [self.pad(example, longest) for example in examples]
        _require_padded(padded)
        return padded


def twin_of(
    model: Module,
    loss: Loss,
    pad: Callable[[Example, Longest], Sequence[Any]] | None = None,
    padded_loss: Loss | None = None,
) -> PaddedModel:
    """The padded form of a model.

    Models of the library have one of their own, exact: attention sees no padding, a backward LSTM
    begins at the last token, padded targets do not count. Any other model gets its own loss on
    padded examples, which is exact if nothing in it looks ahead but what is masked.

    Args:
        loss:        the model's, (graph, *example) -> the loss of one sentence.
        pad:         (example, longest) -> padded example; `pad_ids` by default.
        padded_loss: the loss of a padded example, where it needs masks; `loss` by default.
    """
    own = getattr(loss, "__self__", None) is model and getattr(loss, "__name__", "") == "loss"
    if pad is None and padded_loss is None and own:
        if type(model) is Seq2Seq:
            twin = PaddedSeq2Seq(model)
            return PaddedModel(lengths_of, _with_lengths, twin, twin.collect)
        if type(model) is Tagger:
            return PaddedModel(lengths_of, _with_lengths, _TaggerTwin(model))
        if type(model) is LanguageModel:
            return PaddedModel(lengths_of, _with_lengths, _LanguageModelTwin(model))
    return PaddedModel(lengths_of, pad or pad_ids, padded_loss or loss)


def lengths_of(example: Example) -> Longest:
    """Tokens of each sequence of an example: those of its parts that are lists or arrays of ids.

    Raises:
        PaddingError: there is no sequence in it: a tree, an object, a number.
    """
    lengths = tuple([len(part) for part in _parts(example) if _is_sequence(part)])
    if not lengths:
        raise PaddingError(
            f"an example is {described(example)}: it has no sequence of tokens that could be "
            "padded.\n"
            "  rule: padding lengthens lists or arrays; a tree or a graph has none that does not\n"
            "        change its shape\n"
            "  fix:  give pad=, a function (example, longest) -> padded example, if the model has\n"
            "        a padded form; without one there is nothing to compare with"
        )
    return lengths


def pad_ids(example: Example, longest: Longest) -> Sequence[Any]:
    """Each sequence of the example lengthened by zeros; the last of several by `IGNORED` targets.

    A matrix (T, D) gets rows of zeros. What is no sequence stays as it is.
    """
    parts = list(_parts(example))
    places = [k for k, part in enumerate(parts) if _is_sequence(part)]
    for place, length in zip(places, longest, strict=True):
        filler = IGNORED if place == places[-1] and len(places) > 1 else 0
        parts[place] = lengthened(parts[place], length, filler)
    return parts


def lengthened(ids: Any, length: int, filler: float) -> Array:
    """The array, and behind it rows of `filler`, so that it has `length` rows."""
    array = np.asarray(ids)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # NumPy takes [] for numbers
    rest = np.full((length - len(array), *array.shape[1:]), filler, array.dtype)
    return np.concatenate([array, rest])


def _require_padded(batch: Sequence[Any]) -> None:
    for example in batch:
        if not isinstance(example, list | tuple):
            raise PaddingError(
                f"pad gave {described(example)}.\n"
                "  rule: it gives a tuple, with which the loss is called: (graph, *padded example)"
            )
    lengths = [[len(part) for part in example if _is_sequence(part)] for example in batch]
    sides = [set(side) for side in zip(*lengths, strict=False)]
    if sides and all([len(side) > 1 for side in sides]):
        raise PaddingError(
            f"pad gave sequences of {lengths[0]} tokens for one example, and others for the rest "
            "of\n  its batch: it does not pad.\n"
            "  rule: (example, longest lengths) -> the example, with sequences of those lengths\n"
            "  fix:  dynbatch.padding.pad_ids does so"
        )


def _with_lengths(example: Example, longest: Longest) -> Sequence[Any]:
    """Padded ids, then the true lengths."""
    parts = _parts(example)
    padded = [lengthened(ids, length, 0) for ids, length in zip(parts, longest, strict=True)]
    return [*padded, *map(len, parts)]


def _parts(example: Example) -> Sequence[Any]:
    return example if isinstance(example, tuple) else (example,)


def _is_sequence(part: Any) -> bool:
    if isinstance(part, np.ndarray):
        return part.ndim > 0
    return isinstance(part, list) and not any([isinstance(x, list | tuple) for x in part])


def described(example: Example) -> str:
    """Its type; of a tuple, those of its parts."""
    kinds = ", ".join([type(part).__name__ for part in _parts(example)])
    return f"({kinds})" if isinstance(example, tuple) else f"a {kinds}"


class _TaggerTwin:
    def __init__(self, model: Tagger) -> None:
        self.model = model

    def __call__(self, graph: Owner, words: Array, tags: Array, length: int, _: int) -> Node:
        model = self.model
        states = recurrent(model.encoder, model.embedding(graph, words), length)
        targets = ignored_after(tags, length)
        return F.cross_entropy(model.output(states), targets, reduction="sum")


class _LanguageModelTwin:
    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def __call__(self, graph: Owner, words: Array, length: int) -> Node:
        model = self.model
        read, written = model.read_and_written(words)
        written[length] = model.mark
        states = recurrent(model.encoder, model.embedding(graph, read), length + 1)
        targets = ignored_after(written, length + 1)
        return F.cross_entropy(model.output(states), targets, reduction="sum")
