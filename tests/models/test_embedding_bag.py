import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, VocabularyError
from tests.torch_parity import import_torch

SENTENCES = [[[3, 3, 9], [], [0]], [[]], [], [[1], [1, 2], [7, 3, 3, 1]]]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_equals_torchs_bags_and_its_row_sparse_gradient(mode):
    torch = import_torch()
    embed = models.EmbeddingBag(10, 4, mode=mode)
    theirs = torch.nn.EmbeddingBag(10, 4, mode=mode, _weight=torch.tensor(embed.weight.numpy()))
    factors = np.random.default_rng(0).normal(size=4).astype(np.float32)
    with db.Graph() as graph:
        found = [embed(graph, bags) for bags in SENTENCES]
        values = [x.value for x in found]
        graph.backward(F.sum([F.sum(x * F.input(graph, factors)) for x in found]))
    bags = [bag for sentence in SENTENCES for bag in sentence]
    ids = torch.tensor([word for bag in bags for word in bag])
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])[:-1]])
    expected = theirs(ids, offsets)
    (expected * torch.tensor(factors)).sum().backward()
    assert [len(value) for value in values] == [3, 1, 0, 3]
    assert np.allclose(np.concatenate(values), expected.detach().numpy(), atol=1e-6)
    gradient = embed.weight.grad
    assert gradient.rows.tolist() == [0, 1, 2, 3, 7, 9]
    assert np.allclose(gradient.dense(), theirs.weight.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_all_sentences_are_two_batches(mode):
    embed = models.EmbeddingBag(10, 4, mode=mode)
    with db.Graph() as graph:
        for bags in SENTENCES:
            embed(graph, bags).keep()
        graph.forward()
        assert graph.statistics.batches == 2


def test_bags_of_a_given_table_may_be_frozen():
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    embed = models.EmbeddingBag.of(table, freeze=True, mode="sum")
    with db.Graph() as graph:
        assert embed(graph, [np.array([0, 3]), (1,)]).value.tolist() == [[6, 8], [2, 3]]
    assert embed.weight.frozen and embed.weight.value is table


def test_a_list_of_ids_is_not_bags():
    embed = models.EmbeddingBag(10, 4)
    with db.Graph() as graph:
        with pytest.raises(ArgumentError, match="a list of ids for each word"):
            embed(graph, [1, 2])
        with pytest.raises(VocabularyError, match="id 10 at position 2"):
            embed(graph, [[1], [2, 10]])
    with pytest.raises(ArgumentError, match="called with ids alone"):
        embed([[1]])


def test_another_mode_is_refused():
    with pytest.raises(ArgumentError, match="mode is 'max'"):
        models.EmbeddingBag(10, 4, mode="max")
