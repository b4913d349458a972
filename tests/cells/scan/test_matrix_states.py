"""Cells whose state is a matrix: against PyTorch, alone and in company, and their errors."""

import inspect

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.scan.by_sentence import states_between
from dynbatch.compiler.c import by_sentence, native
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel
from dynbatch.testing import check_batching, check_gradient
from dynbatch.testing.precision import dense_gradient
from tests.cells.matrix_cells import MATRIX_CASES, E, H
from tests.poison import poisoned_memory


@pytest.fixture(params=["NumPy", "C"])
def runs_it(request, monkeypatch):
    """By NumPy, and in C where there is a compiler."""
    if request.param == "NumPy":
        with library.reference_only():
            yield request.param
    elif library.reason():
        pytest.skip("no C here")
    else:
        monkeypatch.setattr(native, "WORTH_COMPILING", 0)
        yield request.param


each_case = pytest.mark.parametrize("case", MATRIX_CASES.values(), ids=MATRIX_CASES)
LENGTHS = (3, 1, 0, 7)


def outcome(case, sentences, dtype, device="cpu", **options):
    """Outputs, last states and gradients of a loss over both, of each sentence."""
    parameters = {name: p.to(device) for name, p in case.given(dtype).items()}
    results = []
    with db.Graph(device, dtype=dtype) as graph:
        losses = []
        for arrays in sentences:
            xs = tuple([F.input(graph, x).keep() for x in arrays])
            ys, last = db.scan(case.cell, xs, case.init, parameters, **options)
            parts = (last,) if case.single else last
            nodes = [ys, *parts]
            losses += [F.sum(F.tanh(node)) for node in nodes]
            results.append(([node.keep() for node in nodes], xs))
        graph.backward(F.sum(losses))
        found = [[*[n.value for n in nodes], *[x.gradient for x in xs]] for nodes, xs in results]
    return found, [dense_gradient(parameter) for parameter in parameters.values()]


def by_torch(case, sentences, dtype):
    torch = pytest.importorskip("torch")
    parameters = [torch.tensor(p.value, requires_grad=True) for p in case.given(dtype).values()]
    found = []
    for arrays in sentences:
        xs = [torch.tensor(x, requires_grad=True) for x in arrays]
        heads = case.heads or (H,) * len(xs)
        state = tuple([torch.zeros(shape, dtype=xs[0].dtype) for shape in case.state])
        state = state[0] if case.single else state
        outputs = []
        for t in range(len(arrays[0])):
            tokens = [x[t].reshape(count, -1) for x, count in zip(xs, heads, strict=True)]
            y, state = case.step(torch, tokens, state, parameters)
            outputs.append(y.reshape(-1))
        parts = (state,) if case.single else state
        nodes = [torch.stack(outputs) if outputs else torch.zeros(0, H * E), *parts]
        loss = sum(node.tanh().sum() for node in nodes)
        if outputs:
            loss.backward()
        gradients = [np.zeros_like(x) if t.grad is None else t.grad.numpy()
                     for x, t in zip(arrays, xs, strict=True)]  # fmt: skip
        found.append([*[node.detach().numpy() for node in nodes], *gradients])
    return found, [p.grad.numpy() for p in parameters]


def assert_near(found, expected, tolerance, what):
    assert found.shape == expected.shape, what
    scale = max(1.0, np.abs(expected).max(initial=0))
    assert np.abs(found - expected).max(initial=0) <= tolerance * scale, what


@each_case
@pytest.mark.parametrize(
    ("dtype", "of_values", "of_gradients"), [("float32", 1e-5, 1e-4), ("float64", 1e-10, 1e-10)]
)
def test_six_recurrences_equal_loops_of_pytorch(case, dtype, of_values, of_gradients, runs_it):
    sentences = case.sentences(LENGTHS, dtype)
    with poisoned_memory():
        found, of_parameters = outcome(case, sentences, dtype)
    expected, of_expected = by_torch(case, sentences, dtype)
    for mine, theirs in zip(found, expected, strict=True):
        for k, pair in enumerate(zip(mine, theirs, strict=True)):
            is_gradient = k > len(case.state)
            assert_near(*pair, of_gradients if is_gradient else of_values, f"{k}")
    for pair in zip(of_parameters, of_expected, strict=True):
        assert_near(*pair, of_gradients, "parameter")


def test_each_of_the_six_is_at_most_15_lines():
    for case in MATRIX_CASES.values():
        assert len(inspect.getsource(case.cell.function).splitlines()) <= 15


