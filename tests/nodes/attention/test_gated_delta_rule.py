"""The gated delta rule over several chunks, its exactness and its errors."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.backend import spec_of
from dynbatch.errors import ShapeError
from dynbatch.kernels.attention import gated_delta_rule as kernels
from dynbatch.kernels.attention.gated_delta_rule import DeltaGradients, DeltaInputs
from dynbatch.kernels.c.attention import gated_delta_rule as in_c
from dynbatch.testing import check_batching, check_gradient


@pytest.fixture(
    params=[(True, 0), (True, 10**6), (False, 0)], ids=["by chunks", "by tokens", "without b"]
)
def has_b(monkeypatch, request):
    """Whether there is b: in C with it, all sentences by chunks, or long ones token by token."""
    is_there, most_of_state = request.param
    monkeypatch.setattr(in_c, "MOST_OF_STATE", most_of_state)
    return is_there


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of 4 tokens, so that short sentences have states."""
    monkeypatch.setattr(kernels, "CHUNK", 4)


@pytest.fixture
def both_forms(monkeypatch):
    """Sentences of up to 5 tokens by chunks in any case."""
    monkeypatch.setattr(in_c, "NUMBERS_PER_TOKEN", 3)


def arguments(tokens, has_b=True, heads=2, d=5, e=3, seed=0):
    """q, k, v, log_a and b, heads apart."""
    generator = np.random.default_rng(seed)
    q, k, v = [generator.standard_normal((tokens, heads, n)) for n in (d, d, e)]
    k /= np.linalg.norm(k, axis=2, keepdims=True)
    gates = -generator.uniform(0, 1, (tokens, heads)), generator.uniform(0, 1, (tokens, heads))
    return [q, k, v, *gates[: 1 + has_b]]


def loop(q, k, v, log_a, b=None):
    """Token by token, in the dtype of the arguments; and the gradients for dout = v."""
    tokens, heads, d = q.shape
    a = np.exp(log_a)[:, :, None, None]
    states, w, e = np.zeros((tokens + 1, heads, d, v.shape[2]), q.dtype), v.copy(), v.copy()
    for t in range(tokens):
        states[t + 1] = a[t] * states[t]
        if b is not None:
            e[t] -= np.einsum("hde,hd->he", states[t + 1], k[t])
            w[t] = b[t][:, None] * e[t]
        states[t + 1] += k[t][:, :, None] * w[t][:, None]
    out = np.einsum("thde,thd->the", states[1:], q)
    dq, dk, dv, db = np.einsum("thde,the->thd", states[1:], v), k.copy(), v.copy(), log_a.copy()
    dlog_a, dstate = log_a.copy(), np.zeros_like(states[0])
    for t in reversed(range(tokens)):
        dstate = dstate + q[t][:, :, None] * v[t][:, None]
        dw = np.einsum("hde,hd->he", dstate, k[t])
        dk[t] = np.einsum("hde,he->hd", dstate, w[t])
        if b is not None:
            db[t], dw = (dw * e[t]).sum(-1), b[t][:, None] * dw
            dk[t] -= np.einsum("hde,he->hd", a[t] * states[t], dw)
            dstate -= k[t][:, :, None] * dw[:, None]
        dv[t], dlog_a[t] = dw, (a[t] * states[t] * dstate).sum((1, 2))
        dstate = a[t] * dstate
    return [out, dq, dk, dv, dlog_a, db][: 5 + (b is not None)]


def kernel(*xs, leave_out=(), order="C"):
    """Output and gradients by the kernels, but those of some inputs."""
    tokens, dtype = len(xs[0]), xs[0].dtype
    rows = [np.asarray(each.reshape(tokens, -1), order=order) for each in xs]
    x = DeltaInputs(*rows, *[None] * (5 - len(xs)), np.array([0, tokens]))
    sizes, out = x.sizes, np.empty_like(x.v)
    spec = spec_of(out)
    errors = np.empty_like(x.v) if sizes.has_b else None
    number = sizes.heads * sum(kernels.kept_states(spec, sizes))
    states = np.empty((number, sizes.key_width * sizes.value_width), dtype)
    room = np.empty(kernels.workspace(spec, sizes, True), dtype)
    kernels.gated_delta_rule(x, out, errors, states, room)
    wanted = DeltaGradients(*[None if each is None or position in leave_out else np.empty_like(each)
                              for position, each in enumerate(x[:5])])  # fmt: skip
    room = np.empty(kernels.workspace_backward(spec, sizes), dtype)
    kernels.gated_delta_rule_backward(x, errors, states, x.v, wanted, room)
    present = [each for position, each in enumerate(xs) if position not in leave_out]
    shapes = [xs[2].shape, *[each.shape for each in present]]
    arrays = [out, *[each for each in wanted if each is not None]]
    return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]


@pytest.mark.parametrize("tokens", [1, 4, 11])
def test_chunks_equal_a_loop_over_tokens(tokens, has_b, short_chunks):
    xs = arguments(tokens, has_b)
    for mine, expected in zip(kernel(*xs), loop(*xs), strict=True):
        np.testing.assert_allclose(mine, expected, 1e-12, 1e-12)


def test_tokens_of_wide_heads_one_by_one_equal_a_loop(has_b, short_chunks, monkeypatch):
    """In C: tiles of all widths, and gates' gradients that are summed anew on the way."""
    monkeypatch.setattr(in_c, "NUMBERS_PER_TOKEN", 10**6)  # tokens of any sentence
    xs = arguments(37, has_b, 1, 70, 85)
    for mine, expected in zip(kernel(*xs), loop(*xs), strict=True):
        np.testing.assert_allclose(mine, expected, 1e-12, 1e-11)


