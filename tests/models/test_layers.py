"""Layers: PyTorch's values and gradients, initial values, freezing, the training mode."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ShapeError, VocabularyError
from tests.torch_parity import assert_equals_torch

LENGTHS = (3, 1, 0, 6)


def test_linear_equals_torch():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

    def linear(x, weight, bias):
        layer = models.Linear(4, 3)
        layer.weight, layer.bias = weight, bias
        return layer(x)

    sentences = [(length, 4) for length in LENGTHS]
    assert_equals_torch(linear, torch.nn.functional.linear, sentences, [(3, 4), (3,)])


def test_layer_norm_equals_torch():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

    def layer_norm(x, weight, bias):
        layer = models.LayerNorm(4, eps=1e-3)
        layer.weight, layer.bias = weight, bias
        return layer(x)

    def reference(x, weight, bias):
        return torch.nn.functional.layer_norm(x, (4,), weight, bias, eps=1e-3)

    assert_equals_torch(layer_norm, reference, [(length, 4) for length in LENGTHS], [(4,), (4,)])


def test_a_layer_norm_without_bias_equals_torch():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

    def layer_norm(x, weight):
        layer = models.LayerNorm(4, bias=False)
        layer.weight = weight
        return layer(x)

    def reference(x, weight):
        return torch.nn.functional.layer_norm(x, (4,), weight)

    assert_equals_torch(layer_norm, reference, [(length, 4) for length in LENGTHS], [(4,)])


def test_rms_norm_equals_torch():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

    def rms_norm(x, weight):
        layer = models.RMSNorm(4, eps=1e-3)
        layer.weight = weight
        return layer(x)

    def reference(x, weight):
        return torch.nn.functional.rms_norm(x, (4,), weight, eps=1e-3)

    assert_equals_torch(rms_norm, reference, [(length, 4) for length in LENGTHS], [(4,)])


def test_an_embedding_gives_the_rows_of_its_table_and_trains_those_alone():
    embed = models.Embedding(10, 4)
    with db.Graph() as graph:
        found = [embed(graph, ids) for ids in ([3, 3, 9], [], [0])]
        loss = F.sum([F.sum(x) for x in found])
        values = [x.value for x in found]
        graph.backward(loss)
    assert np.array_equal(values[0], embed.weight.value[[3, 3, 9]])
    assert values[1].shape == (0, 4)
    assert embed.weight.grad.rows.tolist() == [0, 3, 9]
    assert embed.weight.grad.values[:, 0].tolist() == [1, 2, 1]


def test_a_frozen_embedding_gets_no_gradient():
    embed, project = models.Embedding(10, 4, freeze=True), models.Linear(4, 2)
    with db.Graph() as graph:
        graph.backward(F.sum(project(embed(graph, [1, 2]))))
    assert embed.weight.grad is None
    assert project.weight.grad is not None


@pytest.mark.parametrize("freeze", [False, True])
def test_an_embedding_of_a_table_keeps_its_array(freeze):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    embed = models.Embedding.of(table, freeze=freeze)
    project = models.Linear(3, 2)
    with db.Graph() as graph:
        x = embed(graph, [3, 0])
        assert x.value.tolist() == [[9, 10, 11], [0, 1, 2]]
        graph.backward(F.sum(project(x)))
    assert embed.weight.value is table and embed.weight.frozen == freeze
    assert (embed.weight.grad is None) == freeze


def test_an_embedding_of_a_parameter_shares_it_and_leaves_it_frozen():
    parameter = db.Parameter(np.ones((4, 3), np.float32))
    parameter.frozen = True
    assert models.Embedding.of(parameter).weight is parameter and parameter.frozen


def test_an_embedding_of_a_vector_is_refused():
    with pytest.raises(ShapeError, match=r"Embedding.of: a table \(3,\)"):
        models.Embedding.of(np.ones(3, np.float32))


def test_an_id_outside_the_table_is_named_at_the_users_line():
    embed = models.Embedding(10, 4)
    with db.Graph() as graph, pytest.raises(VocabularyError, match="id 10 at position 1") as caught:
        embed(graph, [2, 10])
    assert "test_layers.py" in str(caught.value)


def test_dropout_works_while_training_only():
    dropout = models.Dropout(0.5)
    with db.Graph(seed=0) as graph:
        x = F.constant(graph, 1.0, (50, 4))
        dropped, kept = dropout(x), dropout.eval()(x)
        assert set(np.unique(dropped.value)) == {0.0, 2.0}
        assert kept is x


def test_initial_values_are_distributed_as_in_pytorch():
    linear = models.Linear(16, 1000, rng=0)
    for parameter in (linear.weight, linear.bias):
        assert 0.24 < np.abs(parameter.value).max() <= 0.25  # 1 / √16
        assert abs(parameter.value.std() - 0.25 / 3**0.5) < 0.01
    table = models.Embedding(1000, 16, rng=0).weight.value
    assert abs(table.mean()) < 0.05 and abs(table.std() - 1) < 0.05
    assert models.LayerNorm(3).weight.value.tolist() == [1, 1, 1]
    assert models.Linear(3, 2, bias=False).bias is None


def test_initial_values_follow_from_the_seed():
    def drawn(rng=None):
        return models.Linear(3, 2, rng=rng).weight.value

    assert np.array_equal(drawn(5), drawn(np.random.default_rng(5)))
    db.seed(1)
    first, second = drawn(), drawn()
    db.seed(1)
    assert np.array_equal(first, drawn())
    assert not np.array_equal(first, second)


def test_an_output_of_an_embeddings_table_is_trained_from_both_ends():
    embed = models.Embedding(5, 3, rng=0)
    output = models.Linear.of(embed.weight)
    table = embed.weight.value.astype(np.float64)
    ids, targets = [1, 4, 1], [0, 3, 1]
    with db.Graph() as graph:
        graph.backward(F.cross_entropy(output(embed(graph, ids)), targets, reduction="sum"))
    logits = table[ids] @ table.T
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p[range(3), targets] -= 1
    expected = p.T @ table[ids]
    np.add.at(expected, ids, p @ table)
    np.testing.assert_allclose(embed.weight.grad, expected, rtol=1e-4, atol=1e-5)
    assert output.parameters() == embed.parameters()
