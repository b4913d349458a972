"""Losses over the paths of a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise, product
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.losses import ctc, semi_crf
from dynbatch.kernels.losses.crf import Chain
from tests.kernels.table.call import Call, Scene, Scratch, Values, case, normal, room

# Frames and labels of each sentence: none, too few frames, just enough, equal neighbours; labels
# for parts of a vector, several vectors, several warps and more than a block has threads.
CTC = {
    "paths enumerated": (
        ((5, 2), (0, 0), (3, 0), (1, 1), (2, 2), (0, 1), (1, 2), (5, 3), (4, 2)),
        3,
    ),
    "of many labels": (((30, 15), (1, 0), (4, 9), (90, 40), (70, 33)), 40),
    "of more labels than threads": (((150, 140),), 9),
    "empty ones": (((0, 0), (0, 0)), 2),
    "none": ((), 3),
}


def spelled(path: Any, blank: int) -> list[int]:
    return [label for label, _ in groupby(path) if label != blank]


def of_paths(x: Array, ids: Array, blank: int) -> tuple[float, Array]:
    """Loss and gradient of one sentence, from all paths that spell its labels."""
    paths = product(range(x.shape[1]), repeat=len(x))
    right = [path for path in paths if spelled(path, blank) == ids.tolist()]
    weights = np.exp([x[range(len(x)), path].sum() for path in right])
    dx = np.zeros_like(x)
    for path, weight in zip(right, weights, strict=True):
        dx[range(len(x)), path] -= weight / weights.sum()
    return -float(np.log(weights.sum())), dx if right else dx + np.nan


@case(sentences=CTC, zero_infinity=[False, True])
def of_ctc(dtype: Any, sentences: tuple[Any, int], zero_infinity: bool) -> Scene:
    lengths, classes = sentences
    frames, counts = np.array(lengths, np.int64).reshape(-1, 2).T
    offsets, places = [np.append(0, np.cumsum(each)) for each in (frames, counts)]
    blank = classes - 1
    ids = np.random.default_rng(2).integers(0, blank, places[-1])
    if ids.size:
        ids[1:3] = ids[0]  # equal neighbours
    labels = ctc.Labels(ids, places, blank)
    x = 2 * normal(dtype, offsets[-1], classes)
    states = room(np.empty(labels.state_offsets(offsets)[-1], dtype))
    shifts, out = [room(np.empty(size, dtype)) for size in (offsets[-1], len(lengths))]
    losses = gradient = None
    dy = normal(dtype, len(lengths), seed=1)
    if classes < 4:
        with np.errstate(divide="ignore"):
            of_each = [
                of_paths(x[r:s].astype(np.float64), ids[u:v], blank)
                for (r, s), (u, v) in zip(pairwise(offsets), pairwise(places), strict=True)
            ]
        losses = np.array([loss for loss, _ in of_each])
        slopes = [g * np.float64(scale) for (_, g), scale in zip(of_each, dy, strict=True)]
        gradient = np.concatenate([x[:0], *slopes])
        if zero_infinity:
            losses, gradient = [np.where(np.isfinite(each), each, 0) for each in (losses, gradient)]
    near = {"launches": int(len(lengths) > 0), "rtol": 1e-4, "atol": 1e-5}
    states, shifts, _ = yield Call(
        ctc.ctc, Values(x), labels, offsets, zero_infinity, states, shifts, out, outputs=3,
        plain=(None, None, losses), **near,
    )  # fmt: skip
    scratch = Scratch(ctc.workspace_backward(counts.tolist()), dtype)
    yield Call(
        ctc.ctc_backward, Values(x), labels, offsets, zero_infinity, Values(states), Values(shifts),
        Values(dy), scratch, room(x), plain=gradient, **near,
    )  # fmt: skip


# Tokens of each sentence, labels and longest segments: of part of a vector, a warp, several.
SEMI_CRF = {
    "segmentations enumerated": ((4, 0, 1, 3, 2), 2, 3), "of one label": ((3, 0, 5), 1, 2),
    "of one length": ((3, 2), 5, 1), "of many labels": ((9, 0, 4, 20), 40, 7),
    "empty ones": ((0, 0), 3, 2), "none": ((), 3, 2),
}  # fmt: skip


def segmentations(length: int, longest: int, labels: int) -> Iterator[list[int]]:
    """All segmentations of so many tokens, as columns at the tokens where segments end."""
    if not length:
        yield []
    for last in range(min(longest, length)):
        for before in segmentations(length - last - 1, longest, labels):
            for label in range(labels):
                yield [*before, *[-1] * last, last * labels + label]


def of_segmentation(x: Array, chain: Chain, columns: Any) -> float:
    """The score of a segmentation."""
    at = [t for t, column in enumerate(columns) if column >= 0]
    labels = [columns[t] % chain.start.size for t in at]
    if not at:
        return 0.0
    between = sum([chain.transitions[pair] for pair in pairwise(labels)])
    inside = sum([x[t, columns[t]] for t in at])
    return float(chain.start[labels[0]] + inside + between + chain.end[labels[-1]])


class SemiCrf:
    """Emissions, chain, columns and offsets; where it forbids, some scores are -inf."""

    def __init__(self, dtype: Any, sizes: tuple[Any, int, int], forbids: bool) -> None:
        lengths, labels, longest = sizes
        offsets, rng = np.append(0, np.cumsum(lengths, dtype=np.int64)), np.random.default_rng(5)
        x = 2 * normal(dtype, offsets[-1], longest * labels)
        shapes = ((labels, labels), (labels,), (labels,))
        chain = Chain(*[normal(dtype, *shape, seed=k) for k, shape in enumerate(shapes)])
        columns = []
        for length in lengths:
            ends_at = rng.random(length) < 0.6
            ends_at[max(0, length - longest) :: longest] = True
            ends_at[-1:], size = True, 0
            for t in range(length):
                size += 1
                is_end = ends_at[t] or size == longest
                columns.append((size - 1) * labels + int(rng.integers(labels)) if is_end else -1)
                size = 0 if is_end else size
        ids = np.array(columns, np.int64)
        if forbids and labels > 4:
            chain.transitions[0, 1:], chain.start[1] = -np.inf, -np.inf
            ids[ids >= 0] += (ids[ids >= 0] % labels < 2) * 2
        self.x, self.chain, self.ids, self.offsets = x, chain, ids, offsets
        self.rows = np.empty((offsets[-1], labels), dtype)
        self.arguments = (Values(x), Chain(*map(Values, chain)), ids, offsets)

    def forward(self) -> Call:
        out = room(np.empty(len(self.offsets) - 1, self.x.dtype))
        rooms = [room(each) for each in (self.rows, self.rows, self.rows[:, 0])]
        return Call(
            semi_crf.semi_crf, *self.arguments, *rooms, out, outputs=4, rtol=1e-4, atol=1e-5,
            launches=int(len(self.offsets) > 1),
        )  # fmt: skip


@case(sizes=SEMI_CRF, forbids=[False, True])
def of_semi_crf(dtype: Any, sizes: tuple[Any, int, int], forbids: bool) -> Scene:
    lengths, labels, longest = sizes
    problem = SemiCrf(dtype, sizes, forbids)
    call, best = problem.forward(), None
    if labels < 3 and lengths:
        losses, parts = [], []
        for a, b in pairwise(problem.offsets.tolist()):
            x, every = (
                problem.x[a:b].astype(np.float64),
                list(segmentations(b - a, longest, labels)),
            )
            scores = [of_segmentation(x, problem.chain, each) for each in every]
            mine = of_segmentation(x, problem.chain, problem.ids[a:b])
            losses.append(np.logaddexp.reduce(scores) - mine)
            parts.append(every[int(np.argmax(scores))])
        call.plain, best = (None, None, None, np.array(losses)), np.concatenate(parts)
    yield call
    x, chain, _, offsets = problem.arguments
    scratch = Scratch(3 * problem.rows.size, dtype)
    yield Call(
        semi_crf.semi_viterbi, x, chain, offsets, scratch, room(problem.rows[:, 0]), plain=best,
        launches=call.launches,
    )  # fmt: skip


@case(sizes=SEMI_CRF, forbids=[False, True])
def of_semi_crf_backward(dtype: Any, sizes: tuple[Any, int, int], forbids: bool) -> Scene:
    problem = SemiCrf(dtype, sizes, forbids)
    left = problem.forward().by_numpy()[4:7]
    count, tokens = len(sizes[0]), len(problem.rows)
    wanted = Chain(*[room(part) for part in problem.chain])
    # One for dx, two for the transitions, one each for start and end; a sum writes its zeros.
    yield Call(
        semi_crf.semi_crf_backward, *problem.arguments, *map(Values, left),
        Values(normal(dtype, count, seed=1)),
        Scratch(semi_crf.workspace_backward(*problem.rows.shape), dtype), room(problem.x), wanted,
        outputs=2, launches=5 if tokens else 3 + (count > 0), rtol=1e-4, atol=1e-5,
    )  # fmt: skip
