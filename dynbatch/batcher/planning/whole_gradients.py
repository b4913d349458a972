"""Steps that write all of a block's gradient, so that it need not be cleared before."""

from __future__ import annotations

from dynbatch.batcher.steps.block import BatchInput, Block
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.nodes.shape.slice import covers


def moves_all(step: StepRun, block: Block, source: BatchInput) -> bool:
    if not step.node_type.moves_all_of(step.batch):
        return False
    positions = source.positions_in(block)
    # A call is a part of its block: its position is None.
    distinct = set(positions)
    is_whole = len(block.nodes) == len(distinct) and None not in distinct
    return is_whole and (len(positions) == len(distinct) or not step.node_type.moves_all)


def tiled(step: StepRun) -> list[Block]:
    """The blocks that a step reads as several views, which together are all of it, each once."""
    views: dict[Block, list[tuple[int, int]]] = {}
    columns: dict[tuple[Block, int, int], list[tuple[int, int]]] = {}
    torn: set[Block] = set()
    for source in step.sources:
        for block in source.gradient_blocks if source.is_view else ():
            if source.covers:
                torn.add(block)
            elif source.stride:
                row, column = divmod(source.start, source.stride)
                rows = block, row * source.stride, source.size // source.width * source.stride
                columns.setdefault(rows, []).append((column, source.width))
            else:
                views.setdefault(block, []).append((source.start, source.size))
    for (block, start, size), parts in columns.items():
        views.setdefault(block, []).append((start, size))
        if not covers(sorted(parts), block.width):
            torn.add(block)
    return [
        block
        for block, parts in views.items()
        if block not in torn and covers(sorted(parts), block.size)
    ]
