"""Losses over the paths of a sentence."""

from __future__ import annotations

from itertools import groupby, pairwise, product
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.losses import ctc
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
