"""Checks of a family against `transformers`, whose results the fixtures hold."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.models.pretrained import PretrainedModel
from dynbatch.models.pretrained.table import find, matches
from dynbatch.models.pretrained.tensors import tensors_of
from tests.models.pretrained import fixtures

Loss = Callable[[db.Graph, dict[str, Any]], db.Node]


def assert_gradients(
    model: PretrainedModel, name: str, loss: Loss, padding: Mapping[str, int] | None = None
) -> None:
    """Summed loss and gradients by the names of the checkpoint, in one mini-batch.

    Args:
        padding: rows of tables that PyTorch does not train where they are read.
    """
    expected = fixtures.gradients(name)
    with db.Graph() as graph:
        total = F.sum([loss(graph, sentence) for sentence in fixtures.sentences(name)])
        graph.backward(total)
        assert float(total) == pytest.approx(fixtures.loss(name), rel=1e-5)
        assert "LinearCrossEntropy +grad" in graph.explain()  # logits are not stored
    found = {}
    for own, parameter in model.named_parameters():
        stored, gradient = find(model.table(), own), parameter.grad
        if gradient is not None:
            dense = gradient.dense() if isinstance(gradient, db.RowSparse) else gradient
            found |= zip(stored.names, stored.parts(dense), strict=True)
    assert found.keys() == expected.keys()
    for key, row in (padding or {}).items():
        found[key], expected[key] = (np.delete(x[key], row, axis=0) for x in (found, expected))
    for key, gradient in found.items():
        largest = max(1.0, np.abs(expected[key]).max())
        np.testing.assert_allclose(
            gradient, expected[key], rtol=0, atol=1e-4 * largest, err_msg=key
        )


def assert_written_again(model: PretrainedModel, name: str, folder: Path) -> None:
    """Assert that it writes the checkpoint's names and shapes, and loads again to the bit."""
    model.save_pretrained(folder)
    written = load_file(folder / "model.safetensors")
    stored = [
        tensor
        for path in (fixtures.FOLDER / name).glob("model*.safetensors")
        for tensor in tensors_of(path)
        if not matches(model.skipped, tensor[0].removeprefix(model.prefix))
    ]
    assert {name: array.shape for name, array in written.items()} == {
        name: tensor.shape for name, tensor in stored
    }
    again = type(model).from_pretrained(folder).state_dict()
    for key, value in model.state_dict().items():
        assert np.array_equal(again[key], value), key