@each_case
def test_a_sentence_has_the_same_bits_alone_and_in_company(case, runs_it):
    sentences = case.sentences((5, 2, 9, 1, 5), "float32")
    together, _ = outcome(case, sentences, "float32")
    for k, arrays in enumerate(sentences):
        ((alone,), _) = outcome(case, [arrays], "float32")
        for a, b in zip(together[k], alone, strict=True):
            assert (a == b).all()


@each_case
@pytest.mark.parametrize("options", [{"recompute": 2}, {"recompute": 1}, {"recompute": "sqrt"}])
def test_states_that_are_made_again_change_nothing(case, options, runs_it):
    sentences = case.sentences(LENGTHS)
    expected, of_expected = outcome(case, sentences, "float64", recompute=0)
    with poisoned_memory():
        found, of_found = outcome(case, sentences, "float64", **options)
    for mine, theirs in zip([*found, of_found], [*expected, of_expected], strict=True):
        for pair in zip(mine, theirs, strict=True):
            assert_near(*pair, 1e-12, str(options))


@pytest.mark.parametrize("recompute", [None, 0, 2])
def test_the_memory_of_a_step_is_known_before_it_runs(recompute, runs_it):
    case = MATRIX_CASES["gated_delta_net"]
    with db.Graph(dtype="float64") as graph:
        losses = []
        for arrays in case.sentences((9, 1, 0, 30)):
            xs = tuple([F.input(graph, x).keep() for x in arrays])
            ys = db.scan(case.cell, xs, case.init, return_state=False, recompute=recompute)
            losses.append(F.sum(ys))
        loss = F.sum(losses)
        planned = graph.estimate(loss)
        graph.backward(loss)
        assert planned == graph.memory_use and planned.peak_bytes == graph.peak_bytes > 0


@db.cell
def every_operation(x, state, scales):
    """One head's rows, columns and sums in every way."""
    (S, n), a, b = state, x[:3], x[3:]
    rows = F.sum(S * S, dim=1) / 9 + F.mean(S, dim=0)[:3].reshape((3, 1))
    S = F.tanh(S * b + a[:, None] * S - F.sum(S)) + rows + F.transpose(F.outer(b, a))
    S = F.where(S > 0.1, S, 0.5 * S) * scales
    S = S + F.stack([S[1], S[0], F.matvec(F.transpose(S), a)])
    n = n + S @ b + F.transpose(S)[1:] @ F.matvec(S, b) @ F.outer(n[:3], n)
    return F.concat([F.reshape(S, (12,)), F.reshape(S[:, 1:3], (6,)), a @ S, n]), (S, n)


def test_gradients_of_every_operation_on_a_matrix(runs_it):
    scales = db.Parameter(np.random.default_rng(0).uniform(0.5, 1, (3, 4)))

    def build(graph, xs, init):
        ys, (last, n) = db.scan(every_operation, xs, (init, db.zeros(3)), scales, reverse=True)
        return [ys, last, n]

    check_gradient(build, shapes=[(3, 7), (3, 4)], parameters=[scales])
    shapes = [[(n, 7), (3, 4)] for n in (2, 0, 3)]
    check_batching(build, shapes=shapes, parameters=[scales])


@db.cell
def leaves_what_no_step_makes(x, states, p, memory):
    S, *_ = states
    return x @ S, (F.transpose(memory), p["matrix"] * S, F.tanh(p["heads"]), F.tanh(p["heads"]))


def test_a_matrix_that_no_step_makes_is_a_next_state(runs_it):
    rng = np.random.default_rng(0)
    p = {
        "matrix": db.Parameter(rng.standard_normal((3, 3))),
        "heads": db.Parameter(rng.standard_normal((2, 1, 2))),
    }
    init = (db.zeros(3, 3), db.zeros(3, 3), db.zeros(2, 1, 2), db.zeros(2, 1, 2))

    def build(graph, xs, memory):
        ys, last = db.scan(leaves_what_no_step_makes, xs, init, p, memory)
        return [ys, *last]

    check_gradient(build, shapes=[(2, 3), (3, 3)], parameters=[*p.values()])
    shapes = [[(n, 3), (3, 3)] for n in (2, 0, 3)]
    check_batching(build, shapes=shapes, parameters=[*p.values()])


