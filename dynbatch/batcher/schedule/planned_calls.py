"""`PlannedCalls`: the places of calls that have run, or that a new plan will run."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from dynbatch.cells.calls.table import CallRun, CallTable


class PlannedCalls:
    """The calls of one table as a plan sees them. The table is read, never written on.

    Attributes:
        marked: which calls the run needs.
        runs, run_of, position: those of the table, and then those that are planned; what is in none
            of them (NOT_RUN) waits.
    """

    def __init__(self, table: CallTable) -> None:
        self.marked = np.zeros(len(table.calls), bool)
        self.ready = table.ready
        self.runs = table.runs
        self.run_of = table.run_of
        self.position = table.position

    def add_run(self, rows: Array, run: CallRun) -> None:
        self.run_of, self.position = self.run_of.copy(), self.position.copy()
        self.run_of[rows] = len(self.runs)
        self.position[rows] = np.arange(rows.size)
        self.runs = [*self.runs, run]


CallPlans = dict[CallTable, PlannedCalls]
"""The planned calls of each table of a graph."""
