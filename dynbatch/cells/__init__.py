"""Cells: one step of one sentence, traced, hoisted, fused, and run along all sentences."""

from dynbatch.cells.cell import Cell, cell, scan
from dynbatch.cells.given import total
from dynbatch.cells.stack_calls import stack

__all__ = ["Cell", "cell", "scan", "stack", "total"]
