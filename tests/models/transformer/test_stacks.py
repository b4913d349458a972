"""Stacks: names, final norms, different layers, equal seeds."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.testing import check_batching
from tests.torch_parity import import_torch


def test_names_of_a_transformer_are_pytorchs_but_for_attention_to_the_memory():
    torch = import_torch()
    theirs = torch.nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    ours = models.Transformer(8, 2, 12, encoder_layers=1, decoder_layers=1)
    shared = {name for name, _ in theirs.named_parameters() if "multihead_attn" not in name}
    assert shared == {name for name in ours.state_dict() if "multihead_attn" not in name}
    ours.load_state_dict(
        {name: value.detach().numpy() for name, value in theirs.named_parameters()}
    )


@pytest.mark.parametrize("stack", [models.TransformerEncoder, models.TransformerDecoder])
def test_a_stack_has_a_final_norm_where_norms_come_first(stack):
    assert stack(1, 4, 2).norm is None
    assert stack(1, 4, 2, norm_first=True).norm is not None
    assert stack(1, 4, 2, norm_first=True, final_norm=False).norm is None


def test_layers_begin_with_different_values_that_follow_from_the_seed():
    one, other = (models.TransformerEncoder(2, 4, 2, rng=3).state_dict() for _ in range(2))
    assert all(np.array_equal(other[name], value) for name, value in one.items())
    first, second = (one[f"layers.{k}.linear1.weight"] for k in range(2))
    assert not np.array_equal(first, second)


def test_a_causal_encoder_sees_nothing_that_comes_later():
    encoder = models.TransformerEncoder(2, 4, 2, norm_first=True, dropout=0.0, rng=0)
    with db.Graph() as graph:
        x = F.input(graph, np.random.default_rng(0).standard_normal((5, 4)))
        one, other = encoder(x[:2], causal=True), encoder(x, causal=True)[:2]
        np.testing.assert_allclose(one.value, other.value, rtol=1e-5, atol=1e-6)


def test_an_encoder_and_decoder_batch_over_sentences_of_any_lengths():
    model = models.Transformer(4, 2, 6, encoder_layers=1, decoder_layers=1, norm_first=True, rng=0)
    shapes = [[(3, 4), (2, 4)], [(0, 4), (1, 4)], [(1, 4), (0, 4)], [(0, 4), (0, 4)]]
    check_batching(lambda graph, *xs: model(*xs), shapes=shapes, parameters=model)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"num_layers": 2}, "layers="), ({"d_model": 4}, "dim="), ({"nhead": 2}, "heads="),
        ({"dim_feedforward": 4}, "hidden="), ({"layer_norm_eps": 1e-5}, "eps="),
        ({"batch_first": True}, "one sentence"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stack", [models.TransformerEncoder, models.TransformerDecoder])
def test_pytorchs_names_of_arguments_are_answered_with_ours(stack, given, ours):
    with pytest.raises(ArgumentError, match=ours) as caught:
        stack(**{"layers": 2, "dim": 4, "heads": 2} | given)
    assert stack.__name__ in str(caught.value)


def nodes_and_launches(losses, sentences):
    with db.Graph() as graph:
        graph.backward(F.sum([losses(graph, length % 5) for length in range(sentences)]))
        return len(graph), graph.statistics.launches


@pytest.mark.usefixtures("one_thread")
def test_stacks_of_4_layers_are_a_node_a_sentence_whose_operators_run_once_a_mini_batch():
    embed = models.Embedding(7, 4, rng=0)
    encoder = models.TransformerEncoder(4, 4, 2, 6, rng=0)
    decoder = models.TransformerDecoder(4, 4, 2, 6, rotary={}, activation="swiglu", rng=0)

    def losses(graph, length):
        memory = encoder(embed(graph, [3] * length), causal=True)
        hidden = decoder(embed(graph, [1, 2]), memory)
        return F.cross_entropy(F.linear(hidden, embed.weight), [2, 1])

    few, many = (nodes_and_launches(losses, sentences) for sentences in (6, 30))
    assert (few[0], many[0]) == (6 * 6 + 1, 6 * 30 + 1)  # two lookups, two stacks, logits, loss
    assert few[1] == many[1]
