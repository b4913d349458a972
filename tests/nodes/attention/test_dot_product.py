import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.cuda.attention import dot_product as cuda_kernels
from dynbatch.nodes.attention.dot_product import DotProductAttention
from dynbatch.nodes.batch import Batch
from dynbatch.testing import check_batching, check_gradient
from tests.attention_reference import LENGTHS, differentiate, dot, visible

WIDTH, VALUE_WIDTH = 4, 6
MASK = np.random.default_rng(0).random((3, 5)) < 0.6
MASK[1] = False  # a query that sees nothing


def arrays(queries, keys, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = [(queries, WIDTH), (keys, WIDTH), (keys, VALUE_WIDTH)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


OPTIONS = {
    "scaled": {},
    "plain": {"scale": 1.0},
    "heads": {"heads": 2},
    "causal": {"causal": True},
    "window": {"window": 1, "heads": 2},
    "causal window": {"window": 2, "causal": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_equal_a_loop_over_sentences(options, dtype):
    given = [arrays(*pair, seed=k) for k, pair in enumerate(LENGTHS)]
    values, _, _ = differentiate(given, lambda q, k, v: F.attention(q, k, v, **options), dtype)
    heads = options.get("heads", 1)
    scale = options.get("scale", (WIDTH / heads) ** -0.5)
    reach = options.get("window")
    for (queries, keys), xs, found in zip(LENGTHS, given, values, strict=True):
        seen = visible(queries, keys, reach, 0 if options.get("causal") else reach)
        expected = dot(*[x.astype(np.float64) for x in xs], scale, heads, seen)
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        assert np.allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_values_and_gradients_equal_torch(options):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    lengths = [(3, 5), (1, 1), (1, 7), (40, 33), (7, 6)]
    given = [arrays(*pair, seed=k) for k, pair in enumerate(lengths)]
    values, gradients, weights = differentiate(
        given, lambda q, k, v: F.attention(q, k, v, **options)
    )
    heads, reach = options.get("heads", 1), options.get("window")
    for n, (queries, keys) in enumerate(lengths):
        seen = visible(queries, keys, reach, 0 if options.get("causal") else reach)
        leaves = [torch.tensor(x, requires_grad=True) for x in given[n]]
        q, k, v = [x.reshape(len(x), heads, -1).transpose(0, 1) for x in leaves]
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.tensor(seen), scale=options.get("scale")
        )
        y = y.transpose(0, 1).reshape(queries, VALUE_WIDTH)
        sees = seen.any(axis=1)  # PyTorch gives NaN for a query that sees nothing
        if sees.all():
            (y * torch.tensor(weights[n].astype(np.float32))).sum().backward()
            for leaf, gradient in zip(leaves, gradients[n], strict=True):
                assert np.allclose(gradient, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)
        assert np.allclose(values[n][sees], y.detach().numpy()[sees], rtol=1e-5, atol=1e-5)


def test_causal_attention_is_torch_s_is_causal_also_for_more_keys_than_queries():
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    q, k, v = arrays(3, 5)
    (found,), _, _ = differentiate([(q, k, v)], lambda q, k, v: F.attention(q, k, v, causal=True))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *[torch.tensor(x)[None] for x in (q, k, v)], is_causal=True
    )
    assert np.allclose(found, expected[0].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (1, 4), (1, 1), (2, 0), (0, 3)])
def test_gradients_equal_central_differences(options, pair):
    shapes = [(pair[0], WIDTH), (pair[1], WIDTH), (pair[1], VALUE_WIDTH)]
    check_gradient(lambda graph, q, k, v: F.attention(q, k, v, **options), shapes=shapes)


@pytest.mark.parametrize("mask", [MASK, MASK[0], np.zeros((3, 5), bool)])
def test_gradients_with_a_mask_equal_central_differences(mask):
    shapes = [(3, WIDTH), (5, WIDTH), (5, VALUE_WIDTH)]
    check_gradient(lambda graph, q, k, v: F.attention(q, k, v, mask=mask, heads=2), shapes=shapes)


def test_sentences_of_all_lengths_batch():
    shapes = [[(a, WIDTH), (b, WIDTH), (b, VALUE_WIDTH)] for a, b in LENGTHS]
    check_batching(lambda graph, q, k, v: F.attention(q, k, v, heads=2), shapes=shapes)


def test_one_query_each_batches_as_vectors_and_with_an_empty_memory_among_them():
    shapes = [[(WIDTH,), (n, WIDTH), (n, VALUE_WIDTH)] for n in (3, 1, 7, 2)]
    check_batching(lambda graph, q, k, v: F.attention(q, k, v), shapes=shapes)
    shapes[1] = [(WIDTH,), (0, WIDTH), (0, VALUE_WIDTH)]
    check_batching(lambda graph, q, k, v: F.attention(q, k, v), shapes=shapes)


def test_scales_windows_and_masks_do_not_keep_sentences_apart():
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        ys = [
            F.attention(q, k, v),
            F.attention(q, k, v, scale=1.0),
            F.attention(q, k, v, causal=True),
            F.attention(q, k, v, window=1),
            F.attention(q, k, v, mask=MASK),
        ]
        graph.forward()
        assert len({y.sig for y in ys}) == 1
        assert "DotProductAttention  x 5" in str(graph.plans[0])
        seen = [None, None, visible(3, 5, right=0), visible(3, 5, 1, 1), MASK]
        scales = [0.5, 1.0, 0.5, 0.5, 0.5]
        for y, one, scale in zip(ys, seen, scales, strict=True):
            expected = dot(q.value, k.value, v.value, scale, 1, one)
            assert np.allclose(y.value, expected, rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_no_key_gives_zeros_and_sends_no_gradient():
    q, k, v = arrays(3, 5)
    empty = arrays(2, 0)
    with db.Graph() as graph:
        inputs = [F.input(graph, x).keep() for x in (q, k, v)]
        masked = F.attention(*inputs, mask=np.zeros(5, bool)).keep()
        row = F.attention(*inputs, mask=MASK).keep()
        none = F.attention(*[F.input(graph, x) for x in empty]).keep()
        graph.backward(F.sum([F.sum(y) for y in (masked, row, none)]))
        assert (masked.value == 0).all()
        assert (row.value[1] == 0).all() and (row.value[[0, 2]] != 0).all()
        assert none.shape == (2, VALUE_WIDTH) and (none.value == 0).all()
        assert (inputs[0].gradient[1] == 0).all()
        assert all(np.isfinite(x.gradient).all() for x in inputs)


def test_keys_are_the_values_by_default():
    q, k, _ = arrays(3, 5)

    def both(graph, q, k):
        return F.attention(q, k)

    check_gradient(both, shapes=[(3, WIDTH), (5, WIDTH)])
    with db.Graph() as graph:
        q, k = F.input(graph, q), F.input(graph, k)
        assert np.array_equal(F.attention(q, k).value, F.attention(q, k, k).value)


def test_general_attention_scores_by_a_bilinear_form():
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    rng = np.random.default_rng(3)
    weight = db.Parameter(rng.standard_normal((WIDTH, 3)).astype(np.float32), "general")
    lengths = [(2, 5), (1, 1), (6, 3)]
    given = [[rng.standard_normal((a, 3)).astype(np.float32), *arrays(a, b, seed=b)[1:]]
             for a, b in lengths]  # fmt: skip
    values, gradients, weights = differentiate(
        given, lambda q, k, v: F.general_attention(q, k, v, weight)
    )
    W = torch.tensor(weight.value, requires_grad=True)
    for n, xs in enumerate(given):
        q, k, v = [torch.tensor(x, requires_grad=True) for x in xs]
        y = torch.softmax(q @ W.T @ k.T, dim=-1) @ v
        (y * torch.tensor(weights[n].astype(np.float32))).sum().backward()
        assert np.allclose(values[n], y.detach().numpy(), rtol=1e-5, atol=1e-5)
        for leaf, gradient in zip((q, k, v), gradients[n], strict=True):
            assert np.allclose(gradient, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)
    assert np.allclose(weight.grad, W.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_general_attention_takes_masks():
    rng = np.random.default_rng(3)
    weight = db.Parameter(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), "general")
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        y = F.general_attention(q, k, v, weight, mask=MASK)
        expected = dot(q.value @ weight.value.T, k.value, v.value, 1.0, 1, MASK)
        assert np.allclose(y.value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 2}])
