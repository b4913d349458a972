"""Cells: one step of one sentence, traced, hoisted, fused, and run along all sentences."""

from dynbatch.cells.cell import Cell, cell, scan

__all__ = ["Cell", "cell", "scan"]
