"""Dropout of attention's probabilities: what is dropped, its gradients, what it follows from."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, GraphError
from dynbatch.kernels.attention import blocks
from dynbatch.kernels.dropout import random_bits
from dynbatch.testing import check_batching, check_gradient
from tests.attention_reference import LENGTHS, differentiate, visible

HEADS, WIDTH, P = 4, 2, 0.3


def arrays_of(pair, kv_heads=HEADS, dtype=np.float64):
    rng = np.random.default_rng(pair)
    shapes = [(pair[0], HEADS * WIDTH), (pair[1], kv_heads * WIDTH), (pair[1], kv_heads * 3)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def factors(stream, pair, p=P):
    """(heads, T_q, T_k), 0 or 1 / (1 - p): `F.dropout` of as many numbers."""
    count = HEADS * pair[0] * pair[1]
    bits = random_bits(np.array([stream], np.uint32), np.array([0, count]), 0, count)
    return (bits.reshape(HEADS, *pair) >= int(p * 2**32)) / (1 - p)


@pytest.fixture(params=["one block", "many blocks"])
def cut(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 50)
        monkeypatch.setattr(blocks, "BAND_ROWS", 3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 2}, {"kv_heads": 2}], ids=str)
def test_values_and_gradients_equal_torch_with_the_mask_of_the_stream(options, dtype, cut):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    kv_heads = options.get("kv_heads", HEADS)
    lengths = [(3, 5), (1, 1), (1, 7), (40, 33), (7, 6)]
    given = [arrays_of(pair, kv_heads, dtype) for pair in lengths]
    nodes = []

    def attend(q, k, v):
        nodes.append(F.attention(q, k, v, heads=HEADS, dropout=P, bias=F.alibi(HEADS), **options))
        return nodes[-1]

    values, gradients, weights = differentiate(given, attend, dtype)
    assert len({node.stream for node in nodes}) == len(nodes)
    tolerance = 1e-5 if dtype == "float32" else 1e-11
    slopes = torch.tensor([4.0 ** -(n + 1) for n in range(HEADS)], dtype=getattr(torch, dtype))
    for n, (queries, keys) in enumerate(lengths):
        left, right = options.get("window"), 0 if "causal" in options else options.get("window")
        hidden = torch.tensor(~visible(queries, keys, left, right))
        leaves = [torch.tensor(x, requires_grad=True) for x in given[n]]
        q, k, v = [
            x.reshape(len(x), heads, -1).transpose(0, 1)
            for x, heads in zip(leaves, (HEADS, kv_heads, kv_heads), strict=True)
        ]
        k, v = [x.repeat_interleave(HEADS // kv_heads, dim=0) for x in (k, v)]
        far = (torch.arange(keys)[None] - torch.arange(queries)[:, None]).abs()
        scores = q @ k.transpose(1, 2) * WIDTH**-0.5 - slopes[:, None, None] * far
        p = scores.masked_fill(hidden, -1e30).softmax(-1)
        dropped = p * torch.tensor(factors(nodes[n].stream, (queries, keys)).astype(dtype))
        y = (dropped @ v).transpose(0, 1).reshape(queries, HEADS * 3)
        sees = ~hidden.all(dim=1).numpy()
        assert np.allclose(
            values[n][sees], y.detach().numpy()[sees], rtol=tolerance, atol=tolerance
        )
        (y[sees] * torch.tensor(weights[n][sees])).sum().backward()
        for leaf, gradient in zip(leaves, gradients[n], strict=True):
            assert np.allclose(gradient, leaf.grad.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (1, 4), (1, 1), (2, 0), (0, 3)])
def test_gradients_equal_central_differences(pair):
    table = db.Parameter(np.random.default_rng(0).standard_normal((7, HEADS)), "table")
    check_gradient(
        lambda graph, q, k, v: F.attention(
            q, k, v, heads=HEADS, kv_heads=2, dropout=P, bias=F.relative_bias(table)
        ),
        shapes=[(pair[0], 8), (pair[1], 4), (pair[1], 2)],
        parameters=[table],
    )


def test_sentences_of_all_lengths_batch():
    check_batching(
        lambda graph, q, k, v: F.attention(q, k, v, heads=HEADS, dropout=P),
        shapes=[[(a, 8), (b, 8), (b, 4)] for a, b in LENGTHS],
    )


def test_two_threads_drop_what_one_does(monkeypatch):
    given = [arrays_of(pair) for pair in LENGTHS]

    def run():
        db.seed(3)
        values, gradients, _ = differentiate(
            given, lambda q, k, v: F.attention(q, k, v, heads=HEADS, dropout=P), "float64"
        )
        return [*values, *[x for each in gradients for x in each]]

    one = run()
    monkeypatch.setattr(blocks, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(blocks.parallel, "num_threads", lambda: 2)
    for a, b in zip(one, run(), strict=True):
        assert np.allclose(a, b, rtol=1e-12, atol=1e-12)


def twice(q, k, v):
    return sum([F.attention(q, k, v, heads=HEADS, dropout=P) for _ in range(2)])


def outputs_of(sentences, attend=twice, seed=0):
    """The value and the gradients of each sentence's arrays, by its number."""
    found = {}
    with db.Graph(dtype="float64", seed=seed) as graph:
        kept = []
        for number in sentences:
            xs = [F.input(graph, x).keep() for x in arrays_of(LENGTHS[number])]
            y = attend(*xs).keep()
            kept.append((number, [*xs, y]))
        graph.backward(F.sum([F.sum(nodes[-1] * nodes[-1]) for _, nodes in kept]))
        for number, (*xs, y) in kept:
            found[number] = [y.value, *[x.gradient for x in xs]]
    return found