def test_grouped_queries_equal_torch(kv_heads, options):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    lengths, heads = [(3, 5), (1, 1), (1, 7), (40, 33)], 4
    rng = np.random.default_rng(0)
    given = [
        [
            rng.standard_normal((rows, count * width)).astype(np.float32)
            for rows, count, width in ((a, heads, 2), (b, kv_heads, 2), (b, kv_heads, 3))
        ]
        for a, b in lengths
    ]
    values, gradients, weights = differentiate(
        given, lambda q, k, v: F.attention(q, k, v, heads=heads, kv_heads=kv_heads, **options)
    )
    for n, (queries, keys) in enumerate(lengths):
        seen = visible(queries, keys, options.get("window"), 0 if options else None)
        leaves = [torch.tensor(x, requires_grad=True) for x in given[n]]
        q, k, v = [
            x.reshape(len(x), count, -1).transpose(0, 1)
            for x, count in zip(leaves, (heads, kv_heads, kv_heads), strict=True)
        ]
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.tensor(seen), enable_gqa=True
        )
        y = y.transpose(0, 1).reshape(queries, heads * 3)
        sees = seen.any(axis=1)
        assert np.allclose(values[n][sees], y.detach().numpy()[sees], rtol=1e-5, atol=1e-5)
        if sees.all():
            (y * torch.tensor(weights[n])).sum().backward()
            for leaf, gradient in zip(leaves, gradients[n], strict=True):
                assert np.allclose(gradient, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (1, 4), (2, 0), (0, 3)])
