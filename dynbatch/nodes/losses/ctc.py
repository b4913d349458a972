"""Connectionist temporal classification of one sentence: the loss of an unaligned spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.arguments import is_integer, refused
from dynbatch.backend import Array
from dynbatch.errors import VocabularyError
from dynbatch.kernels.losses import ctc as kernels
from dynbatch.nodes.arguments import as_ids, node_of, same_ids
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.losses.targets import TargetRule
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.ragged import Ragged

STATES_BEFORE = 5
"""Pairs of states, one at each of two frames, for each label: each is a sum and a function."""


class Ctc(Operation):
    """loss = -log Σ_π exp(Σ_t x[t, π_t]), over all paths π of frames that spell the labels.

    Batches with:  every other one of the same V, blank and treatment of infinity, whatever the
        numbers of frames and labels.
    Keeps:  a number for each frame and state, of which U labels have 2 U + 1; one for each frame.
    Cost:  see `kernels.losses.ctc`; time is proportional to Σ T · U, and to N · V in backward.
    """

    __slots__ = ("blank", "ids", "zero_infinity")
    exact = True
    static = ("blank", "zero_infinity")
    shape_rule = "x (T, V), ids (U,) -> ()"
    shape_fix = "F.unsqueeze(x, 0) makes a vector one frame"
    retains = Retain(inputs=True)
    given_attributes = ("ids",)
    ids: Array
    blank: int
    zero_infinity: bool

    def given(self, array: Array) -> tuple[Array]:
        return (labels_of(same_ids("ctc_loss", array), self.inputs[0].width, self.blank),)

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        frames, labels = batch.input_rows(0), batch.sizes("ids")
        states = [n * (2 * count + 1) for n, count in zip(frames, labels, strict=True)]
        return {"states": (sum(states), 1), "shifts": (sum(frames), 1)}

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        states, _ = cls.saved(sizes.batch)["states"]
        return Flops(elementwise=STATES_BEFORE * states)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        return cls.flops(sizes)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """Scratch for values that only backward reads, when no backward follows."""
        return 0 if batch.keeps else sum([rows for rows, _ in cls.saved(batch).values()])

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return kernels.workspace_backward(batch.sizes("ids"))

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        if batch.keeps:
            states, shifts = batch.saved["states"].reshape(-1), batch.saved["shifts"].reshape(-1)
        else:
            states, shifts = np.split(batch.scratch, [batch.scratch.size - x.values.shape[0]])
        kernels.ctc(
            x.values, cls._labels(batch), x.offsets, batch.first.zero_infinity, states, shifts,
            y.flat,
        )  # fmt: skip

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            x, saved = batch.input(0), batch.saved
            kernels.ctc_backward(
                x.values, cls._labels(batch), x.offsets, batch.first.zero_infinity,
                saved["states"].reshape(-1), saved["shifts"].reshape(-1), dy.flat,
                batch.scratch, dx.values,
            )  # fmt: skip

    @staticmethod
    def _labels(batch: Batch) -> kernels.Labels:
        offsets = np.cumsum([0, *batch.sizes("ids")])
        return kernels.Labels(batch.concat("ids"), offsets, batch.first.blank)


def labels_of(ids: Array, width: int, blank: int) -> Array:
    """The ids, if each of them is one of `width` classes and none is the blank.

    Raises:
        VocabularyError: one is not.
    """
    TargetRule("ctc_loss", width, None, "sum").weights_of(ids, np.dtype(np.float32))
    if (ids == blank).any():
        position = int((ids == blank).argmax())
        raise VocabularyError.at_caller(
            f"ctc_loss: target {blank} at position {position} of {ids.size} is the blank.\n"
            "  rule: targets are what is written; frames of no label are the blank's\n"
            "  fix:  leave blanks out, or name another class with blank="
        )
    return ids


def blank_of(what: str, blank: Any, classes: int) -> int:
    """The blank, if it is one of so many classes.

    Raises:
        ArgumentError: it is not.
    """
    if not is_integer(blank) or not 0 <= blank < classes:
        raise refused(
            what, f"blank is {blank!r} of {classes} classes", f"0 <= blank < {classes}",
            "project to one class more than there are labels; 0 is the usual blank",
        )  # fmt: skip
    return int(blank)


def ctc_loss(log_probs: Node, targets: Any, blank: int = 0, zero_infinity: bool = False) -> Node:
    """Connectionist temporal classification: the loss of a sentence whose frames are not aligned.

        loss = -log Σ_π Π_t p_t(π_t),   over all π of T classes that spell the targets

    π spells its classes where equal neighbours are merged and then blanks are left out. The value
    is that of `torch.nn.functional.ctc_loss(reduction="none")`. The gradient is that of `log_probs`
    as they stand; PyTorch's is right only behind a `log_softmax`, where both give the same.

    Args:
        log_probs:     (T, V) logarithms of each frame's probabilities, as of `F.log_softmax`.
        targets:       U ids below V, without blanks. U may be 0.
        blank:         the class of frames without a label.
        zero_infinity: makes the loss 0, and its gradient, where no path spells the targets, as
            there are fewer frames than targets, with a blank between equal neighbours. Else the
            loss is infinite, and `graph.backward` refuses it.

    Returns:
        a scalar, in nats; 0 where T and U are 0. PyTorch's mean divides each loss by max(U, 1).

    Raises:
        ShapeError:      `log_probs` are no matrix.
        VocabularyError: a target is outside 0 … V - 1, or the blank.
        ArgumentError:   the blank is not a class.

    Source: Graves, Fernández, Gomez & Schmidhuber 2006, ICML.
    """
    log_probs = node_of("ctc_loss", log_probs)
    ids = as_ids("ctc_loss", targets)
    if log_probs.ndim == 2:  # else the shape rule says so
        blank = blank_of("ctc_loss", blank, log_probs.width)
        ids = labels_of(ids, log_probs.width, blank)
    return Ctc(log_probs, ids=ids, blank=blank, zero_infinity=bool(zero_infinity))
