"""Lines of a word and its numbers in decimals, as files of word vectors have them.

Fields stand apart by one space or one tab each. Blanks at the end of a line do not count.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.dispatch import HOST, kernel


@kernel(c=HOST)
def split_lines(text: Array, numbers: int) -> Array:
    """Places of a text's lines, and their words: all before the last `numbers` fields.

    Args:
        text: (N,) uint8, whole lines; the end of the last may be missing.

    Returns:
        (3, L) int64: of each line where it begins, where its word ends, and where the line ends. A
        line with fewer fields has no word: the first two are the same.
    """
    begin, spans = 0, []
    for line in text.tobytes().split(b"\n"):
        spans.append((begin, begin + len(_word(line, numbers)), begin + len(_trimmed(line))))
        begin += len(line) + 1
    if spans and spans[-1][0] == text.size:  # behind the last line end there is no line
        spans.pop()
    return np.array(spans, np.int64).reshape(-1, 3).T.copy()


@kernel(c=HOST)
def read_rows(text: Array, spans: Array, rows: Array, out: Array) -> Array:
    """Read the numbers of lines into rows of a matrix, each rounded to a double and then a float.

    Args:
        text, spans: of `split_lines`.
        rows:        (L,) int64, the row of each line; -1 for a line that is not read.
        out:         (R, D) float32, C-contiguous; its rows are overwritten.

    Returns:
        (K,) int64: the lines that do not have D finite numbers, in their order.
    """
    return read_each(text, spans, rows, out, np.flatnonzero(rows >= 0))


def read_each(text: Array, spans: Array, rows: Array, out: Array, lines: Array) -> Array:
    """`read_rows` of some lines, one number at a time."""
    damaged = []
    for line in lines.tolist():
        fields = fields_of(text[spans[1, line] : spans[2, line]].tobytes())
        numbers = [number_of(field) for field in fields]
        if len(numbers) == out.shape[1] and None not in numbers:
            out[rows[line]] = numbers
        else:
            damaged.append(line)
    return np.array(damaged, np.int64)


def fields_of(text: bytes) -> list[bytes]:
    return text.replace(b"\t", b" ").split(b" ")[1:]


def number_of(field: bytes) -> float | None:
    """The number that a field is; None where it is not one, or not a finite float32."""
    try:
        number = float(field)
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        return number if isfinite(np.float32(number)) and b"_" not in field else None


def _trimmed(line: bytes) -> bytes:
    return line.rstrip(b" \t\r")


def _word(line: bytes, numbers: int) -> bytes:
    parts = _trimmed(line).replace(b"\t", b" ").rsplit(b" ", numbers)
    return parts[0] if len(parts) > numbers else b""
