"""Random cells: `scan` equals the cell step by step, with memory that is NaN where it is dead.

Whatever merged maps, storage in place and shared gradients do to a program, they must not
change what it computes. Offline, tens of thousands of these were run.
"""

from unittest.mock import patch

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import dynbatch as db
from dynbatch.nodes.dropout import InvertedDropout
from tests.cells.random_cells import Recipe
from tests.cells.recipe_writer import recipe
from tests.cells.step_by_step import assert_equal_outcomes, outcome, step_by_step, tame_outcome
from tests.poison import poisoned_memory
from tests.random_examples import examples


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """A recipe of at most 14 steps."""
    return recipe(lambda options: draw(st.sampled_from(options)), 14, side_by_side=True)


def drop_every_third_feature(batch, y, *xs):
    """Dropout with a mask that is the same in a scan as step by step."""
    start = 0
    for node in batch.nodes:
        stop = start + node.rows * node.width
        columns = np.arange(stop - start) % node.width
        y.flat[start:stop] = np.where(columns % 3 == 1, 0, xs[0].flat[start:stop] / (1 - node.p))
        start = stop


@patch.object(InvertedDropout, "forward_batch", drop_every_third_feature)
@examples(30, derandomize=True)
@given(recipes())
def test_scan_of_a_random_cell_equals_the_cell_step_by_step(recipe):
    cell, batch = recipe.cell(), recipe.batch()
    expected = tame_outcome(step_by_step, cell, batch)
    assume(expected is not None)
    with poisoned_memory():
        found = outcome(db.scan, cell, batch)
    assert_equal_outcomes(found, expected, 1e-9)
