import math

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, GraphError, ShapeError
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
        (lambda q: F.attention(q, q, bias=np.zeros((2, 2))), DtypeError, "the bias is a ndarray"),
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
