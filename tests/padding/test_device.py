"""The padded form on a device gives what it gives on the CPU, and its bytes are counted there."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.execution.executor import Executor
from dynbatch.padding import pad_model
from dynbatch.padding.forms import FORMS, is_padded
from dynbatch.testing.precision import dense_gradient

PAIRS = [([3, 4, 5], [6]), ([7], [8, 9, 3]), ([4, 4], [5, 6])]


def gradients(model: models.Seq2Seq, device: str) -> dict[str, Any]:
    model.to(device)
    padded = pad_model(model, model.loss)
    with db.Graph(device) as graph:
        losses = [padded.loss(graph, *pair) for pair in padded.batch(PAIRS)]
        graph.backward(F.mean(losses))
    padded.collect()
    found = {name: dense_gradient(p) for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = None
    return found


def test_masked_attention_of_the_padded_form_runs_on_a_device(cuda: Any) -> None:
    model = models.Seq2Seq(10, 10, 4, 5, rng=0)
    expected = gradients(model, "cpu")
    for name, gradient in gradients(model, "cuda").items():
        np.testing.assert_allclose(gradient, expected[name], rtol=2e-4, atol=1e-6, err_msg=name)


def test_forms_are_measured_on_a_device(cuda: Any) -> None:
    model = models.Seq2Seq(10, 10, 4, 5, rng=0).to("cuda")
    found = db.memory.compare_padding(
        model, model.loss, PAIRS, batch_size=2, num_batches=1, batch_sizes=(2,)
    )
    assert "cuda" in found.title and "the same loss" in found.note
    for name in FORMS:
        assert found.forms[name].traced_bytes is None
        form = found.forms[name]
        arena = form.peak_bytes - form.by_cause["index tables"]
        assert 0 < arena <= (form.requested_bytes or 0)


@pytest.mark.cuda
def test_forms_planned_without_a_device_are_those_that_are_measured_on_it(
    monkeypatch: Any, request: Any
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a plan ran a step")

    model = models.Seq2Seq(10, 10, 4, 5, rng=0)

    def compare(**options: Any) -> db.memory.Comparison:
        return db.memory.compare_padding(
            model, model.loss, PAIRS, 2, num_batches=1, batch_sizes=(2,), memory_limit="6kB",
            **options,
        )  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", None)
        patch.setattr(Executor, "run", refuse)
        planned = compare(plan_for="cuda")
    request.getfixturevalue("cuda")
    model.to("cuda")
    measured = compare()
    assert "planned for cuda" in planned.title and planned.losses is None
    assert "1 of 1 batches planned" in str(planned) and "not run" in planned.note
    for name in FORMS:
        ours, theirs = planned.forms[name], measured.forms[name]
        assert ours.tokens_per_second is ours.requested_bytes is ours.reserved_bytes is None
        for number in ("peak_bytes", "mean_bytes", "value_bytes", "by_cause", "by_type", "stages"):
            assert getattr(ours, number) == getattr(theirs, number), (name, number)
        if not is_padded(name):  # which attends with parameters of its own
            assert ours.gradient_bytes == theirs.gradient_bytes
    assert planned.saved() == measured.saved() > 0
    for number in ("without", "causes", "by_batch_size", "limited"):
        assert getattr(planned, number) == getattr(measured, number), number
    for number in ("parameter_bytes", "optimizer_bytes"):
        assert getattr(planned, number) == getattr(measured, number), number
