"""`padding()`: a mini-batch padded, and the tokens that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dynbatch.arguments import listed, refused, size
from dynbatch.errors import EmptyBatchError, GraphError
from dynbatch.graph import Graph
from dynbatch.nodes.stream import Sentences
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing
from dynbatch.pictures.palette import BLUE, GRID, SKY
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.text import plural

BUCKETS = 4
"""The most smaller mini-batches that bucketing makes of one."""

STACKED = 12
"""Up to so many sentences the forms stand one above the other, else side by side."""

GAP = 24.0
PARTED = 5.0
"""From this width of a token on, tokens stand apart."""

Box = tuple[float, float, float, float]
Rows = Sequence[tuple[int, int]]
"""The number of each sentence and the width that it is padded to, from the top."""


def padding(lengths: Sequence[int] | Graph) -> Picture:
    """Draw a mini-batch as a padded matrix, and as dynbatch has it: its tokens and nothing else.

    A square is a token, and sentences take turns in two shades. Where it saves cells, the
    mini-batch is drawn bucketed too: sorted by length, and cut into at most four smaller ones,
    each padded to its own longest sentence.

    Args:
        lengths: the tokens of each sentence, in order; or a graph that is open, for those of its
            sentences: the most rows that a node of the sentence has.

    Raises:
        EmptyBatchError: there is no sentence.
        ArgumentError:   a length is not an integer, or below 0.
        GraphError:      the graph is closed.

    Example:
        >>> import dynbatch as db
        >>> print(db.pictures.padding([3, 41, 1, 12]).description)
        4 sentences of 57 tokens.
        Padded: 164 cells, 65 % of them padding.
        Bucketed, in 2 smaller mini-batches: 88 cells, 35 % of them padding.
        Packed: 57 cells, 2.9 times fewer than padded.
    """
    lengths = _lengths(lengths)
    tokens, longest = sum(lengths), max(lengths)
    forms: list[tuple[str, str, Rows]] = [
        (
            "Padded",
            _share(tokens, len(lengths) * longest),
            [(n, longest) for n in range(len(lengths))],
        )
    ]
    buckets = _bucketed(lengths)
    cells = sum([len(bucket) * lengths[bucket[-1]] for bucket in buckets])
    if len(buckets) > 1 and cells < len(lengths) * longest:
        rows = [(n, lengths[bucket[-1]]) for bucket in buckets for n in bucket]
        name = f"Bucketed, in {len(buckets)} smaller mini-batches"
        forms.append((name, _share(tokens, cells), rows))
    fewer = f", {len(lengths) * longest / tokens:.1f} times fewer than padded" if tokens else ""
    packed = f"{plural(tokens, 'cell')}{fewer}"
    count = plural(len(lengths), "sentence")
    drawing = Drawing(
        f"A mini-batch of {count}, padded and packed",
        note=f"Each cell is computed, also where it is padding. {count} of "
        f"{plural(tokens, 'token')}, the longest of {longest:,}.",
    )
    shades = [(BLUE, "tokens"), (SKY, "tokens of the next sentence"), (GRID, "padding")]
    top = drawing.legend(MARGIN, drawing.top, shades)
    _draw(drawing, top + 6, forms, packed, lengths)
    lines = [f"{count} of {plural(tokens, 'token')}."]
    lines += [f"{name}: {text}." for name, text, _ in [*forms, ("Packed", packed, ())]]
    return drawing.finish("\n".join(lines))


def _lengths(lengths: Any) -> list[int]:
    if isinstance(lengths, Graph):
        return _sentence_lengths(lengths)
    fix = "give the lengths of the sentences: db.pictures.padding([3, 41, 1, 12])"
    if isinstance(lengths, str):
        raise refused("padding", "lengths is text", "a list of numbers of tokens", fix)
    counts = [
        size("padding", "a length", length, 0)
        for length in listed("padding", "lengths", lengths, fix)
    ]
    if not counts:
        raise EmptyBatchError.at_caller(
            f"padding: there is no sentence.\n  rule: one length or more\n  fix:  {fix}"
        )
    return counts


def _sentence_lengths(graph: Graph) -> list[int]:
    graph._require_open("padding")
    sentences = Sentences(graph.nodes)
    longest: dict[int, int] = {}
    for node in graph.nodes:
        number = sentences.of(node)
        if number is not None:
            longest[number] = max(longest.get(number, 0), node.rows)
    if not longest:
        raise GraphError.at_caller(
            "padding: the graph has no sentence.\n  rule: nodes that are not parameters alone\n"
            "  fix:  build the mini-batch first, and draw inside its `with` block"
        )
    return [longest[number] for number in sorted(longest)]


def _bucketed(lengths: Sequence[int]) -> list[list[int]]:
    """Sentences sorted by length, in groups of two or more; the last of a group is its longest."""
    order = np.argsort(lengths, kind="stable").tolist()
    parts = min(BUCKETS, len(order) // 2)
    edges = [len(order) * part // max(1, parts) for part in range(parts + 1)]
    return [order[a:b] for a, b in pairwise(edges)]


def _draw(
    drawing: Drawing, top: float, forms: Sequence[tuple[str, str, Rows]], packed: str,
    lengths: Sequence[int],
) -> None:  # fmt: skip
    """All forms at one scale, below each other or side by side."""
    inside = drawing.width - 2 * MARGIN
    is_stacked = len(lengths) <= STACKED
    columns = 1 if is_stacked else len(forms) + 1
    room = (inside - GAP * (columns - 1)) / columns
    longest = max(1, *lengths)
    across = min(18.0, room / longest)
    down = min(18.0, max(across, 8.0)) if is_stacked else min(14.0, 360 / len(lengths))
    left = MARGIN
    for name, text, rows in forms:
        y = _titled(drawing, left, top, room, name, text)
        boxes: dict[str, list[Box]] = {}
        for number, (sentence, width) in enumerate(rows):
            corner, length = (left, y + number * down), lengths[sentence]
            boxes.setdefault(_shade(sentence), []).extend(_cells(corner, (across, down), 0, length))
            boxes.setdefault(GRID, []).extend(_cells(corner, (across, down), length, width))
        _fill(drawing, boxes)
        left, top = (left, y + len(rows) * down + 14) if is_stacked else (left + room + GAP, top)
    y = _titled(drawing, left, top, room, "Packed", packed)
    _fill(drawing, _packed((left, y), (across, down), lengths, longest))


def _fill(drawing: Drawing, boxes: Mapping[str, Sequence[Box]]) -> None:
    for colour, of_colour in boxes.items():
        drawing.rectangles(of_colour, colour)


def _titled(drawing: Drawing, left: float, y: float, room: float, name: str, text: str) -> float:
    """The heading of a form; returns the y where its cells begin."""
    y += SMALL_SIZE + 3
    short, _, more = name.partition(", ")
    taken = drawing.text(left, y, short, bold=True, within=room)
    if room > 400:
        rest, x = f"{more}: {text}" if more else text, left + taken + 10
        drawing.small(x, y, rest, within=left + room - x)
        return y + 7
    lines = [*text.split(", "), more]
    for number, line in enumerate(lines):
        down = y + (number + 1) * (SMALL_SIZE + 4)
        drawing.small(left, down, line, within=room)
    return y + 3 * (SMALL_SIZE + 4) + 7


def _packed(
    corner: tuple[float, float], scale: tuple[float, float], lengths: Sequence[int], longest: int
) -> dict[str, list[Box]]:
    """All tokens, one sentence after another, in lines of `longest` cells."""
    boxes: dict[str, list[Box]] = {}
    begin = 0
    for sentence, length in enumerate(lengths):
        while length:
            line, column = divmod(begin, longest)
            taken = min(length, longest - column)
            at = (corner[0], corner[1] + line * scale[1])
            boxes.setdefault(_shade(sentence), []).extend(_cells(at, scale, column, column + taken))
            begin, length = begin + taken, length - taken
    return boxes


def _cells(
    corner: tuple[float, float], scale: tuple[float, float], begin: int, end: int
) -> list[Box]:
    """The cells of a row from one column to another: apart where there is room, else as one box."""
    (left, y), (across, down) = corner, scale
    tall = down - 1.5 if down >= PARTED else down
    if across >= PARTED:
        return [(left + k * across, y, across - 1.5, tall) for k in range(begin, end)]
    return [(left + begin * across, y, (end - begin) * across, tall)] if end > begin else []


def _shade(sentence: int) -> str:
    return BLUE if sentence % 2 == 0 else SKY


def _share(tokens: int, cells: int) -> str:
    if not cells:
        return "0 cells"
    return f"{plural(cells, 'cell')}, {1 - tokens / cells:.0%} of them padding".replace("%", " %")
