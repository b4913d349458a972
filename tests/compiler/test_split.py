"""Splitting a trace: what runs before, in and after the loop."""

from types import SimpleNamespace

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.compiler.split import split
from dynbatch.compiler.trace import trace_cell
from tests.cells.cell_cases import CASES, D


def weight(shape):
    return db.Parameter(np.ones(shape, np.float32))


def parts_of(name):
    """Type names of the three parts of one of the cells, the first without what has no inputs."""
    case = CASES[name]
    memories = [(5, width) for width in case.memories]
    params = case.batch((1,)).params
    trace = trace_cell(case.cell.function, D, case.states, case.single, memories, params, "float64")
    parts = split(trace)
    before = [node for node in parts.before if node.inputs]
    return [[type(n).__name__ for n in part] for part in (before, parts.loop, parts.after)]


def test_maps_of_the_token_run_before_the_loop():
    before, loop, after = parts_of("minimal_gated_unit")
    assert before == ["LinearMap", "LinearMap"]
    assert loop.count("LinearMap") == 2
    assert after == []


def test_what_only_the_output_reads_runs_after_the_loop():
    before, loop, after = parts_of("output_is_no_state")
    assert before == ["LinearMap"]
    assert loop == ["LinearMap", "Add", "Tanh"]
    assert after == ["LinearMap", "Softmax"]


def test_nothing_is_left_in_the_loop_of_a_state_that_only_moves():
    before, loop, after = parts_of("unchanged_state")
    assert (before, loop, after) == (["LinearMap"], [], ["Multiply", "Tanh"])


def test_a_token_is_cut_before_the_loop():
    before, loop, _ = parts_of("sliced_token")
    assert before == ["Slice", "LinearMap", "Slice", "Expand"]
    assert loop == ["Multiply", "Add", "Tanh"]


def test_keys_are_projected_once_for_the_sentence():
    before, loop, after = parts_of("additive_attention_in_the_recurrence")
    assert before == ["LinearMap", "LinearMap"]
    assert loop.count("BahdanauAttention") == 1
    assert after == ["Concat"]


def test_a_memory_is_summed_once_for_the_sentence():
    before, loop, _ = parts_of("summary_of_the_memory")
    assert before.count("Sum") == 2
    assert "Sum" not in loop


def test_what_nothing_reads_is_left_out():
    @db.cell
    def idle(x, h, p):
        F.tanh(F.linear(h, p.W))
        return x, h

    trace = trace_cell(
        idle.function, 2, (2,), True, (), SimpleNamespace(W=weight((2, 2))), "float32"
    )
    parts = split(trace)
    assert not parts.before and not parts.loop and not parts.after
