import math

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, GraphError, ShapeError, VocabularyError
from dynbatch.kernels.attention import blocks
from dynbatch.kernels.runtime import parallel
from dynbatch.testing import check_batching, check_gradient
from tests.attention_reference import LENGTHS, differentiate, dot, visible

HEADS, WIDTH = 4, 2


def table_of(rows, dtype="float32"):
    values = np.random.default_rng(rows).standard_normal((rows, HEADS))
    table = db.Parameter(values.astype(dtype), "table")
    table.settle()  # it keeps its dtype, as one that a graph has read
    return table


def t5_bucket(distance, buckets, max_distance, bidirectional):
    """The bucket of one distance, from the formula, step by step in float32."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        far = abs(distance)
    else:
        far = max(-distance, 0)
    exact = buckets // 2
    if far < exact:
        return first + far
    share = np.log(np.float32(far) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return first + min(exact + int(share * np.float32(buckets - exact)), buckets - 1)


KINDS = {
    "relative": lambda table: (F.relative_bias(table), lambda d: min(max(d, -3), 3) + 3),
    "t5": lambda table: (F.t5_bias(table, 20), lambda d: t5_bucket(d, 8, 20, True)),
    "t5, causal": lambda table: (
        F.t5_bias(table, 20, bidirectional=False),
        lambda d: t5_bucket(d, 8, 20, False),
    ),
}
ROWS = {"relative": 7, "t5": 8, "t5, causal": 8}
over_kinds = pytest.mark.parametrize("kind", KINDS)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": 2, "scale": 1.0},
    "grouped": {"kv_heads": 2},
}
over_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def arrays_of(pair, kv_heads, dtype):
    rng = np.random.default_rng(pair)
    shapes = [(pair[0], HEADS * WIDTH), (pair[1], kv_heads * WIDTH), (pair[1], kv_heads * 3)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@over_kinds
@over_options
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_equal_torch_with_a_matrix_of_the_bias(kind, options, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    table = table_of(ROWS[kind], dtype)
    twin = torch.tensor(table.value, requires_grad=True)
    bias, row_of = KINDS[kind](table)
    lengths, kv_heads = [(3, 5), (1, 1), (1, 7), (40, 33), (7, 6)], options.get("kv_heads", HEADS)
    given = [arrays_of(pair, kv_heads, dtype) for pair in lengths]
    values, gradients, weights = differentiate(
        given, lambda q, k, v: F.attention(q, k, v, heads=HEADS, bias=bias, **options), dtype
    )
    tolerance = 1e-5 if dtype == "float32" else 1e-11
    for n, (queries, keys) in enumerate(lengths):
        left, right = options.get("window"), 0 if "causal" in options else options.get("window")
        hidden = torch.tensor(~visible(queries, keys, left, right))
        rows = np.array([[row_of(j - i) for j in range(keys)] for i in range(queries)])
        added = twin[torch.tensor(rows)].permute(2, 0, 1).masked_fill(hidden, -math.inf)
        leaves = [torch.tensor(x, requires_grad=True) for x in given[n]]
        q, k, v = [
            x.reshape(len(x), heads, -1).transpose(0, 1)
            for x, heads in zip(leaves, (HEADS, kv_heads, kv_heads), strict=True)
        ]
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=added, scale=options.get("scale"), enable_gqa=True
        )
        y = y.transpose(0, 1).reshape(values[n].shape)
        sees = ~hidden.all(dim=1).numpy()  # PyTorch gives NaN for a query that sees nothing
        assert np.allclose(
            values[n][sees], y.detach().numpy()[sees], rtol=tolerance, atol=tolerance
        )
        (y[sees] * torch.tensor(weights[n][sees])).sum().backward()
        for leaf, gradient in zip(leaves, gradients[n], strict=True):
            assert np.allclose(gradient, leaf.grad.numpy(), rtol=tolerance, atol=tolerance)
    assert np.allclose(table.grad, twin.grad.numpy(), rtol=tolerance, atol=10 * tolerance)


@over_kinds
@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (1, 4), (1, 1), (2, 0), (0, 3)])
def test_gradients_equal_central_differences(kind, pair):
    table = table_of(ROWS[kind], "float64")
    bias, _ = KINDS[kind](table)
    check_gradient(
        lambda graph, q, k, v: F.attention(q, k, v, heads=HEADS, bias=bias, causal=True),
        shapes=[(pair[0], 8), (pair[1], 8), (pair[1], 4)],
        parameters=[table],
    )


@over_kinds
def test_sentences_of_all_lengths_batch(kind):
    table = table_of(ROWS[kind], "float64")
    bias, _ = KINDS[kind](table)
    check_batching(
        lambda graph, q, k, v: F.attention(q, k, v, heads=HEADS, bias=bias),
        shapes=[[(a, 8), (b, 8), (b, 4)] for a, b in LENGTHS],
        parameters=[table],
    )


PAIRS = [(3, 5), (1, 1), (1, 7), (40, 33), (70, 130), (7, 6), (0, 3), (2, 0)]
MATRICES = {
    "one for all heads": lambda queries, keys: (queries, keys),
    "one for each head": lambda queries, keys: (HEADS, queries, keys),
}
over_matrices = pytest.mark.parametrize("shape", MATRICES.values(), ids=MATRICES)


def torch_attention(torch, q, k, v, bias, causal):
    """Attention of one sentence, each of whose queries sees a key."""
    heads = k.shape[1] // WIDTH
    q, k, v = [
        x.reshape(len(x), n, -1).transpose(0, 1) for x, n in ((q, HEADS), (k, heads), (v, heads))
    ]
    if causal:
        hidden = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
        bias = bias.masked_fill(hidden, -math.inf)
    bias = bias.expand(HEADS, *bias.shape[-2:])
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    return y.transpose(0, 1).reshape(bias.shape[1], -1)


@over_matrices
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("by_features", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bias_of_pairs_is_torch_s_float_mask(shape, kv_heads, causal, by_features, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    rng, tolerance = np.random.default_rng(0), 1e-5 if dtype == "float32" else 1e-11
    rows = (9, HEADS) if len(shape(1, 1)) > 2 else (9,)
    table = db.Parameter(rng.standard_normal(rows).astype(dtype), "table")
    table.settle()
    twin = torch.tensor(table.value, requires_grad=True)
    features = [rng.integers(0, 9, pair) for pair in PAIRS]
    given = [
        [*arrays_of(pair, kv_heads, dtype), rng.standard_normal(shape(*pair)).astype(dtype)]
        for pair in PAIRS
    ]
    of_pairs = iter(features)
    values, gradients, weights = differentiate(
        given,
        lambda q, k, v, b: F.attention(
            q, k, v, heads=HEADS, kv_heads=kv_heads, causal=causal,
            bias=F.feature_bias(table, next(of_pairs)) if by_features else b),
        dtype,
    )  # fmt: skip
    for k, (queries, keys) in enumerate(PAIRS):
        if not queries * keys:
            assert not values[k].any()
            continue
        leaves = [torch.tensor(x, requires_grad=True) for x in given[k]]
        bias = leaves[3]
        if by_features:
            bias = twin[torch.tensor(features[k])]
            bias = bias.permute(2, 0, 1) if bias.ndim > 2 else bias
        y = torch_attention(torch, *leaves[:3], bias, causal)
        assert np.allclose(values[k], y.detach().numpy(), rtol=tolerance, atol=tolerance)
        (y * torch.tensor(weights[k])).sum().backward()
        for leaf, gradient in list(zip(leaves, gradients[k], strict=True))[
            : 3 if by_features else 4
        ]:
            assert np.allclose(gradient, leaf.grad.numpy(), rtol=tolerance, atol=tolerance)
    if by_features:
        assert np.allclose(table.grad, twin.grad.numpy(), rtol=tolerance, atol=10 * tolerance)


@over_matrices
@pytest.mark.parametrize("by_features", [False, True])
def test_a_bias_of_pairs_has_the_gradients_of_central_differences(shape, by_features):
    table = db.Parameter(np.random.default_rng(1).standard_normal((5, HEADS)), "table")
    features = np.arange(12).reshape(3, 4) % 5

    def attend(graph, q, k, v, b):
        bias = F.feature_bias(table, features) if by_features else b
        return F.attention(q, k, v, heads=HEADS, bias=bias, causal=True) + 0 * F.sum(b)

    shapes = [(3, 8), (4, 8), (4, 4), shape(3, 4)]
    check_gradient(attend, shapes=shapes, parameters=[table] if by_features else [])


@pytest.mark.parametrize("rows", [(300, HEADS), (300,), (70_000,)])
def test_a_table_of_features_gets_the_bits_of_sentences_one_by_one(rows):
    rng = np.random.default_rng(3)
    table = db.Parameter(rng.standard_normal(rows).astype(np.float32), "table")
    lengths = [40, 3, 1, 65]
    features = [rng.integers(0, rows[0], (n, n)) for n in lengths]
    arrays = [rng.standard_normal((n, HEADS * WIDTH)) for n in lengths]

    def gradient(sentences):
        with db.Graph() as graph:
            bias = [F.feature_bias(table, features[k]) for k in sentences]
            assert {b.features.itemsize for b in bias} == {2 if rows[0] == 300 else 4}
            xs = [F.input(graph, arrays[k]) for k in sentences]
            pairs = zip(xs, bias, strict=True)
            ys = [F.attention(x, x, heads=HEADS, bias=b) * x for x, b in pairs]
            graph.backward(F.sum([F.sum(y) for y in ys]))

    gradient(range(4))
    together, table.grad = table.grad.copy(), None
    for k in range(4):
        gradient([k])
    np.testing.assert_array_equal(together, table.grad)


def test_a_bias_of_pairs_may_be_an_array_and_hide_keys():
    rng = np.random.default_rng(2)
    bias, q = rng.standard_normal((3, 4)), rng.standard_normal((3, 8))
    k = rng.standard_normal((4, 8))
    seen = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], bool)
    with db.Graph(dtype="float64") as graph:
        nodes = [F.input(graph, x) for x in (q, k)]
        hidden = F.attention(*nodes, heads=HEADS, bias=np.where(seen, bias, -np.inf))
        masked = F.attention(*nodes, heads=HEADS, bias=F.input(graph, bias), mask=seen)
        below = F.attention(*nodes, heads=HEADS, bias=np.tile(bias, (HEADS, 1)), mask=seen)
        assert not hidden.value[1].any()
        np.testing.assert_array_equal(hidden.value, masked.value)
        np.testing.assert_array_equal(below.value, masked.value)


def test_the_gradient_s_nodes_are_0_too_for_a_query_whose_keys_a_bias_hides():
    rng = np.random.default_rng(2)
    bias = np.where(np.arange(3)[:, None] == 1, -np.inf, rng.standard_normal((3, 4)))

    def squares(q, k, b):
        y = F.attention(q, k, heads=HEADS, bias=b)
        return F.sum(y * y)

    with db.Graph(dtype="float64") as graph:
        xs = [F.input(graph, rng.standard_normal((n, 8))).keep() for n in (3, 4)]
        xs.append(F.input(graph, bias).keep())
        made = [x.value for x in db.grad(squares, (0, 1, 2))(*xs)]
        graph.backward(squares(*xs))
        for x, slopes in zip(xs, made, strict=True):
            np.testing.assert_allclose(slopes, x.gradient, rtol=1e-12, atol=1e-14)


def test_a_bias_of_pairs_is_made_of_tokens():
    """Scores of a biaffine form are a bias, whose width is a length."""
    weight = db.Parameter(np.eye(8) / 4, "weight")
    check_batching(
        lambda graph, x: F.attention(x, x, heads=HEADS, bias=F.linear(x, weight) @ F.transpose(x)),
        shapes=[[(n, 8)] for n in (3, 0, 1, 5)],
        parameters=[weight],
    )


LAYERS = {
    "array": lambda x, array, features, table: array,
    "features": lambda x, array, features, table: F.feature_bias(table, features),
    "node": lambda x, array, features, table: x @ F.transpose(x),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_pass_a_bias_on_and_stay_one_node_a_sentence(make):
    """Under a memory limit too, and the memory is known before: features take none."""
    layers, table = models.TransformerEncoder(2, 8, HEADS, 8, dropout=0.0, rng=0), table_of(5)
    rng, lengths = np.random.default_rng(0), (9, 3, 12)
    arrays = [rng.standard_normal((n, n)) for n in lengths]
    features = [rng.integers(0, 5, (n, n)) for n in lengths]
    tokens, weights = [[rng.standard_normal((n, 8)) for n in lengths] for _ in range(2)]

    def run(function, limit=None):
        for parameter in (*layers.parameters(), table):
            parameter.grad = None
        with db.Graph() as graph:
            xs = [F.input(graph, x) for x in tokens]
            biases = [make(*each, table) for each in zip(xs, arrays, features, strict=True)]
            ys = [function(x, bias) for x, bias in zip(xs, biases, strict=True)]
            nodes = len(graph)
            of_ys = [F.sum(y * F.input(graph, w)) for y, w in zip(ys, weights, strict=True)]
            loss = F.sum(of_ys)
            planned = graph.estimate(loss, limit)
            graph.backward(loss, limit)
            assert planned == graph.memory_use
        gradients = [p.grad for p in (*layers.parameters(), table) if p.grad is not None]
        return [loss.value, *gradients], nodes, planned.peak_bytes

    found, nodes, peak = run(lambda x, bias: layers(x, bias=bias))
    assert nodes == 3 * (4 if make is LAYERS["node"] else 2)
    plain = run(lambda x, bias: layers(x))[2]
    if make is LAYERS["features"]:  # a copy of the table, and a gradient for each sentence
        assert peak - plain <= 5 * table.value.nbytes < 4 * sum([n * n for n in lengths])
    by_hand = [layer.__call__.__func__.__wrapped__ for layer in layers.layers]
    others = [
        run(lambda x, bias: by_hand[1](layers.layers[1], by_hand[0](layers.layers[0], x, bias=bias),
                                       bias=bias)),
        run(lambda x, bias: layers(x, bias=bias), limit=peak * 9 // 10),
    ]  # fmt: skip
    for other, _, _ in others:
        for one, two in zip(found, other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_one_head_and_one_query_each_have_their_bias():
    table = db.Parameter(np.array([[5.0], [1.0], [-5.0]]), "table")
    with db.Graph(dtype="float64") as graph:
        rng = np.random.default_rng(0)
        q, k = [F.input(graph, rng.standard_normal(shape)) for shape in ((2,), (4, 2))]
        y = F.attention(q, k, bias=F.relative_bias(table))
        added = lambda head, distance: table.value[min(max(distance, -1), 1) + 1, head]  # noqa: E731
        expected = dot(q.value[None], k.value, k.value, 2**-0.5, bias=added)
        assert np.allclose(y.value, expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (32, 127), (8, 20), (6, 33)])
def test_buckets_are_t5_s(buckets, max_distance, bidirectional):
    table = db.Parameter(np.zeros((buckets, 1), np.float32), "table")
    rule = F.t5_bias(table, max_distance, bidirectional).rule
    distances = np.arange(-300, 300)
    expected = [t5_bucket(d, buckets, max_distance, bidirectional) for d in distances.tolist()]
    assert rule.rows(distances).tolist() == expected


def test_slopes_of_alibi_are_powers_of_two_and_every_second_of_the_next_power():
    assert F.alibi(8).rule.slopes == tuple([2.0**-n for n in range(1, 9)])
    sixteen = F.alibi(16).rule.slopes
    assert sixteen[:2] == (2**-0.5, 0.5)
    assert F.alibi(12).rule.slopes == F.alibi(8).rule.slopes + sixteen[:8:2]
    assert F.alibi(1).rule.slopes == (2**-8,)


@over_options
def test_alibi_lowers_scores_by_the_distance(options):
    kv_heads = options.get("kv_heads", HEADS)
    given = [arrays_of(pair, kv_heads, np.float64) for pair in LENGTHS]
    bias = F.alibi(HEADS)
    values, _, _ = differentiate(
        given, lambda q, k, v: F.attention(q, k, v, heads=HEADS, bias=bias, **options), "float64"
    )
    for (queries, keys), (q, k, v), found in zip(LENGTHS, given, values, strict=True):
        k, v = [
            np.repeat(x.reshape(keys, kv_heads, x.shape[1] // kv_heads), HEADS // kv_heads, axis=1)
            for x in (k, v)
        ]
        expected = dot(
            q, k.reshape(keys, HEADS * WIDTH), v.reshape(keys, HEADS * 3),
            options.get("scale", WIDTH**-0.5), HEADS,
            visible(queries, keys, options.get("window"), 0 if "causal" in options else
                    options.get("window")),
            lambda head, distance: -(4.0 ** -(head + 1)) * abs(distance),
        )  # fmt: skip
        assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_bias_and_a_mask_inside_a_block_are_those_outside():
    table = table_of(8, "float64")
    rng = np.random.default_rng(0)
    masks = [rng.random(pair) < 0.7 for pair in LENGTHS]

    def attend(q, k, v, mask):
        bias = F.t5_bias(table, 20)
        return F.attention(q, k, v, heads=HEADS, kv_heads=2, bias=bias, causal=True, mask=mask)

    found = []
    for function in (attend, db.block(attend)):
        with db.Graph(dtype="float64") as graph:
            xs = [[F.input(graph, x).keep() for x in arrays_of(n, 2, "float64")] for n in LENGTHS]
            ys = [function(*x, mask).keep() for x, mask in zip(xs, masks, strict=True)]
            graph.backward(F.sum([F.sum(y * y) for y in ys]))
            gradients = [x.gradient for each in xs for x in each]
            found.append([*[y.value for y in ys], *gradients, table.grad.copy()])
        table.zero_grad()
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_equal_biases_made_for_each_sentence_batch_and_other_tables_do_not():
    one, other = table_of(7), table_of(7)
    with db.Graph() as graph:
        q = F.input(graph, np.ones((2, 8), np.float32))
        ys = [F.attention(q, q, heads=HEADS, bias=F.relative_bias(one)) for _ in range(2)]
        ys += [F.attention(q, q, heads=HEADS, bias=F.alibi(HEADS)) for _ in range(2)]
        assert ys[0].sig == ys[1].sig != ys[2].sig == ys[3].sig
        assert F.attention(q, q, heads=HEADS, bias=F.relative_bias(other)).sig != ys[0].sig
        assert ys[0].parameters() == (one,)


def test_layers_that_are_called_with_equal_rules_batch_too():
    layer, batches = models.MultiHeadAttention(8, HEADS, rng=0), []
    for again in (False, True):
        with db.Graph() as graph:
            biases = [F.alibi(HEADS)] * 3
            for n, bias in enumerate(biases):
                layer(F.constant(graph, 1.0, (n, 8)), bias=F.alibi(HEADS) if again else bias)
            graph.forward()
            batches.append(graph.statistics.batches)
    assert batches[0] == batches[1]


def test_a_frozen_table_gets_no_gradient():
    table = table_of(7)
    table.frozen = True
    with db.Graph() as graph:
        q = F.input(graph, np.ones((2, 8), np.float32)).keep()
        graph.backward(F.sum(F.attention(q, q, heads=HEADS, bias=F.relative_bias(table))))
    assert table.grad is None


def test_a_bias_inside_a_scan_is_refused():
    @db.cell
    def biased(x, h, p, memory):
        h = F.tanh(x + F.attention(h, memory, heads=HEADS, bias=F.alibi(HEADS)))
        return h, h

    with db.Graph() as graph:
        x, memory = [F.input(graph, np.ones((rows, 8), np.float32)) for rows in (3, 2)]
        db.scan(biased, x, init=8, memory=memory)
        with pytest.raises(GraphError, match="in a cell has a bias or dropout"):
            graph.forward()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda q: F.attention(q, q, heads=2, bias=F.alibi(4)), ShapeError, "4 heads for 2"),
        (lambda q: F.attention(q, q, bias=F.relative_bias(table_of(3))), ShapeError, "heads for 1"),
        (lambda q: F.attention(q, q, bias=np.ones((2, 2), bool)), DtypeError, "is bool (2, 2)"),
        (lambda q: F.attention(q, q, bias=np.zeros((2, 3))), ShapeError, "bias (2, 3) for 2"),
        (
            lambda q: F.attention(q, q, bias=F.feature_bias(table_of(3), [[0]]), heads=4),
            ShapeError,
            "features (1, 1) for 2 queries",
        ),
        (lambda q: F.feature_bias(table_of(3), [[3]]), VocabularyError, "features from 3 to 3"),
        (lambda q: F.feature_bias(table_of(3), [[0.5]]), DtypeError, "features are float64"),
        (lambda q: F.feature_bias(table_of(3), [[0], [1, 2]]), DtypeError, "features are a list"),
        (lambda q: F.feature_bias(np.zeros(3), [[0]]), DtypeError, "a parameter expected"),
        (
            lambda q: F.attention(q, q, heads=4, bias=F.relative_bias(table_of(3, "float64"))),
            DtypeError,
            "parameter 'table' is float64",
        ),
        (lambda q: F.relative_bias(table_of(8)), ShapeError, "has 8 rows"),
        (lambda q: F.relative_bias(np.zeros((3, 4))), DtypeError, "a parameter expected"),
        (lambda q: F.t5_bias(db.Parameter(np.zeros(32), "flat")), ShapeError, "'flat' is (32,)"),
        (lambda q: F.t5_bias(table_of(3)), ShapeError, "4 or more"),
        (lambda q: F.t5_bias(table_of(32), 8), ArgumentError, "max_distance is 8"),
        (lambda q: F.t5_bias(table_of(32), 16, False), ArgumentError, "max_distance is 16"),
        (lambda q: F.alibi(0), ArgumentError, "heads is 0"),
    ],
)  # fmt: skip
def test_what_is_no_bias_is_refused_where_it_is_given(make, error, words):
    with db.Graph() as graph:
        q = F.input(graph, np.ones((2, 8), np.float32))
        with pytest.raises(error) as raised:
            make(q)
    message = str(raised.value)
    assert words in message and "fix:" in message and __file__ in message


def test_a_thread_without_a_sentence_leaves_the_tables_gradient_as_it_is(monkeypatch):
    """The first of two threads has no sentence, since the second one's is the longest."""
    table = table_of(7, "float64")

    def gradient():
        with db.Graph(dtype="float64") as graph:
            xs = [F.input(graph, np.random.default_rng(n).standard_normal((n, 8))) for n in (9, 1)]
            bias = F.relative_bias(table)
            graph.backward(F.sum([F.sum(F.attention(x, x, x, heads=4, bias=bias) * x) for x in xs]))
        found, table.grad = table.grad.copy(), None
        return found

    alone = gradient()
    monkeypatch.setattr(blocks, "num_shards", lambda sentences, scores: 2)
    monkeypatch.setattr(parallel, "run", lambda tasks: [task() for task in reversed(tasks)])
    np.testing.assert_allclose(gradient(), alone, rtol=1e-12)
