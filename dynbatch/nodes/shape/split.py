"""A value cut into parts: the reverse of `join`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Never

from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.axes import TOKENS, axis
from dynbatch.nodes.shape.slice import Slice


def split(x: Node, sizes: int | Sequence[int], dim: int = -1, **habits: Never) -> list[Node]:
    """x cut along `dim` into parts: the reverse of `concat`, as `torch.split`.

    Args:
        sizes: of the parts, which add up to the whole; or one size, with a smaller last part.

    Raises:
        ShapeError: the sizes do not sum to the number of tokens or features.
    """
    along = axis("split", x, dim, habits)
    total = x.rows if along == TOKENS else x.width
    if isinstance(sizes, int):
        if sizes < 1 and not total == sizes == 0:
            x.refuse(
                f"split of {total} into parts of {sizes}",
                "a part has a positive size",
                "give the size of one part, or a list of sizes",
            )
        sizes = _sizes(total, sizes) if total else [0]
    if sum(sizes) != total:
        x.refuse(
            f"split of {total} into {list(sizes)}, which sum to {sum(sizes)}",
            "the parts make up the whole",
            "change the sizes, or use F.slice for some of the parts",
        )
    return _parts(x, along, sizes)


def chunk(x: Node, chunks: int, dim: int = -1, **habits: Never) -> list[Node]:
    """x cut along `dim` into at most `chunks` equal parts, the last one smaller, as `torch.chunk`.

    Raises:
        ShapeError: `chunks` is not positive, or x has no such dim.
    """
    along = axis("chunk", x, dim, habits)
    total = x.rows if along == TOKENS else x.width
    if chunks < 1:
        x.refuse(
            f"{chunks} chunks",
            "there is at least one chunk",
            "give the number of parts; F.split takes their size",
        )
    return _parts(x, along, _sizes(total, -(-total // chunks)) if total else [0] * chunks)


def _sizes(total: int, size: int) -> list[int]:
    return [min(size, total - at) for at in range(0, total, size)]


def _parts(x: Node, along: str, sizes: Sequence[int]) -> list[Node]:
    ends = itertools.accumulate(sizes, initial=0)
    parts = [slice(start, stop, 1) for start, stop in itertools.pairwise(ends)]
    if along == TOKENS:
        return [Slice(x, tokens=part, features=None) for part in parts]
    return [Slice(x, tokens=None, features=part) for part in parts]
