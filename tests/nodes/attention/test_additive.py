from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, GraphError, ShapeError
from dynbatch.nodes.attention.additive import BahdanauAttention
from dynbatch.nodes.batch import Batch
from dynbatch.testing import check_batching, check_gradient
from tests.attention_reference import LENGTHS, additive, differentiate

WIDTH, VALUE_WIDTH = 4, 6
MASK = np.random.default_rng(0).random((3, 5)) < 0.6
MASK[1] = False  # a query that sees nothing


def arrays(queries, keys, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = [(queries, WIDTH), (keys, WIDTH), (keys, VALUE_WIDTH)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def parameter(dtype=np.float32):
    return db.Parameter(np.random.default_rng(8).standard_normal(WIDTH).astype(dtype), "v")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_equal_a_loop_over_sentences(dtype):
    vector = parameter(dtype)
    given = [arrays(*pair, seed=k) for k, pair in enumerate(LENGTHS)]
    values, _, _ = differentiate(
        given, lambda q, k, v: F.additive_attention(q, k, v, vector), dtype
    )
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for xs, found in zip(given, values, strict=True):
        expected = additive(*[x.astype(np.float64) for x in xs], vector.value.astype(np.float64))
        assert np.allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [[(3, 5), (1, 1), (40, 33), (7, 6)], [(1, 7), (1, 1), (1, 30)]])
def test_values_and_gradients_equal_torch(lengths):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    vector = parameter()
    given = [arrays(*pair, seed=k) for k, pair in enumerate(lengths)]
    values, gradients, weights = differentiate(
        given, lambda q, k, v: F.additive_attention(q, k, v, vector)
    )
    u = torch.tensor(vector.value, requires_grad=True)
    for n, xs in enumerate(given):
        q, k, v = [torch.tensor(x, requires_grad=True) for x in xs]
        y = torch.softmax(torch.tanh(q[:, None] + k) @ u, dim=-1) @ v
        (y * torch.tensor(weights[n])).sum().backward()
        assert np.allclose(values[n], y.detach().numpy(), rtol=1e-5, atol=1e-5)
        for leaf, gradient in zip((q, k, v), gradients[n], strict=True):
            assert np.allclose(gradient, leaf.grad.numpy(), rtol=1e-5, atol=1e-5)
    assert np.allclose(vector.grad, u.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (1, 4), (1, 1), (2, 0), (0, 3)])
def test_gradients_equal_central_differences(pair):
    vector = parameter()
    shapes = [(pair[0], WIDTH), (pair[1], WIDTH), (pair[1], VALUE_WIDTH)]
    check_gradient(
        lambda graph, q, k, v: F.additive_attention(q, k, v, vector),
        shapes=shapes,
        parameters=[vector],
    )


@pytest.mark.parametrize("mask", [MASK, MASK[0], np.zeros((3, 5), bool)])
def test_gradients_with_a_mask_equal_central_differences(mask):
    vector = parameter()
    check_gradient(
        lambda graph, q, k, v: F.additive_attention(q, k, v, vector, mask=mask),
        shapes=[(3, WIDTH), (5, WIDTH), (5, VALUE_WIDTH)],
        parameters=[vector],
    )


def test_sentences_of_all_lengths_batch():
    vector = parameter()
    shapes = [[(a, WIDTH), (b, WIDTH), (b, VALUE_WIDTH)] for a, b in LENGTHS]
    check_batching(
        lambda graph, q, k, v: F.additive_attention(q, k, v, vector),
        shapes=shapes,
        parameters=[vector],
    )


def test_one_query_each_batches_as_vectors_and_with_an_empty_memory_among_them():
    vector = parameter()
    shapes = [[(WIDTH,), (n, WIDTH), (n, VALUE_WIDTH)] for n in (3, 1, 7, 2)]
    for _ in range(2):
        check_batching(
            lambda graph, q, k, v: F.additive_attention(q, k, v, vector),
            shapes=shapes,
            parameters=[vector],
        )
        shapes[1] = [(WIDTH,), (0, WIDTH), (0, VALUE_WIDTH)]


def test_without_backward_the_values_are_the_same():
    vector = parameter()
    q, k, v = arrays(3, 5)
    found = []
    for grad in (True, False):
        with db.Graph(grad=grad) as graph:
            both = [[F.input(graph, x) for x in xs] for xs in ((q, k, v), (q[0], k, v))]
            found.append([F.additive_attention(*xs, vector).value for xs in both])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_a_query_that_sees_no_key_gives_zeros_and_sends_no_gradient():
    vector = parameter()
    with db.Graph() as graph:
        inputs = [F.input(graph, x).keep() for x in arrays(3, 5)]
        row = F.additive_attention(*inputs, vector, mask=MASK).keep()
        none = F.additive_attention(*[F.input(graph, x) for x in arrays(2, 0)], vector).keep()
        graph.backward(F.sum([F.sum(row), F.sum(none)]))
        assert (row.value[1] == 0).all() and (row.value[[0, 2]] != 0).all()
        assert none.shape == (2, VALUE_WIDTH) and (none.value == 0).all()
        assert (inputs[0].gradient[1] == 0).all()
        assert all(np.isfinite(x.gradient).all() for x in inputs)


def test_a_frozen_vector_gets_no_gradient():
    vector = parameter()
    vector.frozen = True
    differentiate([arrays(3, 5)], lambda q, k, v: F.additive_attention(q, k, v, vector))
    assert vector.grad is None


