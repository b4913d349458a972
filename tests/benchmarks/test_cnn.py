"""Both sides of the text CNN compute one loss and one gradient, for sentences of a word, too."""

import numpy as np
import pytest

from benchmarks.lengths import ClassCorpus
from benchmarks.networks import CnnSizes, initial_values
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.cnn import DynbatchCnn, to_dynbatch

SIZES = CnnSizes(vocabulary=30, embedding=6, hidden=5, classes=3)


def corpus():
    return ClassCorpus(30, 3, is_aligned=True)


@pytest.mark.parametrize("words", [[9, 1, 14, 2], [6], [1, 1]])
def test_pytorch_has_the_gradients_of_dynbatch(words):
    pytest.importorskip("torch", reason="the peer is PyTorch's")
    from benchmarks.peers.pytorch_cnn import PaddedCnn

    values = initial_values(SIZES, np.random.default_rng(1))
    batch = corpus().fill(np.random.default_rng(2), np.array([[n, n] for n in words]))
    expected_loss, expected = DynbatchCnn(SIZES, values).gradients(batch)
    peer = PaddedCnn(SIZES, values)
    loss = peer.forward(peer.prepare(batch))
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss, rel=1e-5)
    found = {name: p.grad.numpy() for name, p in peer.model.named_parameters()}
    assert not found["embedding.weight"][-1].any()  # of padding
    found["embedding.weight"] = found["embedding.weight"][:-1]
    named = to_dynbatch(found)
    assert named.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(named[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def test_sentences_of_classes_have_one_target_each_however_they_are_batched():
    rng = np.random.default_rng(3)
    for batch in (*corpus().random_batches(rng, 2, 5), *corpus().bucketed_batches(rng, 2, 90, 4)):
        assert {len(target) for target in batch.targets} == {1}
        assert batch.num_tokens == sum(map(len, batch.sources)) + batch.num_sentences


def test_lengths_are_those_of_film_reviews():
    workload = WORKLOADS["cnn"]
    lengths = workload.corpus(workload.sigma).lengths(np.random.default_rng(4), 100_000)[:, 0]
    assert lengths.mean() == pytest.approx(19.1, abs=0.3)
    assert lengths.std() == pytest.approx(9.3, abs=0.3) and lengths.max() == 52
