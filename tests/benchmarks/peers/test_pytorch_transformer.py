"""All forms of the Transformers compute the function that dynbatch computes, and its gradients."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the peers are PyTorch's")

import torch

from benchmarks.networks import BertLayerSizes, TransformerSizes
from benchmarks.peers import TRANSFORMER_PEERS
from benchmarks.workloads import Workload
from benchmarks.workloads.transformer import DynbatchTransformer

SIZES = (TransformerSizes(50, 16, 24, 2, 2), BertLayerSizes(50, 16, 24, 2, 2, 7))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("lengths", [(3, 1, 14, 7), (9, 9, 9)])
@pytest.mark.parametrize("sizes", SIZES)
def test_losses_and_all_gradients_are_dynbatchs(sizes, lengths):
    workload = Workload(sizes, DynbatchTransformer, frameworks=TRANSFORMER_PEERS)
    rng = np.random.default_rng(1)
    ours, peers, skipped = workload.build(rng, None, threads=1)
    assert [peer.name for peer in peers] == list(TRANSFORMER_PEERS) and not skipped
    batch = workload.corpus(0.59).fill(rng, np.repeat(np.array(lengths)[:, None], 2, axis=1))
    expected_loss, expected = ours.gradients(batch)
    for peer in peers:
        loss = peer.forward(peer.prepare(batch))
        loss.backward()
        assert loss.item() == pytest.approx(expected_loss, rel=1e-6)
        named = dict(peer.model.named_parameters())
        assert named.keys() == expected.keys()
        for name, parameter in named.items():
            error = np.abs(parameter.grad.numpy() - expected[name]).max()
            assert error <= 1e-5 * np.abs(expected[name]).max(), (peer.name, name)


def test_all_forms_treat_each_sentence_alone():
    workload = Workload(SIZES[1], DynbatchTransformer, frameworks=TRANSFORMER_PEERS)
    _, peers, _ = workload.build(np.random.default_rng(1), None, threads=1)
    assert all(peer.is_exact for peer in peers)
    assert [peer.name for peer in peers if peer.is_bucketed] == ["pytorch-bucketed"]
