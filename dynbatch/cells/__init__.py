"""Cells: one step of one sentence, traced, hoisted, fused, and run along all sentences."""

from dynbatch.cells.calls.results import total
from dynbatch.cells.calls.stack import stack
from dynbatch.cells.calls.together import sum_tree
from dynbatch.cells.cell import Cell, cell
from dynbatch.cells.scan.arguments import initial_state, zeros
from dynbatch.cells.scan.scan import scan

__all__ = ["Cell", "cell", "initial_state", "scan", "stack", "sum_tree", "total", "zeros"]
