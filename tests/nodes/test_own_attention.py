"""Attention that a user writes: products, softmax and sums over widths that are lengths.

It takes as many batches for sentences of different lengths as for equal ones, and gives what
`F.attention` and PyTorch give.
"""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.errors import ShapeError
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.testing import check_batching, check_device

FEATURES, HEADS = 8, 2
DIFFERENT = list(range(64))
EQUAL = [20] * 64

# Threads share the sentences of a product.
pytestmark = pytest.mark.usefixtures("one_thread")


def heads_of(q, k, v, mask=None, p=0.0):
    """softmax(q kᵀ / √d + mask) v in each head, side by side."""
    size = q.width // HEADS
    parts = zip(*[F.split(x, size) for x in (q, k, v)], strict=True)
    outputs = []
    for q_head, k_head, v_head in parts:
        scores = q_head @ F.transpose(k_head) * size**-0.5
        weights = F.softmax(scores if mask is None else scores + mask)
        outputs.append(F.dropout(weights, p) @ v_head)
    return F.concat(outputs)


def causal(length):
    return np.triu(np.full((length, length), -np.inf), 1)


def weights(names="qkv"):
    generator = np.random.default_rng(0)
    return [db.Parameter(generator.standard_normal((FEATURES, FEATURES)), n) for n in names]


def embedded(graph, length, seed=0):
    return F.input(graph, np.random.default_rng((seed, length)).standard_normal((length, FEATURES)))


def plain(graph, length, q, k, v):
    x = embedded(graph, length)
    return heads_of(*[F.linear(x, weight) for weight in (q, k, v)])


def masked(graph, length, q, k, v):
    x = embedded(graph, length)
    mask = F.input(graph, causal(length))
    return heads_of(*[F.linear(x, weight) for weight in (q, k, v)], mask, p=0.2)


def crossed(graph, length, q, k, v):
    """Attention of a sentence to another, which is empty where this has 63 tokens."""
    x, memory = embedded(graph, length), embedded(graph, 63 - length, 1)
    return heads_of(F.linear(x, q), F.linear(memory, k), F.linear(memory, v))


def pooled(graph, length, q, k, v):
    """Sums over queries and over keys, a mean of all, a normalisation written out."""
    x = embedded(graph, length)
    scores = F.linear(x, q) @ F.transpose(F.linear(x, k))
    peaks = F.max(scores, dim=-1)
    share = F.exp(scores - peaks) / F.sum(F.exp(scores - peaks), dim=-1)
    share = share + F.log_softmax(scores, dim=0) * F.sum(scores, dim=0) + F.mean(scores)
    return F.transpose(share) @ F.linear(x, v) * F.logsumexp(F.transpose(scores), dim=-1)


def talking(graph, length, q, k, v):
    """The scores of all heads side by side, a row for each pair, so that one product mixes them."""
    x = embedded(graph, length)
    q, k, v = [F.chunk(F.linear(x, weight), HEADS) for weight in (q, k, v)]
    pairs = F.concat([F.reshape(a @ b.T, (-1, 1)) for a, b in zip(q, k, strict=True)])
    mixed = F.chunk(pairs @ F.input(graph, [[1.0, 0.5], [0.0, 1.0]]), HEADS)
    shares = [F.softmax(F.reshape(scores, (length, length))) for scores in mixed]
    return F.concat([share @ values for share, values in zip(shares, v, strict=True)])


def cost(build, lengths):
    """(batches, fewest possible, launches) of forward and backward."""
    parameters = weights()
    with db.Graph(dtype="float64") as graph:
        outputs = [build(graph, length, *parameters) for length in lengths]
        graph.backward(F.mean([F.sum(y * y) for y in outputs]))
    found = graph.statistics
    return found.batches, graph.lower_bound, found.launches


