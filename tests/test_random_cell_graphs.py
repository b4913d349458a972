"""Cells applied step by step, in random graphs: every policy, and the cells as plain functions."""

import pytest
from hypothesis import given

import dynbatch as db
from dynbatch.testing import check_policies, check_sentences, strategies
from dynbatch.testing.random_cells import CELL_OPERATIONS
from tests.random_examples import examples

AMONG_CELLS = ("tanh", "linear", "multiply", "append", "sum_product", "cross_entropy")
MOSTLY_CELLS = (*AMONG_CELLS, *[*CELL_OPERATIONS] * 3)


@examples(8)
@given(strategies.random_graphs(operations=MOSTLY_CELLS, most_instructions=4))
def test_cells_equal_their_functions_under_every_policy(random_graph):
    check_policies(random_graph, inlined=True)


@pytest.mark.slow
@examples(6)
@given(strategies.random_graphs(operations=MOSTLY_CELLS, most_instructions=4))
def test_no_sentence_changes_another(random_graph):
    check_sentences(random_graph)


@examples(5)
@given(strategies.random_graphs(operations=MOSTLY_CELLS, most_instructions=3))
def test_check_and_guard_find_nothing_in_them(random_graph):
    for way in ("check", "guard"):
        with db.Graph(dtype="float64", seed=0, **{way: True}) as graph:
            graph.backward(random_graph.build(graph).loss)
