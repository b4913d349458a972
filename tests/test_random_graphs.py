"""Every policy against one by one, on random graphs, with memory that is NaN where it is dead."""

import pytest
from hypothesis import given

from dynbatch.testing import check_policies, check_sentences, strategies
from dynbatch.testing.random_graph import OPERATIONS
from dynbatch.testing.random_graphs import draw
from tests.poison import poisoned_memory
from tests.random_examples import examples

WITHOUT_DROPOUT = [name for name in OPERATIONS if name != "dropout"]


@examples(20)
@given(strategies.random_graphs(most_instructions=9))
def test_every_policy_equals_one_by_one(random_graph):
    with poisoned_memory():
        check_policies(random_graph)


@examples(8)
@given(strategies.random_graphs(operations=WITHOUT_DROPOUT, most_instructions=8))
def test_no_sentence_changes_another(random_graph):
    check_sentences(random_graph)


@pytest.mark.exhaustive
def test_batches_of_more_than_1024_nodes():
    operations = ("sum_product", "apply", "linear")
    random_graph = draw(0, operations=operations, count=1100, most_instructions=2)
    check_sentences(random_graph, together=25)