@pytest.mark.parametrize(
    ("build", "batches", "launches", "packings"),
    # A sentence of one word has no column to repeat, so that what reads columns is packed.
    [
        (plain, 14, 31, 0), (masked, 16, 36, 0), (crossed, 14, 31, 0), (pooled, 28, 72, 10),
        (talking, 18, 39, 0),
    ],
)  # fmt: skip
def test_lengths_that_differ_cost_the_batches_of_equal_ones(build, batches, launches, packings):
    assert cost(build, EQUAL) == (batches, batches, launches)
    assert cost(build, DIFFERENT) == (batches, batches, launches + packings)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_needs_more_batches(policy):
    parameters = weights()
    counts = []
    for lengths in (DIFFERENT, EQUAL):
        with db.Graph(dtype="float64", policy=policy) as graph:
            for length in lengths:
                masked(graph, length, *parameters)
            graph.forward()
        counts.append(graph.statistics.batches)
    assert counts[0] == counts[1]


def run(attend, lengths):
    """Values of all sentences, and gradients of the weights."""
    parameters = weights()
    with db.Graph(dtype="float64") as graph:
        outputs = []
        for length in lengths:
            x, memory = embedded(graph, length), embedded(graph, 9 - length, 1)
            q, k, v = parameters
            outputs.append(attend(F.linear(x, q), F.linear(memory, k), F.linear(memory, v)))
        graph.backward(F.mean([F.sum(F.tanh(y)) for y in [y.keep() for y in outputs]]))
        return [y.value for y in outputs], [p.grad for p in parameters]