@db.cell
def adds_products_of_memories(x, state, p, memory):
    rows = F.concat([memory[:2], memory[1:2]], dim=0)
    state = 0.5 * state + F.transpose(memory) @ memory * F.sigmoid(x) + rows
    return x @ state, state


def test_a_step_reads_matrices_of_known_shape_that_follow_from_a_memory(runs_it):
    def build(graph, xs, memory):
        return [*db.scan(adds_products_of_memories, xs, db.zeros(3, 3), None, memory)]

    check_gradient(build, shapes=[(2, 3), (4, 3)])
    check_batching(build, shapes=[[(n, 3), (rows, 3)] for n, rows in ((2, 4), (0, 2), (3, 4))])
    with db.Graph(dtype="float64") as graph:
        x, memory = [np.random.default_rng(0).standard_normal((4, 3)) for _ in range(2)]
        _, last = build(graph, F.input(graph, x), F.input(graph, memory))
        state = np.zeros((3, 3))
        for row in x:
            state = 0.5 * state + memory.T @ memory / (1 + np.exp(-row)) + memory[[0, 1, 1]]
        assert_near(last.value, state, 1e-12, "last")


@db.cell
def projected(x, state, p):
    """Streams of which all, a part and the product with a weight are read."""
    q, k, v = [F.reshape(p[name] @ x, (2, -1)) for name in "qkv"]
    state = F.reshape(F.sigmoid(x[:2]), (2, 1, 1)) * state + F.outer(k, v)
    return F.concat([F.reshape(F.vecmat(q, state), (-1,)), x]), state


@pytest.mark.parametrize("recompute", [0, 2])
def test_streams_are_multiplied_ahead_of_all_steps(recompute, runs_it, monkeypatch):
    rng = np.random.default_rng(0)
    p = {
        k: db.Parameter(rng.standard_normal((2 * n, 4)))
        for k, n in zip("qkv", (2, 2, 3), strict=True)
    }

    def build(graph, xs, init):
        ys, last = db.scan(projected, xs, init, p, recompute=recompute)
        return [ys, last]

    monkeypatch.setattr(parallel, "available", lambda: 2)
    check_gradient(build, shapes=[(3, 4), (2, 2, 3)], parameters=[*p.values()])
    shapes = [[(n, 4), (2, 2, 3)] for n in (3, 0, 1, 4, 2, 5, 1, 3)]
    check_batching(build, shapes=shapes, parameters=[*p.values()])


@pytest.mark.parametrize("recompute", [0, 2])
def test_backward_may_be_planned_for_fewer_threads_than_forward_had(
    recompute, runs_it, monkeypatch
):
    case = MATRIX_CASES["gated_delta_net"]

    def gradients(threads):
        monkeypatch.setattr(parallel, "available", lambda: threads)
        with db.Graph(dtype="float64") as graph:
            sentences = [
                [F.input(graph, x).keep() for x in xs] for xs in case.sentences((3, 1, 4, 0) * 4)
            ]
            losses = [F.sum(db.scan(case.cell, (*xs,), case.init, recompute=recompute)[0])
                      for xs in sentences]  # fmt: skip
            loss = F.sum(losses)
            assert np.isfinite(loss.value)
            monkeypatch.setattr(parallel, "available", lambda: 1)
            graph.backward(loss)
            return [x.gradient.tobytes() for xs in sentences for x in xs]

    with poisoned_memory():
        assert gradients(4) == gradients(1)


@db.cell
def joined(x, left, right):
    """A node of a tree, whose vector is a matrix inside."""
    S = F.reshape(F.maximum(left, right), (3, 4)) * 0.5
    S = S + F.outer(x[:3], F.vecmat(x[:3], S) - x[3:])
    return F.reshape(F.tanh(S), (-1,))


def test_a_call_on_nodes_has_matrices_inside(runs_it):
    def build(graph, xs):
        right = joined(xs[1], 12, joined(xs[0], 12, 12))
        return [right, joined(xs[2], right, 12)]

    check_gradient(build, shapes=[(3, 7)])
    check_batching(build, shapes=[[(3, 7)]] * 3)


@pytest.mark.parametrize("wrap", [lambda zeros: zeros, lambda zeros: (2, zeros)])
def test_zeros_in_a_call_are_told_how_to_be_a_node(wrap):
    with db.Graph() as graph:
        x = F.constant(graph, 1.0, (7,))
        with pytest.raises(DtypeError, match=r"initial_state\(graph, db.zeros\(3, 4\)\)"):
            joined(x, 12, wrap(db.zeros(3, 4)))