def test_gradients_of_grouped_queries_equal_central_differences(pair):
    shapes = [(pair[0], 4), (pair[1], 2), (pair[1], 6)]
    check_gradient(
        lambda graph, q, k, v: F.attention(q, k, v, heads=4, kv_heads=2, causal=True), shapes=shapes
    )


def test_grouped_queries_inside_a_scan_equal_repeated_keys():
    @db.cell
    def grouped(x, h, p, memory):
        h = F.tanh(x + F.attention(h, memory, heads=4, kv_heads=2))
        return h, h

    @db.cell
    def repeated(x, h, p, memory):
        h = F.tanh(x + F.attention(h, memory, heads=4))
        return h, h

    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((n, 8)) for n in (3, 1, 5)]
    memories = [rng.standard_normal((n, 4)) for n in (2, 4, 1)]
    found = []
    for cell, times in ((grouped, 1), (repeated, 2)):
        with db.Graph(dtype="float64") as graph:
            keys = [F.input(graph, m).keep() for m in memories]
            read = keys if times == 1 else [twice_by_head(m) for m in keys]
            ys = [
                db.scan(cell, F.input(graph, x), init=8, memory=m)[0].keep()
                for x, m in zip(xs, read, strict=True)
            ]
            graph.backward(F.sum([F.sum(y * y) for y in ys]))
            found.append([*[y.value for y in ys], *[k.gradient for k in keys]])
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-12)


def twice_by_head(memory):
    first, second = memory[:, 0:2], memory[:, 2:4]
    return F.concat([first, first, second, second])


def test_what_is_saved_is_one_number_for_each_query_and_head():
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        ys = [F.attention(q, k, v, heads=2), F.attention(k, q, q[:, 0:4], heads=2)]
        batch = Batch(ys, graph.dtype)
        assert DotProductAttention.saved(batch) == {"log_sums": (3 + 5, 2)}


