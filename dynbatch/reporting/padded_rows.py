"""`padded_rows`: the rows of given sentences that look like padding."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.nodes.sources import Input, Lookup

TYPES = Lookup, Input
"""Nodes that read what a sentence gives."""

LEAST_SENTENCES = 4
"""Fewer of one length may be so by chance."""


def padded_rows(step: StepRun) -> int:
    """The rows that repeat the row before them at the end of a sentence, where all sentences are of
    one length, and at least half of them end in that way: in one id, or in zeros where the longest
    sentence does not.

    Every graph asks this of what it is given, so that most are answered by a look at the last rows.
    """
    lengths = step.block.lengths
    count, length = len(lengths), lengths[0]
    kind = step.node_type
    if kind not in TYPES or count < LEAST_SENTENCES or length < 2:
        return 0
    if step.block.width == 0 or any([one != length for one in lengths]):
        return 0
    if kind is Lookup:
        ids = np.asarray(step.batch.concat("ids")).reshape(count, length)
        if 2 * np.count_nonzero(ids[:, -1] == ids[:, -2]) < count:
            return 0
        (last, _), *_ = Counter(ids[:, -1].tolist()).most_common(1)
        is_padding: Array = ids == last
    else:
        arrays = step.batch.column("array")
        if any([not isinstance(array, np.ndarray) or array.ndim != 2 for array in arrays]):
            return 0
        if 2 * sum([array[-1, -1] == 0 for array in arrays]) < count:
            return 0
        is_padding = np.logical_not(np.stack(arrays).any(axis=2))
    at_end = np.logical_and.accumulate(is_padding[:, ::-1], axis=1).sum(axis=1)
    if kind is Input and at_end.min():
        return 0  # the margin of pictures, say
    repeated = at_end - 1
    return int(repeated[repeated > 0].sum()) if 2 * np.sum(repeated > 0) >= count else 0
