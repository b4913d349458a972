"""`F.detach`: the value of its input, where that lies, and no gradient.

And columns that attention reads where they lie in the rows of one product.
"""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import NoGradientError
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.testing import NanPool

LENGTHS = (2, 0, 3)


def rows(graph):
    arrays = [np.random.default_rng(n).standard_normal((n, 2)) for n in LENGTHS]
    return [F.input(graph, array).keep() for array in arrays]


@pytest.mark.parametrize("mode", ["plain", "check", "guard", "one_by_one", "forward first"])
def test_a_product_with_what_is_detached_has_half_the_gradient_of_a_square(mode):
    options = {mode: True} if mode in ("check", "guard") else {}
    policy = "one_by_one" if mode == "one_by_one" else "by_bound"
    with db.Graph(dtype="float64", pool=NanPool(), policy=policy, **options) as graph:
        inputs = rows(graph)
        losses = [
            F.sum(x * F.detach(x))
            + F.sum(F.tanh(F.detach(F.tanh(x))))
            + 2.0 * F.sum(F.concat([x, F.detach(x * x)], dim=0))
            + F.sum(F.detach(x)[1:])
            for x in inputs
        ]
        if mode == "forward first":
            graph.forward()
        graph.backward(F.sum(losses))
        for x in inputs:
            np.testing.assert_allclose(x.gradient, x.value + 2, rtol=1e-12)


def cost(detaches):
    """Launches, copies and peak of one step of three sentences."""
    weight = db.Parameter(np.ones((2, 2)), "weight")
    with db.Graph(dtype="float64") as graph:
        losses = []
        for x in rows(graph):
            y = F.linear(x, weight)
            losses.append(F.sum(F.tanh(F.detach(y) if detaches else y)) + F.sum(y))
        graph.backward(F.sum(losses))
        statistics = graph.statistics
        return statistics.launches, statistics.copied_bytes, graph.peak_bytes


def test_nothing_is_launched_copied_or_stored_for_it():
    launches, copied, peak = cost(detaches=True)
    plain = cost(detaches=False)
    assert launches < plain[0] and copied <= plain[1] and peak <= plain[2]
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 2)))
        graph.values([x])
        before = graph.statistics.launches, graph.peak_bytes
        np.testing.assert_array_equal(F.detach(x).value, np.ones((3, 2)))
        assert (graph.statistics.launches, graph.peak_bytes) == before


@pytest.mark.parametrize("read", [False, True])
def test_a_kept_one_has_the_gradient_of_its_readers(read):
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [[1.0, 2.0], [3.0, 4.0]]).keep()
        detached = F.detach(x * 2.0)
        loss = F.sum(detached * detached * x)
        if read:
            _ = loss.value
        detached.keep()
        graph.backward(loss)
        np.testing.assert_allclose(detached.value, 2 * x.value)
        np.testing.assert_allclose(detached.gradient, 4 * x.value**2)
        np.testing.assert_allclose(x.gradient, 4 * x.value**2)


def test_a_loss_of_what_is_detached_alone_reaches_nothing():
    weight = db.Parameter(np.ones((2, 2)), "weight")
    with db.Graph(dtype="float64") as graph:
        loss = F.sum(F.detach(F.linear(F.input(graph, [1.0, 2.0]), weight)))
        with pytest.raises(NoGradientError):
            graph.backward(loss)


def step(x, state, p):
    """A recurrence whose gradient does not go back in time."""
    h = F.tanh(F.linear(x, p["W"]) + F.linear(F.detach(state), p["U"]))
    return h * F.detach(F.linear(x, p["U"])), h


def by_torch(torch, x, weight, recurrent):
    h, outputs = torch.zeros(2, dtype=torch.float64), []
    for row in x:
        h = torch.tanh(row @ weight.T + h.detach() @ recurrent.T)
        outputs.append(h * (row @ recurrent.T).detach())
    return torch.stack(outputs)


