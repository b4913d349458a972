"""Every policy against one by one, on random graphs, with memory that is NaN where it is dead."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.kernels.c.runtime.library import reason, reference_only
from dynbatch.testing import check_policies, check_sentences, strategies
from dynbatch.testing.policies import difference, outcome
from dynbatch.testing.probe import backward, gradient_of
from dynbatch.testing.random_cells import CELL_OPERATIONS
from dynbatch.testing.random_graph import OPERATIONS
from dynbatch.testing.random_graphs import draw
from tests.marks import quick
from tests.poison import poisoned_memory
from tests.random_examples import examples
from tests.torch_nodes import WITH_RULE, outcome_by_torch

WITHOUT_DROPOUT = [name for name in OPERATIONS if name != "dropout"]


@examples(12)
@given(strategies.random_graphs(most_instructions=9))
def test_every_policy_equals_one_by_one(random_graph):
    with poisoned_memory():
        check_policies(random_graph)


@examples(5)
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


@pytest.mark.slow
@pytest.mark.parametrize("block", quick(range(1), range(200)))
def test_random_graphs_within_memory_limits_equal_pytorch(block):
    for seed in range(25 * block, 25 * block + 25):
        require_equal_to_torch(seed)


def numbers_of(random_graph, sentences, matmul):
    """Values and gradients of the kept nodes of some sentences, in float32."""
    alike = {"tail": "sum", "joins": "F.sum", "unread": (), "backwards": 1}
    with db.Graph(seed=3, matmul=matmul) as graph:
        built = replace(random_graph, numbers=sentences, **alike).build(graph)
        backward(graph, built.loss)
        kept = {name: x for name, x in built.kept.items() if name.startswith("sentence")}
        values = {name: x.value for name, x in kept.items() if x._block is not None}
        return values, {name: gradient_of(x) for name, x in kept.items()}


@pytest.mark.slow
@pytest.mark.skipif(bool(reason()), reason="NumPy's products round by their size")
@pytest.mark.parametrize("block", quick(range(1), range(40)))
def test_random_programs_in_bfloat16_are_the_same_alone_and_near_those_in_float32(block):
    """A gradient sums over its node's readers in an order that company may change."""
    distances = []
    for seed in range(25 * block, 25 * block + 25):
        random_graph = draw(seed, operations=WITHOUT_DROPOUT)
        everyone = list(range(len(random_graph)))
        together = numbers_of(random_graph, everyone, "bfloat16")
        for sentence in everyone:
            values, gradients = numbers_of(random_graph, [sentence], "bfloat16")
            for name, value in values.items():
                assert value.tobytes() == together[0][name].tobytes(), (seed, name)
            for name, gradient in gradients.items():
                scale = 1e-5 * max(1, np.abs(gradient).max(initial=0))
                np.testing.assert_allclose(together[1][name], gradient, 0, scale, err_msg=name)
        whole = numbers_of(random_graph, everyone, "float32")
        distances += [
            np.abs(value - rounded[name]).max(initial=0) / max(1, np.abs(value).max(initial=0))
            for expected, rounded in zip(whole, together, strict=True)
            for name, value in expected.items()
        ]
    assert 0 < max(distances) < 1 / 8


@pytest.mark.exhaustive
def test_batches_of_more_than_1024_nodes():
    operations = ("sum_product", "apply", "linear")
    random_graph = draw(0, operations=operations, count=1100, most_instructions=2)
    check_sentences(random_graph, together=25)
