"""Tables of steps in an order in which all those of a sentence come before the next's.

A step's matrices stay in the second-level cache then, which those of all sentences exceed. What it
makes has rows of its own, r, in packed arrays: where nothing else reads them, a sentence's steps
take turns with few of these, and where backward follows at once, sentences with the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from dynbatch.backend import Array
from dynbatch.compiler.arrays import Step

COLUMNS = 5
"""Of a table: row s of a token, the sentence, row r of what the step makes; and both of the step
before, or -1."""


class Keeps(Enum):
    """The rows that are read after a table's steps."""

    ALL = "all"
    LAST = "the last of each sentence"
    NONE = "none: backward runs sentence by sentence"


# Both passes of each sentence, the last one first.
AGAIN = f"""\
EXPORT void again(ptrdiff_t count, const int64_t* steps, int given, const int64_t* at,
    const int64_t* at_back, const void* panel_product) {{
    for (ptrdiff_t end = count, start; end > 0; end = start) {{
        const int64_t* last = steps + {COLUMNS} * (end - 1);
        start = end - 1;
        while (start > 0 && last[1] == steps[{COLUMNS} * start - {COLUMNS - 1}]) start--;
        const int64_t* first = steps + {COLUMNS} * start;
        forward(end - start, first, given, 0, 0, at, panel_product);
        backward(end - start, first, given, 0, 0, at_back, panel_product);
    }}
}}
"""


def by_sentence(steps: Sequence[Step], keeps: Keeps) -> Array:
    """The table of steps in prefix layout."""
    table = np.array(steps, np.int64).reshape(-1, 4)
    starts, counts, before = table[:, 0], table[:, 2], table[:, 3]
    number = np.repeat(np.arange(len(table)), counts)  # of each row's step
    sentence = np.arange(number.size) - np.repeat(np.cumsum(counts) - counts, counts)
    s = starts[number] + sentence
    p = np.where(before[number] < 0, -1, before[number] + sentence)
    if keeps is Keeps.ALL or (keeps is Keeps.LAST and len(table) < 3):
        r, q = s, p
    elif keeps is Keeps.NONE:
        r, q = number, number - 1
    else:  # the last step's; before it, in turn, the first two of the longest sentence's
        room, is_last = starts[:2], number + 1 == np.bincount(sentence)[sentence]
        r = np.where(is_last, s, room[number % 2])
        q = np.where(number > 0, room[(number - 1) % 2], -1)
    rows = np.stack([s, sentence, r, p, q], axis=1)
    return np.ascontiguousarray(rows[np.argsort(sentence, kind="stable")])