def test_values_and_gradients_are_those_of_the_one_node():
    lengths = [3, 0, 9, 1, 8, 4]
    own, gradients = run(heads_of, lengths)
    library, expected = run(lambda q, k, v: F.attention(q, k, v, heads=HEADS), lengths)
    for a, b in zip([*own, *gradients], [*library, *expected], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_causal_mask_of_arrays_is_the_causal_attention():
    parameters = weights()
    for length in (0, 1, 7):
        with db.Graph(dtype="float64") as graph:
            x = embedded(graph, length)
            q, k, v = [F.linear(x, weight) for weight in parameters]
            own = heads_of(q, k, v, F.input(graph, causal(length)))
            expected = F.attention(q, k, v, heads=HEADS, causal=True)
            np.testing.assert_allclose(own.value, expected.value, rtol=1e-10, atol=1e-12)


def test_values_and_gradients_are_pytorchs():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    parameters = weights()
    twins = [torch.tensor(p.value, requires_grad=True) for p in parameters]
    lengths, losses, expected = [5, 0, 1, 12], [], []
    with db.Graph(dtype="float64") as graph:
        for length in lengths:
            y = masked_without_dropout(graph, length, parameters)
            losses.append(F.sum(F.tanh(y)).keep())
            x = torch.tensor(np.random.default_rng((0, length)).standard_normal((length, FEATURES)))
            q, k, v = [
                (x @ twin.T).reshape(length, HEADS, FEATURES // HEADS).transpose(0, 1)
                for twin in twins
            ]
            attended = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=torch.tensor(causal(length))
            )
            expected.append(attended.transpose(0, 1).reshape(length, FEATURES).tanh().sum())
        graph.backward(F.mean(losses))
        values = [loss.value for loss in losses]
    torch.stack(expected).mean().backward()
    np.testing.assert_allclose(values, [e.item() for e in expected], rtol=1e-10, atol=1e-12)
    for parameter, twin in zip(parameters, twins, strict=True):
        np.testing.assert_allclose(parameter.grad, twin.grad.numpy(), rtol=1e-9, atol=1e-12)


def masked_without_dropout(graph, length, parameters):
    x = embedded(graph, length)
    q, k, v = [F.linear(x, weight) for weight in parameters]
    return heads_of(q, k, v, F.input(graph, causal(length)))


@pytest.mark.parametrize("build", [plain, masked, crossed, talking])
def test_it_is_right_one_by_one_under_every_policy(build):
    parameters = weights()
    lengths = [(3,), (0,), (1,), (11,), (63,)]
    check_batching(
        lambda graph, length: build(graph, length, *parameters), lengths, parameters=parameters
    )


@pytest.mark.parametrize("build", [masked, pooled])
def test_a_gpu_gives_what_the_cpu_gives(build, cuda):
    parameters = weights()
    check_device(
        lambda graph, length: build(graph, length, *parameters),
        [(3,), (0,), (1,), (34,)],
        parameters=parameters,
    )


def test_a_gpu_launches_as_much_for_lengths_that_differ(cuda):
    counts = []
    for lengths in ((2, 3, 5, 8, 40), (8,) * 5):
        parameters = [p.to("cuda") or p for p in weights()]
        before = queue().launches
        with db.Graph(dtype="float64", device="cuda") as graph:
            outputs = [plain(graph, length, *parameters) for length in lengths]
            graph.backward(F.mean([F.sum(y * y) for y in outputs]))
        counts.append(queue().launches - before)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("option", ["check", "guard"])
def test_it_passes_the_checks(option):
    parameters = weights()
    with db.Graph(dtype="float64", **{option: True}) as graph:
        ys = [plain(graph, length, *parameters) for length in (3, 0, 1, 11)]
        graph.backward(F.mean([F.sum(y * y) for y in ys]))


def test_the_estimate_is_what_is_measured():
    parameters = weights()
    with db.Graph(dtype="float64") as graph:
        ys = [masked(graph, length, *parameters) for length in (3, 0, 1, 30, 7)]
        loss = F.mean([F.sum(y * y) for y in ys])
        estimated = graph.estimate(loss).peak_bytes
        graph.backward(loss)
        assert graph.statistics.peak_bytes == estimated


@pytest.mark.parametrize("share", [0.75, 0.9])
def test_a_limit_of_memory_is_kept_and_changes_nothing(share):
    def step(limit=None):
        parameters = weights()
        with db.Graph(dtype="float64", seed=1) as graph:
            ys = [masked(graph, length, *parameters) for length in (3, 0, 1, 30, 7, 12)]
            loss = F.mean([F.sum(y * y) for y in ys])
            graph.backward(loss, memory_limit=limit)
            return graph.memory_use.peak_bytes, [p.grad for p in parameters]

    peak, expected = step()
    held, found = step(int(share * peak))
    assert held <= share * peak
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_adjacency_matrices_given_as_arrays_batch_by_the_rows_they_multiply():
    """A graph convolution: the inner width is a length because the rows of x are tokens."""
    generator = np.random.default_rng(0)
    with db.Graph() as graph:
        for nodes in range(1, 9):
            x = F.input(graph, generator.standard_normal((nodes, 4)))
            F.tanh(F.input(graph, generator.standard_normal((nodes, nodes))) @ x)
        graph.forward()
    assert graph.statistics.batches == 3


def test_features_that_differ_stay_apart():
    """Where a width is no length, batches are those of one width, read where they lie."""
    with db.Graph() as graph:
        for width in (4, 6):
            for length in (2, 5):
                x = F.input(graph, np.ones((length, width)))
                F.sum(F.softmax(x), dim=0)
        graph.forward()
    assert graph.statistics.batches == 1 + 2 + 2


def test_a_width_of_zero_is_refused_by_what_needs_features():
    with db.Graph() as graph:
        scores = F.input(graph, np.ones((2, 3))) @ F.transpose(F.input(graph, np.ones((0, 3))))
        assert scores.shape == (2, 0)
        with pytest.raises(ShapeError, match="at least one feature"):
            F.layer_norm(scores)
        with pytest.raises(ShapeError, match="a row of length 0 has no max"):
            F.max(scores, dim=-1)


SEEN = {
    "a matrix": lambda graph, length: np.tril(np.ones((length, length), bool)),
    "an input": lambda graph, length: F.input(graph, np.tril(np.ones((length, length)))),
    "a row": lambda graph, length: np.arange(length)[None] % 2 == 0,
    "a column": lambda graph, length: np.arange(length)[:, None] % 2 == 0,
}


def where_seen(graph, length, seen, side=1):
    """softmax(scores where a mask holds, a number elsewhere) x; `side` 2: the other way round."""
    x = embedded(graph, length)
    scores = x @ F.transpose(x)
    sides = (scores, -2.0) if side == 1 else (-2.0, scores)
    return F.softmax(F.where(seen(graph, length), *sides)) @ x


@pytest.mark.parametrize("side", [1, 2])
# A row is made a vector, which is repeated.
@pytest.mark.parametrize(("kind", "batches"), [("a matrix", 7), ("an input", 7), ("a row", 9)])
def test_a_mask_that_is_an_array_takes_no_batch_for_each_length(kind, batches, side):
    counts = []
    for lengths in (EQUAL, DIFFERENT):
        with db.Graph(dtype="float64") as graph:
            for length in lengths:
                where_seen(graph, length, SEEN[kind], side)
            graph.forward()
        counts.append(graph.statistics.batches)
    assert counts == [batches, batches]


@pytest.mark.parametrize("kind", SEEN)
def test_a_mask_that_is_an_array_hides_what_it_hides_in_pytorch(kind):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    lengths = [3, 0, 1, 7]
    weight = weights("w")[0]
    twin = torch.tensor(weight.value, requires_grad=True)
    with db.Graph(dtype="float64") as graph:
        losses, expected = [], []
        for length in lengths:
            x = embedded(graph, length)
            seen = SEEN[kind](graph, length)
            scores = F.linear(x, weight) @ F.transpose(x)
            losses.append(F.sum(F.tanh(F.softmax(F.where(seen, scores, -2.0)) @ x)).keep())
            xs = torch.tensor(x.array)
            mask = torch.tensor(seen if isinstance(seen, np.ndarray) else seen.array) != 0
            masked_scores = torch.where(mask, xs @ twin.T @ xs.T, -2.0)
            expected.append((masked_scores.softmax(-1) @ xs).tanh().sum())
        graph.backward(F.sum(losses))
        values = [loss.value for loss in losses]
    torch.stack(expected).sum().backward()
    np.testing.assert_allclose(values, [e.item() for e in expected], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weight.grad, twin.grad.numpy(), rtol=1e-9, atol=1e-12)


def some_rows(graph, length, *ids):
    x = embedded(graph, length).keep()
    return F.softmax((x @ F.transpose(x))[list(ids)]) @ x


def test_rows_of_scores_take_no_batch_for_each_length():
    counts = []
    for lengths in (EQUAL, DIFFERENT):
        with db.Graph(dtype="float64") as graph:
            outputs = [some_rows(graph, n, *[0, n - 1, 0][: 3 * n]) for n in lengths]
            graph.backward(F.mean([F.sum(y * y) for y in outputs]))
        counts.append((graph.statistics.batches, graph.lower_bound))
    assert counts == [(9, 9)] * 2


def test_the_estimate_of_rows_of_scores_is_what_is_measured():
    with db.Graph(dtype="float64") as graph:
        outputs = [some_rows(graph, n, *range(n)) for n in (3, 0, 1, 30, 7)]
        loss = F.mean([F.sum(y * y) for y in outputs])
        estimated = graph.estimate(loss).peak_bytes
        graph.backward(loss)
        assert graph.statistics.peak_bytes == estimated


def test_rows_of_scores_pass_gradients_on_to_where_they_came_from():
    with db.Graph(dtype="float64") as graph:
        inputs = [embedded(graph, length).keep() for length in (4, 0, 1, 9)]
        ids = [[3, 0, 3], [], [0, 0], [8, 2, 2, 5]]
        scores = [x @ F.transpose(x) for x in inputs]
        rows = [s[own] for s, own in zip(scores, ids, strict=True)]
        graph.backward(F.sum([F.sum(F.tanh(y)) for y in rows]))
        for x, own in zip(inputs, ids, strict=True):
            values = x.array
            slopes = np.zeros((len(values), len(values)))
            np.add.at(slopes, own, 1 - np.tanh((values @ values.T)[own]) ** 2)
            np.testing.assert_allclose(x.gradient, (slopes + slopes.T) @ values, atol=1e-10)