@pytest.mark.parametrize("counts", [(1,), (2, 2), (9, 1, 4, 4, 3)])
@pytest.mark.parametrize(
    ("chunk", "rows", "again"),
    [(0, 0, False), (0, 2, False), (2, 2, False), (2, 2, True), (1, 1, True)],
)
def test_steps_by_sentence_read_what_the_step_before_has_left(counts, chunk, rows, again):
    running = [sum(n > t for n in counts) for t in range(max(counts))]
    starts = np.cumsum([0, *running]).tolist()
    steps = [(starts[t], starts[t + 1], n, -1) for t, n in enumerate(running)]
    order = np.random.default_rng(0).permutation(starts[-1])
    left, ends, kept_rows = {}, {}, []
    for o, s, sentence, r, q, kept in by_sentence.table(
        order, steps, chunk, rows, 5, again
    ).tolist():
        t = sum(s >= start for start in starts[1:])
        assert s == starts[t] + sentence and o == order[s]
        begins = t == 0 or (again and t % chunk == 0)
        assert (q == -1) == begins and (begins or left[q] == (sentence, t - 1))
        assert (kept >= 0) == bool(chunk and t and t % chunk == 0)
        kept_rows += [kept] if kept >= 0 else []
        assert r == s if not rows else r < rows
        left[r] = sentence, t
        ends[sentence] = t
    assert ends == {k: n - 1 for k, n in enumerate(sorted(counts, reverse=True))}
    assert kept_rows == [*range(5, 5 + states_between(np.array(counts), chunk))]


@db.cell
def returns_a_matrix(x, state, p):
    state = state + F.outer(x, x)
    return state, state


@db.cell
def changes_its_shape(x, state, p):
    return x, F.outer(F.concat([x, x]), x)


@db.cell
def soft(x, state, p):
    return x @ F.softmax(state), state


@db.cell
def has_a_row_for_each_of_a_memory(x, state, p, memory):
    return x @ state, state + F.outer(F.sum(memory @ F.outer(x, x), dim=0), x)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (returns_a_matrix, r"is a matrix \(3, 3\).*\n.*\n.*F.reshape"),
        (changes_its_shape, r"`init` has shape \(3, 3\), the cell's next state \(6, 3\)"),
        (soft, r"Softmax.* cannot run it on \(3, 3\).*\n(.*\n)*.*F.outer"),
        (has_a_row_for_each_of_a_memory, r"MatMul #7 is a matrix \(rows, 3\)"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_a_step_cannot_have_is_told_with_its_shapes_and_line(cell, told):
    told += rf"(.*\n)*  made at .*:\d+ in {cell.__name__}"
    with db.Graph() as graph, pytest.raises(ShapeError, match=told):
        x = F.input(graph, np.ones((2, 3)))
        db.scan(cell, x, db.zeros(3, 3), memory=x if "memory" in told else None)


def test_a_vector_that_becomes_a_matrix_is_told_the_right_first_state():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 3)))
        with pytest.raises(ShapeError, match=r"width 3, .*\n.*\n.*init=db.zeros\(6, 3\)"):
            db.scan(changes_its_shape, x, 3)


@db.cell
def adds_outer_products(x, state, p):
    state = state + F.outer(x, x)
    return x @ state, state


@pytest.mark.parametrize("init", [(3, 3), ((3, 3), 3)])
def test_sizes_without_zeros_are_told_how_to_be_a_matrix(init):
    with db.Graph() as graph, pytest.raises((ShapeError, DtypeError), match=r"db.zeros\(3, 3\)"):
        db.scan(adds_outer_products, F.input(graph, np.ones((2, 3))), init)


def test_products_of_other_shapes_are_told():
    with db.Graph() as graph:
        a, b, matrix = [F.constant(graph, 1.0, shape) for shape in ((2, 3), (3, 3), (2, 3, 4))]
        for make in (F.outer, F.matvec, F.vecmat):
            with pytest.raises(ShapeError, match=f"{make.__name__} of shapes"):
                make(a, b)
        assert F.outer(a, a).shape == (2, 3, 3) and F.vecmat(a, matrix).shape == (2, 4)


@pytest.mark.parametrize("sizes", [(), (3, 0), (2.0,), (True, 2)])
def test_zeros_without_a_shape_are_told(sizes):
    with pytest.raises(ShapeError, match=r"zeros\(([^,]|, \d)*\): there is no"):
        db.zeros(*sizes)
