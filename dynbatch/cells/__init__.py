"""Cells: one step of one sentence, traced, hoisted, fused, and run along all sentences."""

from dynbatch.cells.cell import Cell, cell, scan
from dynbatch.cells.given import total
from dynbatch.cells.scan_arguments import initial_state
from dynbatch.cells.stack_calls import stack

__all__ = ["Cell", "cell", "initial_state", "scan", "stack", "total"]
