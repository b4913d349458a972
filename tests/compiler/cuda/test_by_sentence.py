"""Cells whose states are matrices, on a GPU: values, bits, memory, launches, barriers, errors."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.compiler import heads
from dynbatch.compiler.cuda import block_passes
from dynbatch.compiler.cuda.cell import SentenceCell
from dynbatch.errors import BackendError, GraphError
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.testing import check_device
from tests.cells.matrix_cells import MATRIX_CASES, D, E, H
from tests.cells.scan.test_matrix_states import (
    LENGTHS,
    every_operation,
    leaves_what_no_step_makes,
    outcome,
)
from tests.cuda import devices, nvrtc
from tests.marks import exhaustive, quick
from tests.poison import poisoned_memory

each_case = pytest.mark.parametrize("name", quick(["gated_delta_net", "m_lstm"], MATRIX_CASES))


@pytest.fixture(params=[(1, 1), exhaustive((1024, 1)), exhaustive((1024, 4))], ids=str)
def blocks(request, monkeypatch):
    """The least elements of a matrix for which a head has a block, and of a sum in teams."""
    monkeypatch.setattr(heads, "LEAST_ELEMENTS", request.param[0])
    monkeypatch.setattr(block_passes, "LEAST_TERMS", request.param[1])


def case_of(name):
    """A recurrence whose kernels are not printed yet."""
    case = MATRIX_CASES[name]
    return replace(case, cell=db.cell(case.cell.function))


def flat(found):
    of_sentences, of_parameters = found
    return [array for each in of_sentences for array in each] + of_parameters


@each_case
@pytest.mark.parametrize(
    "options", [{}, {"recompute": 2}, exhaustive({"recompute": 0, "reverse": True})]
)
def test_six_recurrences_equal_the_cpu(cuda, blocks, name, options):
    case = case_of(name)
    sentences = case.sentences(LENGTHS)
    expected = outcome(case, sentences, "float64", **options)
    with poisoned_memory():
        found = outcome(case, sentences, "float64", device="cuda", **options)
    for one, other in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@each_case
def test_a_sentence_has_the_same_bits_alone_and_in_company(cuda, name):
    case = MATRIX_CASES[name]
    sentences = case.sentences((3, 1, 4), "float32")
    run = partial(outcome, case, dtype="float32", device="cuda")
    together, _ = run(sentences)
    for k, arrays in enumerate(sentences):
        ((alone,), _) = run([arrays])
        for one, other in zip(together[k], alone, strict=True):
            assert (one == other).all()


def test_every_operation_on_a_matrix_equals_the_cpu(cuda):
    rng = np.random.default_rng(0)
    scales = db.Parameter(rng.uniform(0.5, 1, (3, 4)))

    def build(graph, xs, init):
        ys, (last, n) = db.scan(every_operation, xs, (init, db.zeros(3)), scales, reverse=True)
        return [ys, last, n]

    examples = [(rng.standard_normal((n, 7)), rng.standard_normal((3, 4))) for n in (2, 0, 3)]
    check_device(build, examples, parameters=[scales])


def test_states_that_no_step_makes_equal_the_cpu(cuda):
    rng = np.random.default_rng(0)
    matrix, heads = [db.Parameter(rng.standard_normal(s)) for s in ((3, 3), (2, 1, 2))]
    init = (db.zeros(3, 3), db.zeros(3, 3), db.zeros(2, 1, 2), db.zeros(2, 1, 2))

    def build(graph, xs, memory):
        p = {"matrix": matrix, "heads": heads}
        ys, last = db.scan(leaves_what_no_step_makes, xs, init, p, memory)
        return [ys, *last]

    examples = [(rng.standard_normal((n, 3)), rng.standard_normal((3, 3))) for n in (2, 0, 3)]
    check_device(build, examples, parameters=[matrix, heads])


def of_three_scans(device, recompute):
    """Values and gradients of two scans from given states, and of one from zeros and the end."""
    case, kept = MATRIX_CASES["gated_delta_net"], []
    with db.Graph(device, dtype="float64") as graph:
        for arrays in case.sentences(LENGTHS):
            xs = tuple([F.input(graph, x).keep() for x in arrays])
            init = F.input(graph, np.linspace(-1, 1, H * D * E).reshape(H * D, E)).keep()
            first = F.reshape(init, (H, D, E))
            run = partial(db.scan, case.cell, xs, recompute=recompute)
            scans = [run(first), run(2 * first), run(case.init, reverse=True)]
            kept.append(([*xs, init], [x.keep() for scan in scans for x in scan]))
        graph.backward(F.sum([F.sum(F.tanh(x)) for _, nodes in kept for x in nodes]))
        return [x for xs, nodes in kept
                for x in (*[x.gradient for x in xs], *[x.value for x in nodes])]  # fmt: skip


@pytest.mark.parametrize("recompute", [0, 2])
def test_scans_side_by_side_share_launches_and_equal_the_cpu(cuda, recompute):
    before = queue().kernels("float64").launches.copy()
    found = of_three_scans("cuda", recompute)
    launches = queue().kernels("float64").launches - before
    chunks = 2 if recompute else 1
    shared = [n for name, n in launches.items() if name.endswith("sentences_backward")]
    assert shared == [2 * chunks]  # of three scans
    for one, other in zip(found, of_three_scans("cpu", recompute), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("recompute", [None, 2])
def test_each_pass_of_a_chunk_is_one_launch_in_the_memory_that_was_planned(cuda, recompute):
    case = MATRIX_CASES["gated_delta_net"]
    with db.Graph("cuda") as graph:
        losses = []
        for arrays in case.sentences((5, 3), "float32"):
            xs = tuple([F.input(graph, x).keep() for x in arrays])
            ys, _ = db.scan(case.cell, xs, case.init, None, recompute=recompute)
            losses.append(F.sum(F.sum(ys)))
        loss = F.sum(losses)
        planned = graph.estimate(loss)
        before = queue().kernels("float32").launches.copy()
        graph.backward(loss)
        assert graph.memory_use == planned and graph.peak_bytes == planned.peak_bytes
        launches = queue().kernels("float32").launches - before
    ours = {name.split("_", 2)[2]: n for name, n in launches.items() if "sentences" in name}
    chunks = 1 if recompute is None else 2
    assert ours == {"sentences": 2 * chunks, "sentences_backward": chunks}


# Generated kernels --------------------------------------------------------------------------------


def program_of(case):
    with db.Graph(dtype="float64") as graph:
        xs = tuple([F.input(graph, x) for x in case.sentences((1,))[0]])
        db.scan(case.cell, xs, case.init, case.given())
    return case.cell.programs[-1]


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
@each_case
@pytest.mark.parametrize("architecture", [*map(exhaustive, (75, 80)), 90])
@pytest.mark.parametrize("real", ["float", "double"])
def test_kernels_by_sentence_compile_without_spills(blocks, name, architecture, real):
    source = program_of(case_of(name)).on_device.source
    found = nvrtc.compile_kernels(source.text, source.name, architecture, (f"-DREAL={real}",))
    assert set(found) == set(source.kernels)
    for kernel, taken in found.items():
        assert taken.registers <= 128 and not taken.spilled_bytes, kernel


BARRIER = re.compile(r"__syncthreads\(\);")


def without_barrier(name, barrier=None):
    """Runs scans of a cell whose kernels lack one barrier; returns how many they have."""
    case, print_all, count = case_of(name), SentenceCell._text, []

    def print_fewer(*arguments):
        text = print_all(*arguments)
        barriers = [*BARRIER.finditer(text)]
        count.append(len(barriers))
        if barrier is None:
            return text
        return text[: barriers[barrier].start()] + text[barriers[barrier].end() :]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceCell, "_text", print_fewer)
        outcome(case, case.sentences((4, 2)), "float64", device="cuda")
    return count[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "elements", "terms"),
    [*[(name, 1, 1) for name in MATRIX_CASES], ("gated_delta_net", 1024, 4), ("m_lstm", 1024, 4)],
)
def test_every_barrier_is_needed(monkeypatch, name, elements, terms):
    monkeypatch.setattr(heads, "LEAST_ELEMENTS", elements)
    monkeypatch.setattr(block_passes, "LEAST_TERMS", terms)
    with devices.device("checked"):
        count = without_barrier(name)
        assert count > 4
        for barrier in range(count):
            with pytest.raises(BackendError, match=r"KernelFault.*(race|never wrote)"):
                without_barrier(name, barrier)
            queue().discard()


# Errors -------------------------------------------------------------------------------------------


@db.cell
def normed(x, state, p):
    state = state + F.outer(F.softmax(F.vecmat(x, state)), x)
    return x @ state, state


@db.cell
def adds_outer_products(x, state, p):
    state = state + F.outer(x, x)
    return x @ state, state


@pytest.mark.parametrize(
    ("cell", "width", "told"),
    [
        (normed, 3, r"^normed: .* on a GPU, with Softmax in a step"),
        (
            adds_outer_products,
            300,
            r"^adds_outer.* has [\d,]+ bytes .* needs 36\d,\d+\.\n.*\n.*fix",
        ),
    ],
)
def test_what_no_block_can_run_is_told_and_the_graph_goes_on(cuda, cell, width, told):
    with db.Graph("cuda") as graph:
        x = F.input(graph, np.ones((2, width), np.float32))
        with pytest.raises(GraphError, match=told):
            db.scan(cell, x, db.zeros(width, width))
        assert F.sum(x).value == 2 * width
