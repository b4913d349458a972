"""`MultiHeadAttention`: PyTorch's three forms of state dict, memories of length 0, refusals."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.testing import check_batching


def test_separate_weights_of_a_state_dict_are_joined():
    attention = models.MultiHeadAttention(4, 2, rng=0)
    rng = np.random.default_rng(1)
    q, k, v, out = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(4))
    bias = rng.standard_normal(12).astype(np.float32)
    state = {"q_proj_weight": q, "k_proj_weight": k, "v_proj_weight": v, "in_proj_bias": bias}
    attention.load_state_dict({**state, "out_proj.weight": out, "out_proj.bias": bias[:4]})
    assert np.array_equal(attention.in_proj_weight.value, np.concatenate([q, k, v]))
    assert np.array_equal(attention.in_proj_bias.value, bias)
    assert list(state) == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"]


@pytest.mark.parametrize("prefix", ["", "attention."])
def test_the_joined_weight_of_a_state_dict_is_divided_for_a_memory(prefix):
    class Model(models.Module):
        def __init__(self):
            self.attention = models.MultiHeadAttention(4, 2, memory_dim=4, rng=0)

    model = Model() if prefix else Model().attention
    joined = np.arange(48, dtype=np.float32).reshape(12, 4)
    out = {"out_proj.weight": np.eye(4), "out_proj.bias": np.zeros(4)}
    state = {"in_proj_weight": joined, "in_proj_bias": joined[:, 0], **out}
    model.load_state_dict({prefix + name: value for name, value in state.items()})
    found = model.state_dict()
    assert np.array_equal(found[f"{prefix}q_proj.weight"], joined[:4])
    assert np.array_equal(found[f"{prefix}kv_proj.weight"], joined[4:])
    assert np.array_equal(found[f"{prefix}q_proj.bias"], joined[:4, 0])
    assert np.array_equal(found[f"{prefix}kv_proj.bias"], joined[4:, 0])


def test_its_own_state_dict_loads_again():
    for widths in ({}, {"memory_dim": 3}):
        one, other = (models.MultiHeadAttention(4, 2, **widths, rng=seed) for seed in (0, 1))
        other.load_state_dict(one.state_dict())
        for name, value in one.state_dict().items():
            assert np.array_equal(other.state_dict()[name], value), name


def test_over_an_empty_memory_each_row_is_the_bias():
    attention = models.MultiHeadAttention(4, 2, memory_dim=3, rng=0)
    attention.out_proj.bias.value[...] = [1, 2, 3, 4]
    with db.Graph() as graph:
        y = attention(F.constant(graph, 1.0, (2, 4)), F.constant(graph, 1.0, (0, 3)))
        assert y.value.tolist() == [[1, 2, 3, 4]] * 2


def test_heads_may_have_a_width_of_their_own():
    attention = models.MultiHeadAttention(4, 3, head_dim=5, bias=False, rng=0)
    shapes = {name: value.shape for name, value in attention.state_dict().items()}
    assert shapes == {"in_proj_weight": (45, 4), "out_proj.weight": (4, 15)}
    shapes = [[(length, 4)] for length in (3, 0, 1, 6)]
    check_batching(lambda graph, x: attention(x, window=1), shapes=shapes, parameters=attention)


@pytest.mark.parametrize("widths", [{}, {"memory_dim": 6}])
def test_heads_that_share_keys_are_heads_with_copies_of_them(widths):
    shared = models.MultiHeadAttention(8, 4, kv_heads=2, **widths, rng=0)
    repeated = models.MultiHeadAttention(8, 4, **widths, rng=1)
    rows = [
        *range(8),
        *[
            8 + 4 * part + 2 * (head // 2) + k
            for part in (0, 1)
            for head in range(4)
            for k in (0, 1)
        ],
    ]
    state = shared.state_dict()
    if widths:
        for name in ("kv_proj.weight", "kv_proj.bias"):
            state[name] = state[name][np.array(rows[8:]) - 8]
    else:
        for name in ("in_proj_weight", "in_proj_bias"):
            state[name] = state[name][rows]
    repeated.load_state_dict(state)
    rng = np.random.default_rng(0)
    with db.Graph() as graph:
        given = [F.input(graph, rng.standard_normal((n, d))) for n, d in ((3, 8), (5, 6))]
        given = given if widths else given[:1]
        one, other = shared(*given).value, repeated(*given).value
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [1, 2])
def test_rotary_turns_queries_and_keys_and_no_values(shared):
    rotary = {"base": 100.0, "layout": "interleaved", "rotary_dim": 2}
    attention = models.MultiHeadAttention(8, 2, kv_heads=2 // shared, rotary=rotary, rng=0)
    x = np.random.default_rng(0).standard_normal((5, 8))
    with db.Graph() as graph:
        found = attention(F.input(graph, x), causal=True).value
        joined = F.linear(F.input(graph, x), attention.in_proj_weight, attention.in_proj_bias)
        q, k, v = F.split(joined, [8, 8 // shared, 8 // shared])
        q, k = F.rotary(q, 2, **rotary), F.rotary(k, 2 // shared, **rotary)
        seen = F.attention(q, k, v, heads=2, kv_heads=2 // shared, causal=True)
        np.testing.assert_allclose(found, attention.out_proj(seen).value, rtol=1e-5, atol=1e-6)


def test_a_bias_by_distance_is_added_to_scores_and_trained_through_all_layers_that_share_it():
    table = db.Parameter(np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32))
    bias = F.relative_bias(table)
    encoder = models.TransformerEncoder(2, 8, 2, position_bias=bias, dropout=0.0, rng=0)
    plain = models.TransformerEncoder(2, 8, 2, dropout=0.0, rng=0)
    assert sum([parameter is table for parameter in encoder.parameters()]) == 1
    attention = encoder.layers[0].self_attn
    x = np.random.default_rng(1).standard_normal((4, 8))
    with db.Graph() as graph:
        joined = F.linear(F.input(graph, x), attention.in_proj_weight, attention.in_proj_bias)
        seen = F.attention(*F.chunk(joined, 3), heads=2, bias=bias)
        expected = attention.out_proj(seen).value
        np.testing.assert_allclose(attention(F.input(graph, x)).value, expected, rtol=1e-5)
        assert not np.allclose(encoder(F.input(graph, x)).value, plain(F.input(graph, x)).value)
        # A sum of what is normalised is the same whatever the bias.
        graph.backward(F.sum(F.exp(encoder(F.input(graph, x)))))
    assert np.abs(table.grad).max() > 1e-3


@pytest.mark.parametrize("positions", [{"rotary": {}}, {"position_bias": F.alibi(2)}])
def test_positions_are_those_of_attention_of_a_sentence_to_itself(positions):
    layer = models.TransformerDecoderLayer(8, 2, **positions, rng=0)
    (name,) = positions
    assert getattr(layer.self_attn, name) is not None
    assert getattr(layer.multihead_attn, name) is None
    with pytest.raises(ArgumentError, match="positions and a memory"):
        models.MultiHeadAttention(8, 2, memory_dim=8, **positions)


def test_gates_multiply_the_values_of_each_head():
    gated = models.MultiHeadAttention(8, 2, kv_heads=1, rotary={}, gated=True, rng=0)
    plain = models.MultiHeadAttention(8, 2, kv_heads=1, rotary={}, rng=0)
    rows = gated.in_proj_weight.value
    queries, gates = [rows[:16].reshape(2, 2, 4, 8)[:, k].reshape(8, 8) for k in range(2)]
    plain.in_proj_weight.assign(np.concatenate([queries, rows[16:]]))
    plain.out_proj.weight.assign(np.eye(8))
    for bias in (plain.in_proj_bias, gated.in_proj_bias):
        bias.assign(np.zeros(bias.shape))
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    with db.Graph() as graph:
        seen = plain(F.input(graph, x), causal=True).value / (1 + np.exp(-x @ gates.T))
        found = gated(F.input(graph, x), causal=True).value
    np.testing.assert_allclose(found, seen @ gated.out_proj.weight.value.T, rtol=0, atol=1e-6)
    with pytest.raises(ArgumentError, match="gates and a memory"):
        models.MultiHeadAttention(8, 2, memory_dim=8, gated=True)


def test_a_recurrence_takes_the_place_of_attention():
    layer = models.TransformerEncoderLayer(
        8, 2, linear_attn=models.GatedDeltaNet(8, 2, rng=0), rng=0
    )
    names = [name for name, _ in layer.named_parameters()]
    assert "linear_attn.A_log" in names and not any(["self_attn" in name for name in names])
    layer.eval()
    with db.Graph() as graph:
        x = F.input(graph, np.ones((5, 8), np.float32))
        expected = layer.norm1(x + layer.linear_attn(x))
        expected = layer.norm2(expected + layer.feed_forward(expected)).value
        np.testing.assert_allclose(layer(x, causal=True).value, expected, atol=1e-6)
        with pytest.raises(ArgumentError, match="a mask or a bias with linear_attn"):
            layer(x, mask=np.ones(5, bool))


@pytest.mark.parametrize("widths", [{}, {"memory_dim": 4}])
def test_dropout_of_probabilities_is_on_while_training(widths):
    attention = models.MultiHeadAttention(4, 2, dropout=1.0, **widths, rng=0)
    plain = models.MultiHeadAttention(4, 2, **widths, rng=0)

    def value(model):
        with db.Graph(seed=0) as graph:
            x = F.input(graph, np.random.default_rng(0).standard_normal((3, 4)))
            return model(x, x).value if widths else model(x).value

    assert not value(attention).any()  # the bias of out_proj, which is 0
    np.testing.assert_allclose(value(attention.eval()), value(plain), rtol=1e-5)


@pytest.mark.parametrize(("given", "expected"), [({}, 0.3), ({"attention_dropout": 0.2}, 0.2)])
def test_a_layers_dropout_is_that_of_its_attention_too_unless_another_is_given(given, expected):
    layer = models.TransformerDecoderLayer(8, 2, dropout=0.3, **given, rng=0)
    assert (layer.self_attn.dropout, layer.multihead_attn.dropout) == (expected, expected)


def test_heads_of_keys_divide_heads():
    with pytest.raises(ArgumentError, match="4 heads for 3 of keys"):
        models.MultiHeadAttention(8, 4, kv_heads=3)


def test_a_memory_is_given_if_and_only_if_the_module_was_made_for_one():
    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (2, 4))
        with pytest.raises(ArgumentError, match="called with a memory") as caught:
            models.MultiHeadAttention(4, 2)(x, x)
        assert "test_attention.py" in str(caught.value)
        with pytest.raises(ArgumentError, match="called without a memory"):
            models.MultiHeadAttention(4, 2, memory_dim=4)(x)


def test_heads_divide_the_features():
    with pytest.raises(ArgumentError, match="3 heads for 4 features"):
        models.MultiHeadAttention(4, 3)
