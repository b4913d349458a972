"""`scan` against the cell applied token by token: outputs, last states and every gradient."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.scan import prefix
from dynbatch.cells.scan.run import ScanRun
from dynbatch.cells.scan.scan import Scan
from dynbatch.compiler.arrays import elements_of
from dynbatch.errors import DtypeError, GraphError, ShapeError
from dynbatch.nodes.operation import signature_type
from tests.cells.cell_cases import CASES, D, H
from tests.cells.step_by_step import (
    LENGTHS,
    Batch,
    assert_equal_outcomes,
    assert_scan_equals_steps,
    outcome,
    sentences,
    step_by_step,
)
from tests.marks import quick
from tests.poison import poisoned_memory

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
a_third = pytest.mark.parametrize(
    "case", quick(list(CASES.values())[::3], CASES.values()), ids=list(CASES)
)
some_cases = pytest.mark.parametrize(
    "case",
    [
        CASES[name]
        for name in (
            "lstm",
            "minimal_gated_unit",
            "output_is_several_things",
            "attention_in_the_recurrence",
        )
    ],
    ids=lambda case: case.cell.__name__,
)


@pytest.fixture
def threads():
    """Sets the number of threads; afterwards it is what it was."""
    before = db.num_threads()
    yield db.set_num_threads
    db.set_num_threads(before)


@each_case
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_scan_equals_the_cell_step_by_step(case, reverse):
    batch = case.batch()
    batch.reverse = reverse
    with poisoned_memory():
        assert_scan_equals_steps(case.cell, batch)


@a_third
@pytest.mark.parametrize("count", [1, 2])
def test_chunks_of_few_steps(case, count, threads, monkeypatch):
    monkeypatch.setattr(prefix, "LEAST_ROWS", 8)
    threads(count)
    with poisoned_memory():
        assert_scan_equals_steps(case.cell, case.batch((3, 1, 5, 0, 2, 3, 1, 7)))


@some_cases
@pytest.mark.parametrize("grad", [True, False])
def test_chunks_make_a_pass_smaller_and_change_nothing_else(case, grad, monkeypatch):
    batch = case.batch((40,) * 6)
    expected = outcome(db.scan, case.cell, batch, grad=grad)
    of_pass, rooms = ScanRun.rooms, []

    def noted(batch, backward):
        arrays = of_pass(batch, backward)
        rooms.append(elements_of(arrays))
        return arrays

    monkeypatch.setattr(ScanRun, "rooms", staticmethod(noted))
    for rows in (240, 24):
        monkeypatch.setattr(prefix, "LEAST_ROWS", rows)
        with poisoned_memory():
            found = outcome(db.scan, case.cell, batch, grad=grad)
        assert_equal_outcomes(found, expected, 1e-12)
    last = rooms[len(rooms) // 2 - 1], rooms[-1]  # of backward, or of a forward without one
    assert last[1] < last[0] / 2
    assert not grad or rooms[0] == rooms[len(rooms) // 2]


@a_third
def test_initial_states_given_by_width_are_zeros(case):
    assert_scan_equals_steps(case.cell, case.batch(zeros=True))


@each_case
def test_sentences_that_are_all_empty(case):
    assert_scan_equals_steps(case.cell, case.batch((0, 0, 0)))


@some_cases
@pytest.mark.parametrize("lengths", [(0,), (1,), (6,), (1, 1, 1), (0, 17, 1, 0, 2)])
def test_any_lengths(case, lengths):
    with poisoned_memory():
        assert_scan_equals_steps(case.cell, case.batch(lengths))


@some_cases
@pytest.mark.parametrize("count", [1, 2])
def test_any_number_of_threads(case, count, threads):
    lengths = np.random.default_rng(0).integers(0, 4, 70)
    threads(count)
    with poisoned_memory():
        assert_scan_equals_steps(case.cell, case.batch(lengths))


@some_cases
@pytest.mark.parametrize("policy", ["by_depth", "by_agenda", "one_by_one"])
def test_any_policy(case, policy):
    assert_scan_equals_steps(case.cell, case.batch(), policy=policy)


@some_cases
def test_values_may_be_read_before_backward(case):
    batch = case.batch()
    expected = outcome(step_by_step, case.cell, batch)
    with poisoned_memory():
        found = outcome(db.scan, case.cell, batch, before_backward=True)
    assert_equal_outcomes(found, expected, 1e-11)


@some_cases
def test_values_without_gradients(case):
    batch = case.batch()
    expected = outcome(step_by_step, case.cell, batch, grad=False)
    with poisoned_memory():
        assert_equal_outcomes(outcome(db.scan, case.cell, batch, grad=False), expected, 1e-12)


@a_third
def test_float32_equals_float64_within_rounding(case):
    expected = outcome(db.scan, case.cell, case.batch())
    found = outcome(db.scan, case.cell, case.batch(dtype="float32"), dtype="float32")
    assert all(array.dtype == np.float32 for array in found.values())
    assert_equal_outcomes(found, expected, 2e-4)


@some_cases
def test_frozen_parameters_get_no_gradient_and_change_no_other(case):
    batch = case.batch()
    expected = outcome(db.scan, case.cell, batch)
    for k, parameter in enumerate(batch.parameters):
        parameter.frozen = k % 2 == 0
    found = outcome(db.scan, case.cell, batch)
    for k, parameter in enumerate(batch.parameters):
        name = f"gradient of {parameter.name} {k}"
        if parameter.frozen:
            assert parameter.grad is None
            expected[name] = np.zeros_like(expected[name])
    assert any(p.frozen for p in batch.parameters)
    assert_equal_outcomes(found, expected, 1e-12)


def twice(scan):
    """Runs the scan on its own outputs."""

    def run(cell, xs, init, params, memory, reverse):
        ys, last = scan(cell, xs, init, params, memory, reverse)
        return (ys, last) if ys is None else scan(cell, ys, last, params, memory, not reverse)

    return run


def both_ways(scan):
    """Runs the same cell on the same tokens in both directions."""

    def run(cell, xs, init, params, memory, reverse):
        ahead, last = scan(cell, xs, init, params, memory, reverse)
        back, _ = scan(cell, xs, last, params, memory, not reverse)
        again, last = scan(cell, xs, init, params, memory, reverse)
        return None if ahead is None else F.concat([ahead, back, again]), last

    return run


@pytest.mark.parametrize("around", [twice, both_ways])
@pytest.mark.parametrize("name", ["lstm", "gru", "scalars"])
def test_several_scans_of_one_cell(around, name):
    case = CASES[name]
    batch = case.batch()
    for sentence in batch.sentences:  # tokens as wide as outputs
        sentence.xs = np.tile(sentence.xs, 2)[:, :H]
    for parameter in batch.parameters:
        if parameter.shape[-1] == D:
            parameter.replace(np.tile(parameter.value, 2)[:, :H].copy())
    expected = outcome(around(step_by_step), case.cell, batch)
    with poisoned_memory():
        found = outcome(around(db.scan), case.cell, batch)
    assert_equal_outcomes(found, expected, 1e-11)


def test_two_cells_that_share_a_weight():
    @db.cell
    def other(x, h, p):
        return F.linear(h, p.U), F.tanh(F.linear(h, p.U, p.b) - F.linear(x, p.W))

    def pair(scan):
        def run(cell, xs, *arguments):
            one, last = scan(cell, xs, *arguments)
            two, _ = scan(other, xs, *arguments)
            return None if one is None else one * two, last

        return run

    case = CASES["output_is_the_previous_state"]
    batch = case.batch()
    expected = outcome(pair(step_by_step), case.cell, batch)
    assert_equal_outcomes(outcome(pair(db.scan), case.cell, batch), expected, 1e-12)


def test_states_may_be_nodes_for_some_sentences_and_widths_for_others():
    case = CASES["lstm"]
    batch = case.batch()
    for k, sentence in enumerate(batch.sentences):
        h, c = sentence.init
        sentence.init = ((h, c), (H, c), (h, H), (H, H))[k % 4]
    assert_scan_equals_steps(case.cell, batch)


@pytest.mark.parametrize("lengths", [(3, 0), (0, 2)])
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].memories])
def test_a_sentence_without_tokens_may_have_a_memory(name, lengths):
    assert_scan_equals_steps(CASES[name].cell, CASES[name].batch(lengths))


def test_a_vector_may_be_a_memory():
    @db.cell
    def conditioned(x, h, p, memory):
        vector, rows = memory
        h = F.tanh(h * vector + F.attention(x, rows))
        return F.concat([h, vector]), h

    rng = np.random.default_rng(0)
    given = sentences(D, (D,), memories=(D, D))
    for sentence in given:
        sentence.memories = (rng.standard_normal(D), sentence.memories[1])
    assert_scan_equals_steps(conditioned, Batch(given))


def test_all_sentences_are_one_batch_of_scans():
    case = CASES["lstm"]
    batch = case.batch(LENGTHS * 10)
    with db.Graph(dtype="float64") as graph:
        for sentence in batch.sentences:
            db.scan(case.cell, F.input(graph, sentence.xs), (H, H), batch.params)
        graph.forward()
        sizes = [len(s.nodes) for s in graph.plans[0].steps if signature_type(s.signature) is Scan]
    assert sizes == [len(LENGTHS) * 10]


# Dropout -----------------------------------------------------------------------------------------


@db.cell
def dropping(x, h, p):
    h = F.dropout(0.9 * h, 0.5) + F.dropout(x, 0.5)
    return F.concat([h, F.dropout(F.constant(x.graph, 1.0, (2,)))]), h


def dropped(arrays, reverse=False):
    """Outputs for each sentence."""
    with db.Graph(dtype="float64", seed=1) as graph:
        scans = [db.scan(dropping, F.input(graph, x), 20, reverse=reverse)[0] for x in arrays]
        return [ys.value for ys in scans]


def test_masks_of_a_recurrence_depend_on_the_sentence_alone():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((length, 20)) for length in LENGTHS]
    together = dropped(arrays)
    for k, array in enumerate(arrays):
        assert np.array_equal(dropped([array])[0], together[k])
    for ys, other in zip(dropped(arrays[::-1])[::-1], together, strict=True):
        assert np.array_equal(ys, other)


def test_masks_of_a_recurrence_differ_from_step_to_step_and_keep_the_mean():
    @db.cell
    def masks(x, state, p):
        ones, _ = state
        return state[1], (ones, F.dropout(ones, 0.5))

    with db.Graph(seed=0) as graph:
        ones = F.constant(graph, 1.0, (20,))
        ys, _ = db.scan(masks, F.constant(graph, 1.0, (501, 1)), (ones, 20))
        made = ys.value[1:]
    assert {*np.unique(made)} == {0.0, 2.0}
    assert len({row.tobytes() for row in made}) > 490
    assert abs(made.mean() - 1) < 0.04  # four standard deviations


def test_gradients_pass_the_masks_of_a_recurrence():
    def build(graph, xs, init):
        return db.scan(dropping, xs, init)

    db.testing.check_gradient(build, shapes=[(4, 6), (6,)])


def test_dropout_that_is_switched_off_takes_no_part():
    @db.cell
    def cell(x, h, p):
        h = F.dropout(h, 0.5, training=p.training) + x
        return h, h

    module = db.models.Module()
    sums = {}
    for module.training in (True, False, True):
        with db.Graph(seed=3) as graph:
            ys, _ = db.scan(cell, F.constant(graph, 1.0, (5, 8)), 8, module)
            sums.setdefault(module.training, []).append(ys.value[-1])
    assert np.array_equal(sums[False][0], np.full(8, 5.0))
    assert not np.array_equal(sums[True][0], sums[False][0])
    assert np.array_equal(*sums[True])


# Errors ------------------------------------------------------------------------------------------


def xs_of(graph):
    return F.constant(graph, 1.0, (2, 3))


def test_a_function_that_is_no_cell_is_refused():
    with db.Graph() as graph, pytest.raises(DtypeError, match=r"decorate .* with @db\.cell"):
        db.scan(lambda x, h, p: (h, h), xs_of(graph), 3)


def test_one_token_is_no_sentence():
    with db.Graph() as graph, pytest.raises(ShapeError, match=r"a matrix \(T, D\)"):
        db.scan(dropping, F.constant(graph, 1.0, (3,)), 3)


@pytest.mark.parametrize("wrong", ["an array", "a list of nodes"])
def test_what_is_no_node_is_refused(wrong):
    with db.Graph() as graph:
        nodes = {"an array": np.ones((2, 3)), "a list of nodes": [xs_of(graph)]}[wrong]
        with pytest.raises(DtypeError, match="xs: a node expected"):
            db.scan(dropping, nodes, 3)
        with pytest.raises(DtypeError, match="memory: a node expected"):
            db.scan(dropping, xs_of(graph), 3, memory=nodes)


def test_a_parameter_may_be_the_initial_state():
    start = db.Parameter(np.array([1.0, -2.0]), "start")

    @db.cell
    def running(x, total, params):
        return total + x, total + x

    with db.Graph(dtype="float64") as graph:
        scans = [db.scan(running, F.input(graph, np.ones((n, 2))), start) for n in (2, 0)]
        assert [last.value.tolist() for _, last in scans] == [[3, 0], [1, -2]]
        graph.backward(F.sum([F.sum(last) for _, last in scans]))
    assert start.grad.tolist() == [2, 2]


@pytest.mark.parametrize("wrong", ["empty", "scalar", "list", "nothing", "zero", "float"])
def test_what_is_no_initial_state_is_refused(wrong):
    with db.Graph() as graph:
        init = {
            "empty": F.constant(graph, 0.0, (0, 3)),
            "scalar": F.constant(graph, 0.0),
            "list": [3, 3],
            "nothing": None,
            "zero": 0,
            "float": 3.0,
        }[wrong]
        with pytest.raises(ShapeError, match=r"a vector \(D,\), node or parameter"):
            db.scan(dropping, xs_of(graph), init)


def test_a_mask_of_one_sentence_is_refused_in_a_cell():
    @db.cell
    def masked(x, h, p, memory):
        h = F.attention(h + x, memory, mask=[True, False])
        return h, h

    with db.Graph() as graph:
        ys, _ = db.scan(masked, xs_of(graph), 3, memory=xs_of(graph))
        with pytest.raises(GraphError, match="take the hidden rows out of the memory"):
            _ = ys.value


def test_without_the_last_state_a_scan_is_its_outputs_and_makes_no_further_nodes():
    case = CASES["lstm"]
    batch = case.batch()
    with db.Graph(dtype="float64") as graph:
        xs = F.constant(graph, 1.0, (3, D))
        before = len(graph)
        ys = db.scan(case.cell, xs, (H, H), batch.params, return_state=False)
        num_alone = len(graph) - before
        outputs, _ = db.scan(case.cell, xs, (H, H), batch.params)
        assert len(graph) - before == 2 * num_alone + 2
        np.testing.assert_array_equal(ys.value, outputs.value)
        with pytest.raises(db.errors.ArgumentError, match="return_state"):
            db.scan(case.cell, xs, (H, H), batch.params, return_state="no")
