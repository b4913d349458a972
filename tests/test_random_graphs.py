"""Every policy against one by one, on random graphs, with memory that is NaN where it is dead."""

from contextlib import nullcontext

import pytest
from hypothesis import given

from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.kernels.c.runtime.library import reference_only
from dynbatch.testing import check_policies, check_sentences, strategies
from dynbatch.testing.policies import difference, outcome
from dynbatch.testing.random_cells import CELL_OPERATIONS
from dynbatch.testing.random_graph import OPERATIONS
from dynbatch.testing.random_graphs import draw
from tests.marks import quick
from tests.poison import poisoned_memory
from tests.random_examples import examples
from tests.torch_nodes import WITH_RULE, outcome_by_torch

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


def require_equal_to_torch(seed):
    """A graph of a seed, with C or NumPy, within a share of its memory and within the least."""
    random_graph = draw(seed, operations=WITH_RULE)
    expected = outcome_by_torch(random_graph)
    operations = {i.operation for s in random_graph.sentences for i in s.program}
    if not operations.isdisjoint(CELL_OPERATIONS):
        # The gradient of what a call returned is that of its readers; a plain function may read the
        # value itself on the way to another one.
        for name in [name for name in expected if "kept node" in name and "gradient" in name]:
            del expected[name]
    policy = list(POLICIES)[seed % len(POLICIES)]
    with reference_only() if seed % 2 else nullcontext(), poisoned_memory():
        for share in ((0.7, 0.5, 0.3)[seed % 3], 0.0):
            found = outcome(random_graph, policy, share=share)
            title = f"under {policy} within {share:.0%} of the memory, seed {seed}"
            report = difference(title, found, expected, 1e-9)
            assert report is None, report


@pytest.mark.parametrize("block", quick(range(1), range(200)))
def test_random_graphs_within_memory_limits_equal_pytorch(block):
    for seed in range(25 * block, 25 * block + 25):
        require_equal_to_torch(seed)


@pytest.mark.exhaustive
def test_batches_of_more_than_1024_nodes():
    operations = ("sum_product", "apply", "linear")
    random_graph = draw(0, operations=operations, count=1100, most_instructions=2)
    check_sentences(random_graph, together=25)
