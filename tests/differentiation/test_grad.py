"""`db.grad` and `db.hvp`: what they take, what they return, what runs, and their errors."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, GraphError

LENGTHS = (3, 1, 7, 2)


def sentences(lengths=LENGTHS, width=4):
    generator = np.random.default_rng(0)
    return [generator.standard_normal((n, width)) for n in lengths]


def parameter(*shape, seed=1):
    return db.Parameter(np.random.default_rng(seed).standard_normal(shape), "w")


def test_what_wrt_names_is_what_is_returned():
    w = parameter(4, 4)

    def f(x, y):
        return F.sum(F.linear(x, w) * y)

    with db.Graph(dtype="float64") as graph:
        x, y = (F.input(graph, array) for array in sentences((2, 2)))
        of_x, of_w, of_y = db.grad(f, (0, w, -1))(x, y)
        np.testing.assert_allclose(of_x.value, y.value @ w.value)
        np.testing.assert_allclose(of_y.value, x.value @ w.value.T)
        np.testing.assert_allclose(of_w.value, y.value.T @ x.value)
        assert db.grad(f, 1)(x, y).shape == y.shape
        assert isinstance(db.grad(f, [1])(x, y), tuple)


def test_a_parameter_may_be_an_argument_and_frozen():
    w = parameter(4)
    w.frozen = True
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.arange(4.0))
        assert db.grad(lambda x, p: F.sum(x * p), 1)(x, w).value.tolist() == [0, 1, 2, 3]


def test_what_it_does_not_depend_on_has_zeros():
    w = parameter(2, 3)
    with db.Graph(dtype="float64") as graph:
        x, y = F.input(graph, [1.0, 2.0]), F.input(graph, np.zeros((0, 2)))
        of_y, of_w = db.grad(lambda x, y: F.sum(x), (1, w))(x, y)
        assert of_y.shape == (0, 2)
        assert of_w.value.tolist() == [[0, 0, 0], [0, 0, 0]]
        stopped = db.grad(lambda x: F.sum(F.detach(x)) + F.argmax(x))(x)
        assert stopped.value.tolist() == [0, 0]


def test_what_is_made_outside_is_constant():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [1.0, 2.0])
        square = x * x
        inside = db.grad(lambda x: F.sum(x * square))(x)
        assert inside.value.tolist() == [1, 4]
        assert db.grad(lambda x: F.sum(x * square), 0)(square).value.tolist() == [2, 8]
        assert float(db.grad(lambda y: y)(F.sum(x)).value) == 1


def test_third_derivatives():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [0.3, -0.2, 0.0, 1.5])

        def total(f):
            return lambda x: F.sum(f(x))

        third = db.grad(total(db.grad(total(db.grad(total(F.gelu))))))(x).value
        x = x.value  # of x Φ(x): φ (x³ - 4x)
        expected = (x**3 - 4 * x) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
        np.testing.assert_allclose(third, expected, rtol=1e-10, atol=1e-12)


def test_hvp_equals_the_hessian_times_v_also_where_v_is_x():
    a = np.random.default_rng(3).standard_normal((4, 4))
    with db.Graph(dtype="float64") as graph:
        x, v, matrix = (F.input(graph, given) for given in (a[0], a[1], a))

        def f(x, matrix):
            return F.dot(x @ matrix, x)

        np.testing.assert_allclose(db.hvp(f)(x, v, matrix).value, (a + a.T) @ a[1])
        np.testing.assert_allclose(db.hvp(f)(x, x, matrix).value, (a + a.T) @ a[0])
        with pytest.raises(ArgumentError, match="of one shape"):
            db.hvp(f)(x, matrix, matrix)


def penalty_of(network):
    """The squared norm of the gradient of the network's sum, by PyTorch's usual formula."""

    def penalty(x):
        return F.sum(db.grad(lambda x: F.sum(network(x)))(x) ** 2)

    return penalty


def test_a_gradient_penalty_trains_parameters_as_pytorch_does():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    first, second = parameter(6, 4), parameter(1, 6, seed=2)
    twins = [torch.tensor(p.value, requires_grad=True) for p in (first, second)]
    penalty = penalty_of(lambda x: F.linear(F.tanh(F.linear(x, first)), second))
    with db.Graph(dtype="float64") as graph:
        graph.backward(F.mean([penalty(F.input(graph, x)) for x in sentences()]))
    total = 0
    for x in sentences():
        x = torch.tensor(x, requires_grad=True)
        y = (torch.tanh(x @ twins[0].T) @ twins[1].T).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        total = total + (gradient**2).sum() / len(LENGTHS)
    total.backward()
    for p, twin in zip((first, second), twins, strict=True):
        np.testing.assert_allclose(p.grad, twin.grad.numpy(), rtol=1e-10)


def test_launches_do_not_grow_with_the_sentences():
    w = parameter(4, 4)

    def network(x):
        attended = F.softmax(F.linear(x, w) @ F.transpose(x)) @ x
        return F.layer_norm(attended + F.gelu(x)) ** 3

    counts = []
    for sentence_count in (2, 9):
        with db.Graph(dtype="float64") as graph:
            for x in sentences(range(2, 2 + sentence_count)):
                penalty_of(network)(F.input(graph, x))
            graph.forward()
            counts.append((graph.statistics.batches, graph.statistics.launches))
    assert counts[0] == counts[1]


class Network(models.Module):
    def __init__(self):
        self.inner, self.outer = models.Linear(4, 6), models.Linear(6, 3)

    @db.block
    def __call__(self, x):
        return self.outer(F.tanh(self.inner(x)))


def test_blocks_inside_are_what_they_build():
    network = Network().astype("float64")
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, sentences()[0])
        of_block = db.grad(lambda x: F.sum(network(x) ** 2))(x)
        plain = db.grad(lambda x: F.sum(Network.__call__.__wrapped__(network, x) ** 2))(x)
        np.testing.assert_array_equal(of_block.value, plain.value)
        assert type(network(x)).__name__ == "Network"  # outside of it a block as before


def test_scans_and_calls_inside_are_the_steps_of_their_cells():
    lstm = models.LSTM(4, 3).astype("float64")
    for array in (*sentences(), np.zeros((0, 4))):
        with db.Graph(dtype="float64") as graph:
            x = F.input(graph, array).keep()
            plain = db.grad(lambda x: F.sum(lstm(x) ** 2))(x)
            graph.backward(F.sum(lstm(x) ** 2))
            np.testing.assert_allclose(plain.value, x.gradient, atol=1e-12)


def losses_of(network, x, targets):
    return F.cross_entropy(network(x), targets, label_smoothing=0.1)


def test_a_gradient_may_be_a_block():
    network, generator = Network().astype("float64"), np.random.default_rng(5)
    gradient = db.grad(losses_of, 1)
    as_block = db.block(gradient)
    examples = [(x, generator.integers(3, size=len(x))) for x in sentences((3, 1, 7, 2, 5))]
    for _ in range(2):
        with db.Graph(dtype="float64") as graph:
            for x, targets in examples:
                node = F.input(graph, x)
                found, expected = as_block(network, node, targets), gradient(network, node, targets)
                np.testing.assert_allclose(found.value, expected.value, atol=1e-14)


def test_dropout_has_the_mask_of_the_value():
    with db.Graph(dtype="float64", seed=3) as graph:
        x = F.input(graph, np.ones(100))
        seen = []

        def f(x):
            seen.append(F.dropout(x, 0.5))
            return F.sum(seen[-1])

        gradient = db.grad(f)(x)
        assert gradient.value.tolist() == seen[-1].value.tolist()
        assert set(gradient.value.tolist()) == {0.0, 2.0}
        # Inside a block each dropout would draw anew: the block is inlined.
        assert db.block(gradient_of_dropout)(x).value.tolist() != []


def gradient_of_dropout(x):
    return db.grad(lambda x: F.sum(F.dropout(x, 0.5) * x))(x)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda x: db.grad(3), "function is 3"),
        (lambda x: db.grad(F.sum, "x"), "wrt is a str"),
        (lambda x: db.grad(F.sum, True), "wrt is True"),
        (lambda x: db.grad(F.sum, 1)(x), "wrt is 1, and the call has 1 argument"),
        (lambda x: db.grad(lambda n, x: F.sum(x))(3, x), "argument 0 is 3"),
        (lambda x: db.grad(F.tanh)(x), "returns shape"),
        (lambda x: db.grad(lambda x: 3)(x), "returns 3"),
    ],
)
def test_wrong_arguments_are_errors(make, message):
    with db.Graph() as graph, pytest.raises(ArgumentError, match=message):
        make(F.input(graph, [1.0, 2.0]))


class OwnCubed(db.Operation):
    """A type of a user's own, without a rule."""

    def infer_shape(self, *shapes):
        return shapes[0]


def test_a_users_own_type_is_an_error_by_name():
    with (
        db.Graph() as graph,
        pytest.raises(GraphError, match=r"OwnCubed #\d+.*\n(.*\n)*.*F.detach"),
    ):
        db.grad(lambda x: F.sum(OwnCubed(x)))(F.input(graph, [1.0]))
