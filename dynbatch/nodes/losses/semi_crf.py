"""Semi-Markov conditional random field of one sentence: its loss, and the best segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.errors import ShapeError
from dynbatch.kernels.losses import semi_crf as kernels
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.losses.crf import ChainBase, emissions_of
from dynbatch.nodes.losses.targets import TargetRule
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class SemiChainBase(ChainBase):
    """Base of `SemiCrf` and `SemiViterbi`: scores of segments of up to `longest` tokens."""

    __slots__ = ("longest",)
    static = ("transitions", "start", "end", "longest")
    longest: int

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        """Sums of scores and functions of them: for pairs of labels, and for lengths."""
        tags: int = sizes.batch.first.start.size
        tokens = sizes.inputs[0] // (tags * sizes.batch.first.longest)
        return Flops(elementwise=2 * (tokens * tags * tags + sizes.inputs[0]))


class SemiCrf(SemiChainBase):
    """loss = log Σ_y exp(score(y)) - score(segments), over all segmentations y of the sentence.

        score(y) = start[y_1] + Σ_s x[t_s, (l_s - 1) K + y_s] + Σ_s transitions[y_s, y_s+1]
                   + end[y_S],   of segments s that end at token t_s, l_s <= longest tokens each

    Batches with:  every other one of the same parameters and longest, whatever the lengths.
    Keeps:  two numbers for each token and label, and one for each token.
    Cost:  time is proportional to N · K · (K + longest).
    """

    __slots__ = ("ids",)
    shape_rule = "x (T, longest · K), ids (T,), transitions (K, K), start (K,), end (K,) -> ()"
    retains = Retain(inputs=True)
    given_attributes = ("ids",)
    ids: Array

    def given(self, array: Array) -> tuple[Array]:
        return (segment_ends(array, self.longest, self.start.size),)

    def check_given(self, values: tuple[Any, ...], rows: Sequence[int]) -> None:
        require_tokens(values[0].size, rows[1])

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        tokens, tags = sum(batch.sizes("ids")), batch.first.start.size
        return {"entries": (tokens, tags), "states": (tokens, tags), "shifts": (tokens, 1)}

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return kernels.workspace_backward(*cls.saved(batch)["states"])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        if batch.keeps:
            entries, states, shifts = [batch.saved[name] for name in cls.saved(batch)]
        else:
            tokens, tags = cls.saved(batch)["states"]
            size = tokens * tags
            entries, states = batch.scratch[: 2 * size].reshape(2, tokens, tags)
            shifts = batch.scratch[2 * size :]
        kernels.semi_crf(
            x.values, cls.chain(batch), batch.concat("ids"), x.offsets, entries, states,
            shifts.reshape(-1), y.flat,
        )  # fmt: skip

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        x = batch.input(0)
        dx = batch.xp.empty(x.values.shape, batch.dtype) if dxs[0] is None else dxs[0].values
        kernels.semi_crf_backward(
            x.values, cls.chain(batch), batch.concat("ids"), x.offsets, batch.saved["entries"],
            batch.saved["states"], batch.saved["shifts"].reshape(-1), dy.flat, batch.scratch, dx,
            cls.chain_gradients(batch),
        )  # fmt: skip


class SemiViterbi(SemiChainBase):
    """y_t = the column of x of the best segmentation's segment that ends at t, or -1. No gradient.

    Batches with:  every other one of the same parameters and longest, whatever the lengths.
    """

    __slots__ = ()
    shape_rule = "x (T, longest · K), transitions (K, K), start (K,), end (K,) -> (T, 1)"
    differentiable = False

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        tags: int = batch.first.start.size
        return 3 * batch.rows * tags

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        kernels.semi_viterbi(x.values, cls.chain(batch), x.offsets, batch.scratch, y.flat)


def semi_crf(
    emissions: Node, segments: Any, longest: int, transitions: Parameter, start: Parameter,
    end: Parameter,
) -> Node:  # fmt: skip
    """Negative log-likelihood of one sentence's segments in a semi-Markov CRF, in nats, summed.

    Args:
        emissions: (T, longest · K) scores of the segments that end at a token: column (l - 1) K + j
            is that of l tokens with label j. Where the sentence has fewer, no column is read.
        segments:  (length, label) of each in order; lengths from 1 to `longest` that sum to T.
        longest:   the most tokens of a segment.
        transitions: (K, K) scores of a label (row) before another (column); -inf forbids it.
        start, end:  (K,) scores of the first segment's label and of the last one's.

    Returns:
        log Σ_y exp(score(y)) - score(segments), a scalar; 0 where T is 0.

    Raises:
        ShapeError:      shapes do not fit, or the segments do not cover the tokens.
        VocabularyError: a label is outside 0 … K - 1.
        DtypeError:      a parameter is none, or is not of the graph's dtype.

    Source: Sarawagi & Cohen 2004, NeurIPS 17.
    """
    emissions = emissions_of("semi_crf", emissions, transitions, start, end)
    ids = segment_ends(segments, longest, start.size)
    require_tokens(ids.size, emissions.rows)
    return SemiCrf(
        emissions, transitions=transitions, start=start, end=end, longest=longest, ids=ids
    )


def semi_viterbi(
    emissions: Node, longest: int, transitions: Parameter, start: Parameter, end: Parameter
) -> Node:
    """The columns (T, 1) of `emissions` that a semi-Markov CRF's best segments have, as floats.

    Row t has that of the segment which ends there, (l - 1) K + j, or -1 where none ends.

    Args: as in `semi_crf`.

    Raises:
        ShapeError: shapes do not fit.
        DtypeError: an argument is not a parameter, or not of the graph's dtype.
    """
    emissions = emissions_of("semi_viterbi", emissions, transitions, start, end)
    return SemiViterbi(emissions, transitions=transitions, start=start, end=end, longest=longest)


def require_tokens(covered: int, tokens: int) -> None:
    """Raise `ShapeError` unless segments cover the tokens of their sentence."""
    if covered != tokens:
        raise ShapeError.at_caller(
            f"semi_crf: segments of {covered} tokens for a sentence of {tokens}.\n"
            "  rule: segments cover the sentence\n"
            "  fix:  a token outside has a segment and label of its own"
        )


def segment_ends(segments: Any, longest: int, labels: int) -> Array:
    """(T,) the column (l - 1) K + j of the segment that ends at a token, or -1.

    Raises:
        ArgumentError:   the segments are not pairs of whole numbers.
        ShapeError:      a length is outside 1 … longest.
        VocabularyError: a label is outside 0 … K - 1.
    """
    try:
        pairs = np.asarray(segments if len(segments) else np.zeros((0, 2), np.int64))
    except (TypeError, ValueError):
        pairs = np.zeros(0)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise refused(
            "semi_crf", f"segments is {shown(segments)}", "(length, label) of each, in order",
            "[(2, 0), (1, 3)] are two tokens of label 0 and one of label 3",
        )  # fmt: skip
    lengths, classes = pairs.astype(np.int64).T
    wrong = np.flatnonzero((lengths < 1) | (lengths > longest))
    if wrong.size:
        raise ShapeError.at_caller(
            f"semi_crf: segment {wrong[0]} has {lengths[wrong[0]]} tokens, of at most {longest}.\n"
            "  rule: a segment has 1 to `longest` tokens\n"
            "  fix:  make several of a longer one, or a larger `longest` of the model"
        )
    TargetRule("semi_crf", labels, None, "sum").check(classes, np.ones(classes.size, bool), labels)
    ids = np.full(int(lengths.sum()), -1, np.int64)
    ids[np.cumsum(lengths) - 1] = (lengths - 1) * labels + classes
    return ids
