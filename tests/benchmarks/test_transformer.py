"""The Transformer of the benchmarks is PyTorch's."""

import numpy as np
import pytest

from benchmarks.networks import TransformerSizes, initial_values
from benchmarks.workloads import WORKLOADS, Workload
from benchmarks.workloads.transformer import DynbatchTransformer
from tests.torch_parity import import_torch

SIZES = TransformerSizes(vocabulary=11, hidden=8, inner=12, heads=2, layers=2, longest=80)


def of_torch(torch, values):
    """PyTorch's layers with these values, and the tensors by the workload's names."""
    nn = torch.nn
    layers = [
        nn.TransformerEncoderLayer(
            SIZES.hidden, SIZES.heads, SIZES.inner, 0.0, "gelu", batch_first=True, norm_first=True
        ).double()
        for _ in range(SIZES.layers)
    ]
    tensors = {}
    for name, value in values.items():
        if not name.startswith("encoder.layers."):
            tensors[name] = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            continue
        _, _, number, rest = name.split(".", 3)
        tensors[name] = dict(layers[int(number)].named_parameters())[rest]
        tensors[name].data[...] = torch.tensor(value, dtype=torch.float64)
    return layers, tensors


def reference_loss(torch, layers, tensors, words, targets):
    """The loss of one sentence."""
    functional = torch.nn.functional
    length = len(words)
    x = (tensors["word.weight"][words] + tensors["position.weight"][:length])[None]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    for layer in layers:
        x = layer(x, src_mask=mask, is_causal=True)
    shape = (SIZES.hidden,)
    x = functional.layer_norm(
        x, shape, tensors["encoder.norm.weight"], tensors["encoder.norm.bias"]
    )
    logits = functional.linear(x[0], tensors["output.weight"], tensors["output.bias"])
    return functional.cross_entropy(logits, torch.tensor(targets), reduction="sum")


def test_its_loss_and_gradients_are_pytorchs():
    torch = import_torch()
    rng = np.random.default_rng(1)
    values = initial_values(SIZES, rng)
    workload = Workload(SIZES, DynbatchTransformer, frameworks=())
    batch = workload.corpus(0.59).random_batches(rng, 1, 4)[0]
    layers, tensors = of_torch(torch, values)
    losses = [reference_loss(torch, layers, tensors, *pair) for pair in batch.sentences()]
    expected = torch.stack(losses).mean()
    expected.backward()
    loss, gradients = DynbatchTransformer(SIZES, values).gradients(batch)
    assert loss == pytest.approx(expected.item())
    assert gradients.keys() == tensors.keys()
    for name, tensor in tensors.items():
        found = gradients[name]
        np.testing.assert_allclose(found, tensor.grad, rtol=1e-8, atol=1e-10, err_msg=name)


def test_it_has_the_sizes_that_the_readme_states():
    assert WORKLOADS["transformer"].sizes == TransformerSizes(8_000, 256, 1_024, 4, 4, 80)
