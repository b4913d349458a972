"""`Boxes`: a graph to be drawn, and the same with its middle left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dynbatch.pictures.layout import Edges

MOST_WIDE = 8
"""Boxes of a layer; of more the middle ones become one."""

MOST_DEEP = 13
"""Layers; of more the middle ones become one box."""


@dataclass(frozen=True)
class NodeBox:
    """A box: nodes, or calls, which are one box with their parts.

    Args:
        name:  the node type, or the name of a cell or block.
        size:  of the value.
        batch: that it ran in, as "3", or why it ran in none.
        count: nodes in it, if it stands for several that are left out.
    """

    name: str
    size: str
    batch: str
    hint: str
    count: int = 0


@dataclass(frozen=True)
class Boxes:
    """The boxes of a drawing by key, in a topological order; `edges` are who reads whom."""

    shapes: Mapping[int, NodeBox]
    edges: Edges
    layer: Mapping[int, int]
    hint: Mapping[int, float] = field(default_factory=dict)


def shallow(boxes: Boxes) -> Boxes:
    """The middle layers as one box, if there are too many."""
    deep = 1 + max(boxes.layer.values())
    if deep <= MOST_DEEP:
        return boxes
    low = MOST_DEEP // 2
    high = deep - (MOST_DEEP - 1 - low)
    inside = [key for key, layer in boxes.layer.items() if low <= layer < high]
    moved = {key: layer - (high - low - 1) * (layer >= high) for key, layer in boxes.layer.items()}
    joined = _joined(boxes, {key: -1 for key in inside})
    return replace(joined, layer={key: low if key == -1 else moved[key] for key in joined.shapes})


def narrow(boxes: Boxes) -> Boxes:
    """The middle boxes of each layer as one, where there are too many.

    All layers are cut at the same two places from left to right, so that who is kept has the
    readers and the read beside it kept too.
    """
    rows: dict[int, list[int]] = {}
    for key in sorted(boxes.layer, key=lambda key: boxes.hint[key]):
        rows.setdefault(boxes.layer[key], []).append(key)
    wide = {layer: row for layer, row in rows.items() if len(row) > MOST_WIDE}
    before, after = MOST_WIDE // 2, MOST_WIDE - 1 - MOST_WIDE // 2
    left = min([boxes.hint[row[before - 1]] for row in wide.values()], default=0)
    right = max([boxes.hint[row[-after]] for row in wide.values()], default=0)
    into: dict[int, int] = {}
    for layer, row in wide.items():
        inside = [key for key in row if left < boxes.hint[key] < right] or row[before:-after]
        into |= dict.fromkeys(inside, -2 - layer)
    joined = _joined(boxes, into)
    layer_of = {**boxes.layer, **{-2 - layer: layer for layer in rows}}
    return replace(joined, layer={key: layer_of[key] for key in joined.shapes})


def _joined(boxes: Boxes, into: Mapping[int, int]) -> Boxes:
    if not into:
        return boxes
    shapes: dict[int, NodeBox] = {}
    hints: dict[int, list[float]] = {}
    for key, shape in boxes.shapes.items():
        to = into.get(key, key)
        if to == key:
            shapes[key] = shape
        else:
            before = shapes.get(to)
            count = (before.count if before else 0) + max(1, shape.count)
            shapes[to] = NodeBox(
                f"… {count} more", "", "", f"{count} nodes that are left out", count
            )
        hints.setdefault(to, []).append(boxes.hint[key])
    pairs = [(into.get(source, source), into.get(reader, reader)) for source, reader in boxes.edges]
    edges = list(dict.fromkeys([(a, b) for a, b in pairs if a != b]))
    hint = {key: sum(columns) / len(columns) for key, columns in hints.items()}
    return Boxes(shapes, edges, boxes.layer, hint)