def test_a_mask_may_change_after_the_node_was_made():
    mask = MASK.copy()
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        y = F.attention(q, k, v, mask=mask)
        mask[...] = False
        assert (y.value[0] != 0).any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda q, k, v: F.attention(q, v, v),
            ["q (3, 4) and k (5, 6) differ in d (4 != 6)", "general"],
        ),
        (
            lambda q, k, v: F.attention(q, k, q),
            ["k (5, 4) and v (3, 4) differ in S (5 != 3)", "same positions"],
        ),
        (
            lambda q, k, v: F.attention(q, k, v, heads=3),
            ["q (3, 4): 4 is no multiple of heads = 3", "divides"],
        ),
        (lambda q, k, v: F.attention(q, k, v, heads=0), ["4 is no multiple of heads = 0"]),
        (
            lambda q, k, v: F.attention(q, k, v, heads=4, kv_heads=3),
            ["k (5, 4): 4 is no multiple of kv_heads = 3", "divisors"],
        ),
        (
            lambda q, k, v: F.attention(q, k, v, kv_heads=0),
            ["4 is no multiple of kv_heads = 0", "divisors of heads"],
        ),
        (
            lambda q, k, v: F.attention(q, k, v, heads=2, kv_heads=1),
            ["differ in d (2 != 4)", "k (S, kv_heads · d)"],
        ),
        (lambda q, k, v: F.attention(q, k, v, mask=MASK.T), ["mask (5, 3)", "3 queries, 5 keys"]),
        (lambda q, k, v: F.attention(q, k, v, window=-1), ["window -1"]),
        (
            lambda q, k, v: F.attention(q, k[0], v),
            ["k has shape (4,)", "one row for each position"],
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused_where_the_node_is_made(make, words):
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        with pytest.raises(ShapeError) as raised:
            make(q, k, v)
    message = str(raised.value)
    assert message.startswith("DotProductAttention") and "fix:" in message and __file__ in message
    assert all(word in message for word in words)


def test_a_mask_that_is_not_boolean_and_a_window_that_is_no_integer_are_refused():
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        with pytest.raises(DtypeError, match=r"the mask is float64 \(5,\)"):
            F.attention(q, k, v, mask=np.zeros(5))
        with pytest.raises(DtypeError, match=r"window=1\.5"):
            F.attention(q, k, v, window=1.5)


@pytest.mark.parametrize("keeper", ["linear", "none"])
def test_a_gpu_reads_the_output_in_backward_where_another_node_keeps_it(cuda, monkeypatch, keeper):
    launched = cuda_kernels.attend_backward
    read, rng = [], np.random.default_rng(4)
    weight = db.Parameter(rng.standard_normal((VALUE_WIDTH, VALUE_WIDTH)))

    def attend_backward(packed, scoring, log_sums, out, *rest):
        read.append(out is not None)
        launched(packed, scoring, log_sums, out, *rest)

    def differentiated(device):
        weight.to(device)
        with db.Graph(device=device, dtype=np.float64) as graph:
            inputs = [F.input(graph, x).keep() for x in arrays(5, 70, 1, np.float64)]
            seen = F.attention(*inputs)
            if keeper == "linear":
                seen = F.linear(seen, weight)
            graph.backward(F.sum(F.sum(F.tanh(seen))))
            return [node.gradient for node in inputs]

    monkeypatch.setattr(cuda_kernels, "attend_backward", attend_backward)
    for expected, found in zip(differentiated("cpu"), differentiated("cuda"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert read == [keeper == "linear"]


@pytest.mark.parametrize(("matmul", "error"), [("tf32", 2**-9), ("bfloat16", 2**-6)])
def test_a_graph_of_rounded_factors_attends_on_tensor_cores_once_told_to(
    cuda, monkeypatch, matmul, error
):
    rng = np.random.default_rng(6)
    given = [
        [rng.standard_normal((rows, 64)).astype(np.float32) for rows in (queries, keys, keys)]
        for queries, keys in ((40, 70), (1, 9), (65, 3))
    ]

    def differentiated(on, **options):
        monkeypatch.setattr(cuda_kernels, "TENSOR_CORES", on)
        with db.Graph("cuda", **options) as graph:
            inputs = [[F.input(graph, x).keep() for x in xs] for xs in given]
            seen = [F.attention(*xs, heads=2, causal=True) for xs in inputs]
            graph.backward(F.sum([F.sum(F.sum(F.tanh(y))) for y in seen]))
            return [x.gradient for xs in inputs for x in xs], graph.statistics.launches

    exact, launches = differentiated(True)
    rounded, others = differentiated(True, matmul=matmul)
    assert others == launches
    scale = max([np.abs(x).max() for x in exact])
    furthest = max([np.abs(x - y).max() for x, y in zip(rounded, exact, strict=True)])
    assert 0 < furthest < error * scale
    for found, expected in zip(differentiated(False, matmul=matmul)[0], exact, strict=True):
        np.testing.assert_array_equal(found, expected)