@pytest.mark.parametrize("attend", [twice, db.block(twice)], ids=["nodes", "block"])
def test_a_sentence_keeps_its_mask_whatever_is_beside_it(attend):
    rng = np.random.default_rng(0)
    every = outputs_of(range(len(LENGTHS)), attend)
    for _ in range(20):
        some = rng.permutation(len(LENGTHS))[: rng.integers(1, len(LENGTHS) + 1)].tolist()
        for number, arrays in outputs_of(some, attend).items():
            for one, other in zip(arrays, every[number], strict=True):
                assert np.allclose(one, other, rtol=1e-12, atol=1e-12)
    others = outputs_of(range(len(LENGTHS)), attend, seed=1)
    assert not np.allclose(others[5][0], every[5][0])


def test_attention_applied_twice_to_a_sentence_drops_other_pairs():
    with db.Graph(dtype="float64", seed=0) as graph:
        x = F.input(graph, np.ones((1, 8)))
        keys = F.input(graph, np.random.default_rng(0).standard_normal((20, 8)))
        one, other = [F.attention(x, keys, heads=HEADS, dropout=P) for _ in range(2)]
        assert one.sig == other.sig and one.stream != other.stream
        assert not np.allclose(one.value, other.value)


def test_the_mean_over_many_masks_is_attention_without_dropout():
    q, k, v = arrays_of((1, 6))
    with db.Graph(dtype="float64", seed=0) as graph:
        xs = [F.input(graph, x) for x in (q, k, v)]
        plain = F.attention(*xs, heads=HEADS).value
        drawn = [F.attention(*xs, heads=HEADS, dropout=P) for _ in range(2000)]
        mean = np.mean(graph.values(drawn), axis=0)
    assert np.abs(mean - plain).max() < 0.1


def test_no_dropout_is_plain_attention_and_all_of_it_gives_zeros():
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x).keep() for x in arrays_of((3, 5), dtype=np.float32)]
        plain, none = [F.attention(q, k, v, heads=2, dropout=p) for p in (0.0, 0)]
        assert plain.sig == none.sig == F.attention(q, k, v, heads=2).sig
        every = F.attention(q, k, v, heads=2, dropout=1.0).keep()
        assert F.attention(q, k, v, heads=2, dropout=0.5).sig != every.sig
        graph.backward(F.sum(every))
        assert (every.value == 0).all() and (v.gradient == 0).all() and (q.gradient == 0).all()


def test_one_query_and_one_head_drop_keys():
    with db.Graph(dtype="float64", seed=0) as graph:
        rng = np.random.default_rng(0)
        q, k = [F.input(graph, rng.standard_normal(shape)) for shape in ((2,), (9, 2))]
        y = F.attention(q, k, dropout=0.5)
        p = F.softmax(k @ q * 2**-0.5).value
        bits = random_bits(np.array([y.stream], np.uint32), np.array([0, 9]), 0, 9)
        assert np.allclose(y.value, 2 * (p * (bits >= 2**31)) @ k.value, rtol=1e-12, atol=1e-12)


@db.cell
def dropping(x, h, p, memory):
    h = F.tanh(x + F.attention(h, memory, dropout=P))
    return h, h


def test_dropout_inside_a_scan_is_refused():
    with db.Graph() as graph:
        x, memory = [F.input(graph, np.ones((rows, 8), np.float32)) for rows in (3, 2)]
        db.scan(dropping, x, init=8, memory=memory)
        with pytest.raises(GraphError, match="in a cell has a bias or dropout"):
            graph.forward()


@pytest.mark.parametrize("p", [-0.1, 1.5, "0.1", True, np.nan])
def test_what_is_no_probability_is_refused(p):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 4), np.float32))
        with pytest.raises(ArgumentError, match="attention: dropout is"):
            F.attention(x, x, dropout=p)