def test_what_is_saved_is_one_number_for_each_query_and_key():
    vector = parameter()
    with db.Graph() as graph:
        given = [[F.input(graph, x) for x in arrays(*pair)] for pair in ((3, 5), (1, 2))]
        batch = Batch([F.additive_attention(*xs, vector) for xs in given], graph.dtype)
    assert BahdanauAttention.saved(batch) == {"weights": (3 * 5 + 1 * 2, 1)}


def decoder(attend):
    """A cell that attends with its state and takes in what it finds."""

    def step(x, h, p, memory):
        keys, values = memory
        h = F.tanh(x + h + F.linear(attend(h, keys, values, p), p.W))
        return h, h

    return step


def attend_additively(h, keys, values, p):
    return F.additive_attention(h, keys, values, p.v)


def attend_generally(h, keys, values, p):
    return F.general_attention(h, keys, values, p.G)


@pytest.mark.parametrize("attend", [attend_additively, attend_generally])
@pytest.mark.parametrize("memories", [(5, 1, 9, 3), (5, 0, 9, 3)])
def test_a_scan_whose_cell_attends_equals_the_steps_written_out(attend, memories):
    steps = (4, 6, 1, 2)
    rng = np.random.default_rng(11)
    shapes = {"v": (WIDTH,), "W": (WIDTH, VALUE_WIDTH), "G": (WIDTH, WIDTH)}
    parameters = {name: db.Parameter(rng.standard_normal(s), name) for name, s in shapes.items()}
    params = SimpleNamespace(**parameters)
    tokens = [rng.standard_normal((n, WIDTH)) for n in steps]
    given = [arrays(1, n, seed=n, dtype=np.float64)[1:] for n in memories]
    step = decoder(attend)
    cell = db.cell(step)

    def run(scanned):
        for p in parameters.values():
            p.grad = None
        with db.Graph(dtype="float64") as graph:
            kept, losses = [], []
            for xs, memory in zip(tokens, given, strict=True):
                nodes = [F.input(graph, a).keep() for a in (xs, *memory)]
                kept += nodes
                if scanned:
                    ys, _ = db.scan(cell, nodes[0], WIDTH, params, tuple(nodes[1:]))
                else:
                    h, outputs = F.constant(graph, 0.0, (WIDTH,)), []
                    for t in range(len(xs)):
                        y, h = step(nodes[0][t], h, params, tuple(nodes[1:]))
                        outputs.append(y)
                    ys = F.stack(outputs)
                weights = np.random.default_rng(len(kept)).standard_normal(ys.shape)
                losses.append(F.sum(ys * F.input(graph, weights)))
            loss = F.sum(losses)
            graph.backward(loss)
            used = [p.grad for p in parameters.values() if p.grad is not None]
            return [loss.value, *[node.gradient for node in kept], *used]

    scanned, written_out = run(True), run(False)
    for found, expected in zip(scanned, written_out, strict=True):
        assert np.allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_a_mask_inside_a_cell_is_refused():
    vector = parameter()

    @db.cell
    def cell(x, h, p, memory):
        h = x + F.additive_attention(h, memory, memory, vector, mask=np.ones(5, bool))
        return h, h

    with db.Graph() as graph:
        xs, memory = F.input(graph, np.ones((2, WIDTH))), F.input(graph, np.ones((5, WIDTH)))
        ys, _ = db.scan(cell, xs, WIDTH, None, memory)
        with pytest.raises(GraphError, match="a mask belongs to one sentence"):
            ys.value  # noqa: B018


@pytest.mark.parametrize(
    ("size", "make", "words"),
    [
        (
            5,
            lambda q, k, v, u: F.additive_attention(q, k, v, u),
            ["vector 'v' (5,) differ in D (4 != 5)", "elements"],
        ),
        (
            4,
            lambda q, k, v, u: F.additive_attention(q, v, v, u),
            ["q (3, 4) and k (5, 6) differ in D (4 != 6)"],
        ),
        (
            4,
            lambda q, k, v, u: F.additive_attention(q, k, q, u),
            ["k (5, 4) and v (3, 4) differ in S (5 != 3)"],
        ),
        (4, lambda q, k, v, u: F.additive_attention(q, k, v, u, mask=MASK.T), ["mask (5, 3)"]),
    ],
)
def test_shapes_that_do_not_fit_are_refused_where_the_node_is_made(size, make, words):
    vector = db.Parameter(np.ones(size, np.float32), "v")
    with db.Graph() as graph:
        nodes = [F.input(graph, x) for x in arrays(3, 5)]
        with pytest.raises(ShapeError) as raised:
            make(*nodes, vector)
    message = str(raised.value)
    assert message.startswith("BahdanauAttention") and "fix:" in message and __file__ in message
    assert all(word in message for word in words)


def test_masks_and_vectors_of_another_type_are_refused():
    with db.Graph() as graph:
        q, k, v = [F.input(graph, x) for x in arrays(3, 5)]
        with pytest.raises(DtypeError, match=r"additive_attention: the mask is int64 \(5,\)"):
            F.additive_attention(q, k, v, parameter(), mask=np.zeros(5, np.int64))
        vector = parameter(np.float64)
        vector.settle()
        with pytest.raises(DtypeError, match="'v' is float64, the graph float32"):
            F.additive_attention(q, k, v, vector)
