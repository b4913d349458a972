import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError


@pytest.mark.parametrize("kind", ["var", "std"])
@pytest.mark.parametrize("correction", [0, 1, 2, 3])
@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0], [1.0, 4.0]])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_few_elements_give_what_pytorch_gives(kind, correction, values):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    rows = np.array(values, np.float32).reshape(-1, 1)
    tensor = torch.tensor(rows, requires_grad=True)
    expected = getattr(tensor, kind)(0, correction=correction)
    expected.sum().backward()
    with db.Graph() as graph:
        x = F.input(graph, rows).keep()
        y = getattr(F, kind)(x, 0, correction=correction)
        np.testing.assert_allclose(y.value, expected.detach().numpy())
    with db.Graph() as graph:
        x = F.input(graph, rows).keep()
        y = getattr(F, kind)(x, 0, correction=correction)
        # The loss is finite, so that backward runs: y itself may be NaN.
        chosen = F.concat([F.reshape(y, (1, 1)), F.input(graph, [[1.0]])], dim=0)
        loss = F.sum(chosen[1]) if not np.isfinite(expected.item()) else F.sum(chosen[0])
        graph.backward(loss)
        if np.isfinite(expected.item()):
            np.testing.assert_allclose(x.gradient, tensor.grad.numpy())


def test_a_variance_of_large_numbers_keeps_its_digits():
    """Two passes: the mean square less the squared mean would be 0 or negative here."""
    with db.Graph() as graph:
        assert float(F.var(F.input(graph, [4096.0, 4097.0, 4098.0]))) == 1


def test_correction_is_a_number_and_unbiased_is_told_of_it():
    with db.Graph() as graph:
        x = F.input(graph, [1.0, 2.0])
        with pytest.raises(DtypeError, match="correction=0 for unbiased=False"):
            F.var(x, unbiased=False)
        with pytest.raises(DtypeError, match="correction=0 for unbiased=False"):
            F.std(x, None, False)
        with pytest.raises(ShapeError, match="has no dim 1"):
            F.cumsum(x, 1)


@pytest.mark.parametrize("value", [F.var, F.std])
def test_different_corrections_are_batches_of_their_own(value):
    with db.Graph() as graph:
        nodes = [value(F.input(graph, [1.0, 2.0]), correction=c) for c in (0, 1, 0.0, 1.0)]
    assert nodes[0].sig == nodes[2].sig != nodes[1].sig == nodes[3].sig


@db.cell
def described(x, h):
    """A cell of what is in this file, of the token alone and of the state."""
    summary = F.concat([F.var(x), F.std(h, correction=0), F.dot(x, h), F.var(h)])
    h = F.tanh(F.cumsum(x, -1) * 0.3 + F.cumsum(h, -1) * 0.1 + F.sum(summary) * 0.05)
    return F.concat([h, summary]), h


def by_scan(graph, x):
    ys, last = db.scan(described_step, x, init=F.constant(graph, [0.1, -0.2, 0.3, 0.4]))
    return [ys, last]


@db.cell
def described_step(x, h, p):
    return described.function(x, h)


def by_steps(graph, x):
    h, outputs = F.constant(graph, [0.1, -0.2, 0.3, 0.4]), []
    for t in range(x.rows):
        y, h = described.function(x[t], h)
        outputs.append(y)
    return [F.stack(outputs), h]


def by_calls(graph, x):
    h, outputs = F.constant(graph, [0.1, -0.2, 0.3, 0.4]), []
    for t in range(x.rows):
        y, h = described(x[t], h)
        outputs.append(y)
    return [db.stack(outputs), F.tanh(h)]


def gradients(build, device="cpu"):
    generator = np.random.default_rng(0)
    with db.Graph(device=device, dtype="float64") as graph:
        inputs = [F.input(graph, generator.standard_normal((n, 4))).keep() for n in (3, 1, 6)]
        outputs = [build(graph, x) for x in inputs]
        loss = F.sum([F.sum(y * y) for (y, _) in outputs])
        values = [y.value for (y, _) in outputs]
        graph.backward(loss)
        return [*values, *[x.gradient for x in inputs]]


@pytest.mark.parametrize("build", [by_scan, by_calls])
def test_a_cell_of_them_gives_what_its_steps_give(build):
    for found, expected in zip(gradients(build), gradients(by_steps), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("build", [by_scan, by_calls])
def test_a_cell_of_them_gives_the_same_on_a_gpu(cuda, build):
    for found, expected in zip(gradients(build, "cuda"), gradients(by_steps), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


SCORES = {
    "cumsum over tokens": lambda s: F.cumsum(s, 0),
    "cumsum over features": lambda s: F.cumsum(s, -1),
    "var over tokens": lambda s: F.var(s, 0, correction=0),
    "var over features": lambda s: F.var(s, -1, correction=0),
    "var of everything": lambda s: F.var(s, correction=0),
    "std over tokens": lambda s: F.std(s, 0, correction=0),
    "std over features": lambda s: F.std(s, -1, correction=0),
    "std of everything": lambda s: F.std(s, correction=0),
}


@pytest.mark.parametrize("name", SCORES)
def test_widths_that_are_lengths_take_one_batch(name):
    counts = []
    for lengths in ([20] * 30, range(30)):
        with db.Graph() as graph:
            for length in lengths:
                q = F.input(graph, np.ones((length, 3)))
                F.tanh(SCORES[name](q @ F.transpose(q)))
            graph.forward()
        counts.append(graph.statistics.batches)
    assert counts == [5, 5]


SHAPES_OF_NONE = dict(zip(SCORES, [(0, 0)] * 2 + [(0,), (0, 1), ()] * 2, strict=True))


@pytest.mark.parametrize(("name", "shape"), SHAPES_OF_NONE.items())
def test_a_sentence_of_no_words_has_scores_with_statistics(name, shape):
    with db.Graph() as graph:
        q = F.input(graph, np.zeros((0, 3))).keep()
        y = SCORES[name](q @ F.transpose(q))
        assert y.shape == y.value.shape == shape
        # PyTorch too gives NaN for the variance of no element.
        assert np.isnan(y.value).all()


@pytest.mark.parametrize("name", SCORES)
def test_statistics_of_scores_have_the_gradients_of_pytorch(name):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    kind, over = name.split()[0], name.split()[-1]
    dim = {"tokens": 0, "features": -1, "everything": None}[over]
    options = {} if kind == "cumsum" else {"correction": 0, "keepdim": over == "features"}
    with db.Graph(dtype="float64") as graph:
        inputs, losses, tensors = [], [], []
        for length in (2, 5, 3, 5):
            rows = np.random.default_rng(length).standard_normal((length, 3))
            q = F.input(graph, rows).keep()
            tensor = torch.tensor(rows, requires_grad=True)
            expected = getattr(tensor @ tensor.T, kind)(dim, **options)
            y = SCORES[name](q @ F.transpose(q)).keep()
            losses.append(F.sum(F.tanh(y)))
            expected.tanh().sum().backward()
            inputs.append((q, y))
            tensors.append((tensor, expected))
        graph.backward(F.sum(losses))
        for (q, y), (tensor, expected) in zip(inputs, tensors, strict=True):
            np.testing.assert_allclose(y.value, expected.detach().numpy(), atol=1e-12)
            np.testing.assert_allclose(q.gradient, tensor.grad.numpy(), atol=1e-10)
