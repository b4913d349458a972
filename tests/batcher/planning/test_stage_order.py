"""Stages in a wrong order are refused before the first kernel."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.planning.stages import StageSequence
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.errors import PlanError
from tests.poison import poisoned_memory

INNER = {"sqrt": lambda x: F.sqrt(F.exp(x)), "layer_norm": F.layer_norm}


class Joined:
    """Losses joined by `+`, beside a kept node made by `+` that no loss reads."""

    def __init__(self, inner="layer_norm"):
        generator = np.random.default_rng(0)
        self.weight = db.Parameter(generator.standard_normal((4, 4)), "weight")
        self.output = db.Parameter(generator.standard_normal((1, 4)), "output")
        self.inner = INNER[inner]

    def build(self, graph):
        losses = []
        for rows in (30, 20, 25, 28):
            x = F.tanh(F.linear(F.input(graph, np.full((rows, 4), rows / 30)), self.weight))
            losses.append(F.sum(F.tanh(F.linear(x, self.output))))
        h = self.inner(F.linear(F.input(graph, np.ones((3, 4))), self.weight))
        (h + F.relu(h)).keep()
        return losses[0] + losses[1] + losses[2] + losses[3]

    def gradient(self, share=None, **settings):
        """The gradient of the weight, within a share of the memory of a run without a limit."""
        self.weight.zero_grad()
        with db.Graph(dtype="float64", **settings) as graph, poisoned_memory():
            loss = self.build(graph)
            limit = None
            if share is not None:
                limit = int(graph.estimate(loss).peak_bytes * share)
            graph.backward(loss, memory_limit=limit)
            saving = graph.memory_use.saving
        assert ("micro-batches" in saving) is (share is not None)
        return self.weight.grad


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("share", [0.55, 0.5])
@pytest.mark.parametrize("policy", POLICIES)
def test_parts_do_not_read_what_no_loss_reads(policy, share, inner):
    model = Joined(inner)
    expected = model.gradient(policy=policy)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(model.gradient(share, policy=policy), expected, rtol=1e-12)


def test_backward_that_reads_what_nobody_has_written_is_refused(monkeypatch):
    """Batches as they would be, were nodes that the loss does not read among its own."""
    monkeypatch.setattr(
        "dynbatch.batcher.schedule.schedule.signatures_of",
        lambda nodes, inputs, roots: tuple(node.sig for node in nodes),
    )
    with pytest.raises(PlanError, match=r"stages: Relu #\d+, in a batch of 1, is read before its"):
        Joined().gradient(0.7)


@pytest.mark.parametrize("policy", ["by_bound", "one_by_one"])
def test_a_gradient_that_comes_after_its_receiver_has_passed_on_its_own_is_refused(
    monkeypatch, policy
):
    backward = StageSequence._backward
    monkeypatch.setattr(
        StageSequence, "_backward", lambda self, stages: backward(self, list(stages)[::-1])
    )
    with pytest.raises(
        PlanError, match=r"in a batch of \d, sends a gradient to .*, after its back"
    ):
        Joined().gradient(policy=policy)
