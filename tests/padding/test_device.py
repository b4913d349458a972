"""The padded padded on a device gives what it gives on the CPU, and its bytes are counted there."""

from __future__ import annotations

from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.padding import pad_model
from dynbatch.padding.forms import FORMS
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