@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize("position", range(4))
def test_a_gradient_that_nobody_wants_changes_no_other(tokens, has_b, position, short_chunks):
    xs = arguments(tokens, has_b)
    every, some = kernel(*xs), kernel(*xs, leave_out=[position])
    del every[1 + position]
    assert [x.tobytes() for x in some] == [x.tobytes() for x in every]


def test_arrays_that_are_not_packed_equal_a_loop(has_b, short_chunks):
    """In NumPy, also where C keeps no states for backward."""
    xs = arguments(11, has_b)
    for mine, expected in zip(kernel(*xs, order="F"), loop(*xs), strict=True):
        np.testing.assert_allclose(mine, expected, 1e-12, 1e-12)


def test_the_memory_of_both_forms_is_known_before_they_run(has_b, both_forms):
    with db.Graph() as graph:
        sentences = [[F.input(graph, x).keep() for x in arguments(n, has_b)] for n in (70, 3, 0)]
        loss = F.sum([F.sum(F.reshape(F.gated_delta_rule(*xs), (-1,))) for xs in sentences])
        planned = graph.estimate(loss)
        graph.backward(loss)
        assert planned == graph.memory_use and planned.peak_bytes == graph.peak_bytes > 0


def test_gradients_over_chunks_equal_central_differences(has_b, short_chunks):
    check_gradient(lambda graph, *xs: F.gated_delta_rule(*xs), inputs=arguments(9, has_b), most=5)


def test_sentences_of_any_number_of_chunks_batch(has_b, short_chunks):
    sentences = [tuple(arguments(n, has_b)) for n in (9, 0, 1, 4, 5)]
    check_batching(lambda graph, *xs: F.gated_delta_rule(*xs), sentences)


def test_bits_in_float32_do_not_depend_on_company(has_b, both_forms):
    sentences = [[x.astype(np.float32) for x in arguments(n, has_b, seed=n)] for n in (70, 3, 130)]

    def bits(sentences):
        with db.Graph(dtype="float32") as graph:
            inputs = [[F.input(graph, x).keep() for x in xs] for xs in sentences]
            outputs = [F.gated_delta_rule(*xs).keep() for xs in inputs]
            graph.backward([F.sum(F.reshape(y * y, (-1,))) for y in outputs])
            return [
                [y.value.tobytes(), *[x.gradient.tobytes() for x in xs]]
                for y, xs in zip(outputs, inputs, strict=True)
            ]

    assert bits(sentences) == [bits([one])[0] for one in sentences]


def test_heads_may_be_columns_or_a_dimension(has_b):
    xs = arguments(70, has_b)
    with db.Graph() as graph:
        y = F.gated_delta_rule(*[F.input(graph, x) for x in xs])
        columns = [x.reshape(70, -1) for x in xs]
        z = F.gated_delta_rule(*[F.input(graph, x) for x in columns])
        assert y.shape == (70, 2, 3) and z.shape == (70, 6)
        assert y.value.tobytes() == z.value.tobytes()


@pytest.mark.parametrize("case", ["strong gates", "parallel keys", "linear attention"])
def test_errors_of_2048_tokens_are_those_of_a_loop(case, monkeypatch):
    """Error of each array in float32, relative to its norm, against float64."""
    generator = np.random.default_rng(1)
    xs = arguments(2048, case != "linear attention", 1, 16, 16)
    if case == "parallel keys":
        k = 1 + 0.05 * generator.standard_normal(xs[1].shape)
        xs[1] = k / np.linalg.norm(k, axis=2, keepdims=True)
        xs[3], xs[4] = xs[3] * 0.001, np.full_like(xs[4], 0.99)
    else:
        xs[3] = -np.exp(2 * generator.standard_normal(xs[3].shape))
    xs = [x.astype(np.float32) for x in xs]
    exact = loop(*[x.astype(np.float64) for x in xs])
    errors = [np.linalg.norm(plain - best) for plain, best in zip(loop(*xs), exact, strict=True)]
    for most in (0, 10**6):  # by chunks, and by tokens
        monkeypatch.setattr(in_c, "MOST_OF_STATE", most)
        for mine, best, error in zip(kernel(*xs), exact, errors, strict=True):
            assert np.linalg.norm(mine - best) <= 3 * error


def test_a_gate_of_minus_infinity_begins_anew(has_b, short_chunks):
    xs = arguments(11, has_b)
    xs[3][6] = -np.inf
    both = kernel(*xs)
    assert not both[4][6].any()  # its gradient is 0, not what rounding leaves of its neighbours'
    for whole, first, second in zip(
        both, kernel(*[x[:6] for x in xs]), kernel(*[x[6:] for x in xs]), strict=True
    ):
        np.testing.assert_allclose(whole, np.concatenate([first, second]), 1e-12, 1e-12)


@pytest.mark.parametrize(
    ("number", "shape", "problem"),
    [
        (0, (4, 9), "q (4, 9): 9 is no multiple of heads = 2"),
        (1, (4, 2, 6), "q (4, 2, 5) and k (4, 2, 6) differ in d (5 != 6)"),
        (2, (3, 2, 3), "q (4, 2, 5) and v (3, 2, 3) differ in T (4 != 3)"),
        (2, (4, 3, 3), "v (4, 3, 3): 3 is not heads = 2"),
        (3, (4,), "log_a has shape (4,)"),
        (4, (4, 1), "b (4, 1): 1 is not heads = 2"),
    ],
)
def test_shapes_that_do_not_fit_are_named(number, shape, problem):
    xs = arguments(4)
    xs[number] = np.zeros(shape)
    with db.Graph() as graph, pytest.raises(ShapeError) as error:
        F.gated_delta_rule(*[F.input(graph, x) for x in xs])
    assert problem in str(error.value) and "fix:" in str(error.value)
