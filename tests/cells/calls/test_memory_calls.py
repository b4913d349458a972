"""Cells called with matrices: one node a call, whatever reads which memory."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.schedule.call_regions import RegionBuilder
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.cells.generic import GenericStep
from dynbatch.compiler.c import native
from dynbatch.errors import CheckError, ShapeError
from dynbatch.kernels.c.runtime import library
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.replay import load_graph, replay
from tests.poison import poisoned_memory

D, H = 3, 4


@db.cell
def dot(x, h, p, memory):
    return F.tanh(F.linear(x, p.W) + F.attention(F.linear(h, p.U), memory))


@db.cell
def additive(x, h, p, memory):
    context = F.additive_attention(F.linear(h, p.U), F.linear(memory, p.U, p.b), memory, p.b)
    return F.tanh(F.linear(x, p.W) + context)


@db.cell
def of_keys_and_values(x, h, p, memory):
    keys, values = memory
    summary = F.sum(keys, dim=0) + F.parameter(x.graph, p.b)
    return F.tanh(F.linear(x, p.W) + F.attention(h, keys + p.b, F.tanh(values)) * summary)


@db.cell
def compose(left, right, p, memory):
    both = F.linear(left, p.U) + F.linear(right, p.V, p.b)
    return F.tanh(both + F.additive_attention(both, memory, None, p.b))


@db.cell
def remember(h, p, memory):
    return F.tanh(F.linear(h, p.V) + F.attention(h, memory, scale=1.0))


@db.cell
def answer(h, p, memory):
    return F.tanh(F.linear(F.layer_norm(h), p.U)) + F.attention(h, F.linear(memory, p.V), memory)


@db.cell
def step(x, h, p):
    return F.tanh(F.linear(x, p.W) + F.linear(h, p.V, p.b))


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"W": (H, D), "U": (H, H), "V": (H, H), "b": (H,)}
    return SimpleNamespace(
        **{name: db.Parameter(rng.normal(0, 0.5, shape)) for name, shape in shapes.items()}
    )


def chain(cell, xs, h, p, memory):
    states = []
    for t in range(xs.rows):
        h = cell(xs[t], h, p, memory)
        states.append(h)
    return states


class Sentences:
    """Random matrices of one graph, which are kept."""

    def __init__(self, graph):
        self.graph = graph
        self.kept = []
        self._rng = np.random.default_rng(4)

    def matrix(self, rows, width=H):
        self.kept.append(F.input(self.graph, self._rng.normal(size=(rows, width))).keep())
        return self.kept[-1]

    def vector(self):
        return self.matrix(1)[0]


# Programs: each returns what a loss is made of ---------------------------------------------------


def chains_of_unlike_lengths(s, p, call):
    return [
        chain(call(cell), s.matrix(length, D), s.vector(), p, s.matrix(rows))
        for cell in (dot, additive)
        for length, rows in ((2, 3), (5, 1), (1, 4), (5, 2))
    ]


def memories_without_rows(s, p, call):
    return [
        chain(call(cell), s.matrix(length, D), s.vector(), p, s.matrix(rows))
        for cell in (dot, additive)
        for length, rows in ((2, 0), (3, 2), (1, 0))
    ]


def a_memory_without_rows_that_is_read_late(s, p, call):
    cell, full, empty = call(dot), s.matrix(3), s.matrix(0)
    first = chain(cell, s.matrix(4, D), s.vector(), p, full)
    return [first, chain(cell, s.matrix(4, D), first[1], p, empty)]


def memories_that_several_chains_share(s, p, call):
    shared, other = s.matrix(3), s.matrix(2)
    return [
        chain(call(cell), s.matrix(length, D), s.vector(), p, memory)
        for cell in (dot, additive)
        for length, memory in ((2, shared), (4, other), (3, shared), (1, other), (4, shared))
    ]


def chains_that_begin_late(s, p, call):
    states = chain(call(additive), s.matrix(4, D), s.vector(), p, s.matrix(3))
    late = [
        chain(call(additive), s.matrix(length, D), state, p, s.matrix(2 + length))
        for length, state in zip((3, 5, 2), states, strict=False)
    ]
    return [states, *late]


def another_memory_at_each_step(s, p, call):
    found, cell = [], call(dot)
    for length in (3, 5):
        h, xs = s.vector(), s.matrix(length, D)
        memories = [s.matrix(k + 1) for k in range(3)]
        for t in range(length):
            h = cell(xs[t], h, p, memories[t * length % 3])
        found.append([h])
    return found


def pairs_that_share_their_keys(s, p, call):
    keys, found = s.matrix(3), []
    for length in (3, 1, 4):
        memory = (keys, s.matrix(3)) if length > 1 else (keys, keys)
        xs = s.matrix(length, D)
        found.append(chain(call(of_keys_and_values), xs, s.vector(), p, memory))
    return found


def a_new_tuple_at_each_step(s, p, call):
    found = []
    for length in (3, 4):
        keys, values, h, xs = s.matrix(2), s.matrix(2), s.vector(), s.matrix(length, D)
        for t in range(length):
            h = call(of_keys_and_values)(xs[t], h, p, (keys, values))
        found.append([h])
    return found


def trees_that_attend_to_their_words(s, p, call):
    found = []
    for words in (3, 1, 5):
        memory = s.matrix(words)
        states = [memory[k] for k in range(words)]
        while len(states) > 1:
            states[:2] = [call(compose)(*states[:2], p, memory)]
            states.append(states.pop(0))
        found.append(states)
    return found


def cells_that_read_each_other(s, p, call):
    found = []
    for length in (2, 4, 1):
        first, second, h = s.matrix(3), s.matrix(length), s.vector()
        for _ in range(length):
            h = call(answer)(call(remember)(h, p, first), p, second)
        found.append([h])
    return found


def cells_of_which_one_reads_a_memory(s, p, call):
    found = []
    for length in (2, 4, 1):
        memory, xs, h = s.matrix(3), s.matrix(length, D), s.vector()
        for t in range(length):
            h = call(step)(xs[t], call(remember)(h, p, memory), p)
        found.append([h])
    return found


def memories_that_are_states_of_calls(s, p, call):
    found = []
    for length in (2, 4):
        states = chain(call(dot), s.matrix(length, D), s.vector(), p, s.matrix(3))
        memory = F.tanh(db.stack(states))
        found.append(chain(call(additive), s.matrix(6 - length, D), states[-1], p, memory))
    return found


PROGRAMS = [
    cells_of_which_one_reads_a_memory,
    chains_of_unlike_lengths,
    memories_without_rows,
    a_memory_without_rows_that_is_read_late,
    memories_that_several_chains_share,
    chains_that_begin_late,
    another_memory_at_each_step,
    pairs_that_share_their_keys,
    a_new_tuple_at_each_step,
    trees_that_attend_to_their_words,
    cells_that_read_each_other,
    memories_that_are_states_of_calls,
]


def run(program, inlined=False, in_parts=False, **options):
    """Values and gradients.

    Args:
        in_parts: some states are asked for before the rest, and there are two losses.
    """
    p = parameters()
    with db.Graph(**{"dtype": "float64"} | options) as graph:
        sentences = Sentences(graph)
        states = program(sentences, p, (lambda cell: cell.function) if inlined else lambda c: c)
        found = [some[0].value for some in states[::-1]] if in_parts else []
        matrices = [F.stack(some) for some in states]
        losses = [F.sum([F.sum((m + k) * m) for m in matrices]) for k in range(1 + in_parts)]
        graph.forward()
        found += [matrix.value for matrix in matrices]
        for loss in losses:
            graph.backward(loss)
        found += [node.gradient for node in sentences.kept if node.rows]
        kinds = {type(node) for step in graph._executor.steps for node in step.nodes}
    assert (RegionNode in kinds) is not inlined
    return found + [dense_gradient(parameter) for parameter in vars(p).values()]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_equal_their_functions(program, policy):
    expected = run(program, inlined=True)
    with poisoned_memory():
        found = run(program, policy=policy)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_in_several_regions_with_two_losses(program):
    found, expected = [run(program, inlined=k, in_parts=True) for k in (False, True)]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_in_c_beside_those_with_kernels_of_their_own(program, monkeypatch):
    monkeypatch.setattr(native, "WORTH_COMPILING", 0)
    if library.reason():
        pytest.skip(library.reason())
    found = run(program)
    with library.reference_only():
        expected = run(program)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("option", ["check", "guard"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_checked_and_guarded_calls_give_the_same(program, option):
    for found, expected in zip(run(program, **{option: True}), run(program), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("program", [chains_of_unlike_lengths, memories_that_several_chains_share])
def test_check_finds_a_call_that_reads_another_memory(program, monkeypatch):
    plan = RegionBuilder._memories

    def confused(*arguments):
        memories, memory_of = plan(*arguments)
        return memories, memory_of[::-1]

    monkeypatch.setattr(RegionBuilder, "_memories", confused)
    with pytest.raises(CheckError, match=r"(dot|additive) #\d+, .*its result is wrong"):
        run(program, check=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_with_memories_come_back_from_a_file(program, tmp_path):
    path, p = tmp_path / "graph.npz", parameters()
    with db.Graph(dtype="float64", policy="by_depth") as graph:
        states = program(Sentences(graph), p, lambda cell: cell)
        first = states[0][0].value
        loss = F.sum([F.sum(F.stack(some)) for some in states])
        graph.backward(loss)
        graph.dump(path)
        batches = [(row.kind, row.inside) for row in graph._record().rows if row.inside]
        with load_graph(path) as loaded:
            loaded.run()
            again = [(r.kind, r.inside) for r in loaded.graph._record().rows if r.inside]
            assert len(loaded.nodes) == len(graph.nodes)
            assert loaded.losses[-1].value == loss.value
    assert again == batches
    assert first.size == H
    assert replay(path) is None


def test_memories_in_order_are_read_where_they_lie(monkeypatch):
    def gather(*arguments):
        raise AssertionError("gathered")

    monkeypatch.setattr(GenericStep, "_rows_of", gather)
    run(chains_of_unlike_lengths)
    with pytest.raises(AssertionError, match="gathered"):
        run(memories_that_several_chains_share)


def test_what_reads_a_memory_alone_is_made_once():
    p = parameters()
    with db.Graph(dtype="float64") as graph:
        s = Sentences(graph)
        memories = [s.matrix(2), s.matrix(3)]
        for memory in memories:
            chain(additive, s.matrix(4, D), s.vector(), p, memory)
        graph.forward()
        # 2 sentences of 2 matrices and a first state, keys of each; p.b in keys is no node
        assert graph.statistics.nodes == 2 * 3 + 2 + 8
        first = graph.statistics.nodes
        chain(additive, s.matrix(1, D), s.vector(), p, memories[0])
        graph.forward()
        assert graph.statistics.nodes == first + 2 + 1


def test_calls_after_backward_make_again_what_was_freed():
    found = []
    for cell in (additive, additive.function):
        p = parameters()
        with db.Graph(dtype="float64") as graph:
            s = Sentences(graph)
            memory, xs, h = s.matrix(3), s.matrix(4, D), s.vector()
            if cell is additive.function:
                h.keep()  # plain nodes cannot read what backward freed
            for _ in range(2):
                loss = F.sum(F.stack(chain(cell, xs, h, p, memory)))
                graph.backward(loss)
            found.append([loss.value, memory.gradient, dense_gradient(p.U)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_words_one_by_one_without_gradients():
    p, found = parameters(), []
    for function in (True, False):
        with db.Graph(dtype="float64", grad=False) as graph:
            s = Sentences(graph)
            cell = additive.function if function else additive
            states, values = [s.vector(), s.vector()], []
            xs, memories = s.matrix(4, D), [s.matrix(2), s.matrix(3)]
            for t in range(4):
                states = [cell(xs[t], h, p, m) for h, m in zip(states, memories, strict=True)]
                values += [h.value.tolist() for h in states]
            found.append(values)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_a_memory_is_forgotten_with_its_graph():
    with db.Graph(dtype="float64") as graph:
        s = Sentences(graph)
        chain(dot, s.matrix(2, D), s.vector(), parameters(), s.matrix(3))
        assert dot._calls._known
    assert not dot._calls._known


# What stays a function of nodes ------------------------------------------------------------------


@db.cell
def last_row(h, memory):
    return F.tanh(h + memory[-1])


@db.cell
def first_row(h, memory):
    return F.tanh(h + memory[0]) * F.max(memory[0])


@db.cell
def a_loop_over_rows(h, memory):
    for k in range(memory.rows):
        h = F.tanh(h + memory[k])
    return h


@db.cell
def number_of_rows(h, memory):
    return h * memory.rows


@db.cell
def nothing_where_there_is_nothing(h, memory):
    return F.tanh(h + F.attention(h, memory)) if memory.rows else h


@db.cell
def a_matrix(h, memory):
    return F.tanh(memory + h)


@db.cell
def a_matrix_on_the_way(h, memory):
    return F.sum(F.tanh(memory + h), dim=0)


@db.cell
def read_values(h, memory):
    return h * float(memory.value.sum())


@db.cell
def masked(h, memory):
    return F.attention(h, memory, mask=np.array([True, False, True]))


@db.cell
def a_constant_matrix(h, memory):
    return F.attention(h, F.constant(h.graph, 0.5, (2, H))) + F.attention(h, memory)


@db.cell
def repeated_rows(h, memory):
    return F.attention(h, F.expand(F.sum(memory, dim=0), memory.shape))


@pytest.mark.parametrize("step_by_step", [False, True])
@pytest.mark.parametrize(
    "cell",
    [
        last_row, first_row, a_loop_over_rows, number_of_rows, a_matrix, a_matrix_on_the_way,
        nothing_where_there_is_nothing, read_values, masked, a_constant_matrix, repeated_rows,
    ],
)  # fmt: skip
def test_functions_of_how_many_rows_there_are(cell, step_by_step):
    values = []
    for call in (cell, cell.function):
        with db.Graph(dtype="float64") as graph:
            s = Sentences(graph)
            memory = s.matrix(3)
            for _ in range(2):
                h = call(s.vector(), memory)
                if step_by_step:
                    h.value  # noqa: B018
            values.append(h.value)
            if cell is nothing_where_there_is_nothing:
                values[-1] = [*values[-1], *call(h, s.matrix(0)).value]
            elif h.ndim == 1:
                values[-1] = [*values[-1], call(h, s.matrix(3)).value.sum()]
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_a_call_that_is_wrong_says_so_each_time():
    p = parameters()
    with db.Graph(dtype="float64") as graph:
        s = Sentences(graph)
        for _ in range(2):
            with pytest.raises(ShapeError, match="differ in d"):
                dot(s.matrix(1, D)[0], s.vector(), p, s.matrix(3, H + 1))
        assert isinstance(
            dot(s.matrix(1, D)[0], s.vector(), p, s.matrix(3)), db.cells.calls.call.Call
        )


def test_calls_that_are_given_a_memory_and_zeros_alone_have_gradients():
    p, memory = parameters(), np.random.default_rng(1).normal(size=(3, H))
    with db.Graph(dtype="float64", check=True) as graph:
        rows = F.input(graph, memory).keep()
        graph.backward(F.sum(remember(H, p, rows)))
        found = rows.gradient, dense_gradient(p.V)
    with db.Graph(dtype="float64") as graph:
        rows, zeros = F.input(graph, memory).keep(), F.constant(graph, 0.0, (H,))
        graph.backward(F.sum(remember.function(zeros, p, rows)))
        expected = rows.gradient
    np.testing.assert_allclose(found[0], expected, rtol=1e-12, atol=1e-14)
    assert expected.any()
    assert not found[1].any()