@pytest.mark.parametrize("way", ["scan", "calls"])
@pytest.mark.parametrize("mode", ["plain", "check"])
def test_in_cells_it_stops_the_gradient_as_in_pytorch(way, mode):
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape) for shape in ((4, 2), (2, 2), (2, 2))]
    cell = db.cell(step)
    parameters = {"W": db.Parameter(arrays[1], "W"), "U": db.Parameter(arrays[2], "U")}
    with db.Graph(dtype="float64", pool=NanPool(), check=mode == "check") as graph:
        x = F.input(graph, arrays[0]).keep()
        if way == "scan":
            outputs, _ = db.scan(cell, x, init=2, params=parameters)
        else:
            state, made = 2, []
            for k in range(4):
                output, state = cell(x[k], state, parameters)
                made.append(output)
            outputs = F.stack(made)
        graph.backward(outputs, gradient=np.arange(8.0).reshape(4, 2))
        found = [outputs.value, x.gradient, *[p.grad for p in parameters.values()]]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    theirs = by_torch(torch, *tensors)
    theirs.backward(torch.arange(8.0, dtype=torch.float64).reshape(4, 2))
    expected = [theirs.detach(), *[tensor.grad for tensor in tensors]]
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-10, atol=1e-13)


def joined(x):
    return F.attention(*F.split(x, 8), heads=4, causal=True)


def with_memory(x):
    return F.attention(F.tanh(x[:, 16:]), *F.chunk(x[:, :16] * 2.0, 2), heads=2)


def read_twice(x):
    parts = F.split(x, 8)
    return F.attention(*parts, heads=4) + F.attention(*parts, heads=2) + F.sum(x, dim=1)


def in_two_layers(x):
    for heads in (4, 2):
        seen = F.attention(*F.split(x, 8), heads=heads, kv_heads=heads)
        x = F.concat([seen, F.tanh(x[:, 8:])])
    return x


def whole_and_cut(x):
    return F.attention(x, *F.chunk(x, 2), heads=4, kv_heads=2)


def returned(x):
    parts = F.split(x, 8)
    return F.attention(*parts, heads=4), parts[1]


ROWS = (3, 0, 40, 1)
# Columns that plain nodes copy, there and back, and a block does not. Of what is read twice, or
# whole too, the gradient is added; what is returned, or cut into other parts, is copied.
COLUMNS = {
    joined: 24 + 24, with_memory: 16 + 16, read_twice: 24, in_two_layers: 0, whole_and_cut: 24,
    returned: 0,
}  # fmt: skip


def attended(function, is_block, device="cpu", **options):
    """Values and gradients of ragged sentences, and bytes copied."""
    generator = np.random.default_rng(0)
    weight = db.Parameter(generator.standard_normal((24, 5)).astype("f4"), "weight")
    weight.to(device)
    if device == "cpu":
        options["pool"] = NanPool()

    def projected(x, weight):
        return function(F.linear(x, weight))

    run = db.block(projected) if is_block else projected
    with db.Graph(device, **options) as graph:
        arrays = [generator.standard_normal((n, 5)).astype("f4") for n in ROWS]
        xs = [F.input(graph, array) for array in arrays]
        results = [run(x, weight) for x in xs]
        flat = [y for y in results for y in (y if isinstance(y, tuple) else (y,))]
        values = [y.keep() for y in flat]
        graph.backward(F.sum([F.sum(y * y) for y in flat]))
        return [*[y.value for y in values], weight.grad], graph.statistics.copied_bytes


@pytest.mark.parametrize("function", COLUMNS)
@pytest.mark.parametrize("mode", ["plain", "check", "guard"])
def test_attention_reads_columns_of_one_product_where_they_lie(function, mode):
    options = {mode: True} if mode in ("check", "guard") else {}
    ours, copied = attended(function, True, **options)
    theirs, copied_by_nodes = attended(function, False)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    if mode == "plain":
        assert copied_by_nodes - copied == COLUMNS[function] * sum(ROWS) * 4


@pytest.mark.parametrize("function", COLUMNS)
def test_a_gpu_reads_columns_where_they_lie_beside_other_steps(cuda, function):
    ours, _ = attended(function, True, "cuda")
    theirs, _ = attended(function, False)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(to_host(a), b, rtol=1e-5, atol=1e-5 * np.abs(b).max(initial=0))


@pytest.mark.parametrize("device", ["cpu", "cuda"], indirect=True)
def test_a_detached_node_is_read_in_a_stage_with_other_steps(device):
    weight = db.Parameter(np.eye(2, dtype="f4"), "weight")
    weight.to(device)
    with db.Graph(device) as graph:
        x = F.input(graph, np.arange(4, dtype="f4").reshape(2, 2)).keep()
        y = F.linear(x, weight)
        graph.backward(F.sum(F.tanh(F.detach(y))) + F.sum(y * y) + F.sum(F.sum(y, dim=1)))
        np.testing.assert_array_equal(to_host(x.gradient), 2 * np.arange(4).reshape(2, 2) + 1)
