"""Scans on a GPU against the cell applied token by token on the CPU, and their launches."""

import random
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import strategies as st

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.cells.generic import GenericStep
from dynbatch.cells.scan.arguments import ScanForm
from dynbatch.compiler.cuda import fused_product
from dynbatch.compiler.cuda import persistent as tail
from dynbatch.kernels.cuda.runtime import graphs
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import multiplying
from dynbatch.testing.precision import dense_gradient
from tests.cells.cell_cases import CASES, D, H
from tests.cells.recipe_writer import recipe
from tests.cells.step_by_step import assert_equal_outcomes, outcome, step_by_step, tame_outcome
from tests.cuda import devices, nvrtc
from tests.marks import exhaustive, quick
from tests.poison import poisoned_memory
from tests.random_examples import examples

LENGTHS = (3, 1, 0, 2, 3)
each_case = pytest.mark.parametrize("name", quick(list(CASES)[::3], CASES))


@pytest.fixture
def no_tail(monkeypatch):
    """Every step by its own launches, however few sentences are left."""
    monkeypatch.setattr(tail, "TAIL_ROWS", 0)


def assert_device_equals_cpu(cell, batch):
    expected = outcome(step_by_step, cell, batch)
    assert_equal_outcomes(outcome(db.scan, cell, batch, device="cuda"), expected, 1e-11)


@each_case
@pytest.mark.parametrize("rows", [0, 128, exhaustive(2)])
def test_a_scan_equals_the_cell_step_by_step(cuda, no_tail, monkeypatch, name, rows):
    """With products of cuBLAS, with products in kernels of their own, and with both in turn."""
    monkeypatch.setattr(fused_product, "FEW_ROWS", rows)
    assert_device_equals_cpu(CASES[name].cell, CASES[name].batch(LENGTHS))


@each_case
@pytest.mark.parametrize("rows", [2, exhaustive(16)])
def test_the_last_steps_in_one_launch(cuda, monkeypatch, name, rows):
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    assert_device_equals_cpu(CASES[name].cell, CASES[name].batch(LENGTHS))


@each_case
@pytest.mark.parametrize(("rows", "few"), [(0, 128), (0, 0), exhaustive(2, 128)])
def test_from_zeros_and_from_the_end(cuda, monkeypatch, name, rows, few):
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    batch = CASES[name].batch(LENGTHS, zeros=True)
    batch.reverse = True
    assert_device_equals_cpu(CASES[name].cell, batch)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0), (1,), (1, 40, 2)])
@pytest.mark.parametrize("name", ["lstm", "minimal_gated_unit", "attention_in_the_recurrence"])
@pytest.mark.parametrize("rows", [0, 16])
def test_any_lengths(cuda, monkeypatch, name, lengths, rows):
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    if lengths:
        assert_device_equals_cpu(CASES[name].cell, CASES[name].batch(lengths))


@db.cell
def normed_parts(x, h, p):
    """Operators with kernels of their own that read parts of a product and of the state."""
    of_state = F.linear(h, p.U)
    part = F.layer_norm(of_state[2:6], p.w, p.b)
    h = F.tanh(F.linear(x, p.W) + of_state)[:4] * part + F.concat([F.softmax(h[1:]), h[:1]])
    return h, h


@pytest.mark.parametrize("zeros", [True, False])
def test_own_kernels_read_and_write_parts_of_wider_rows(cuda, no_tail, zeros):
    shapes, found = {"W": (8, 3), "U": (8, 4), "w": (4,), "b": (4,), "init": (4,)}, []
    for device in ("cpu", "cuda"):
        rng = np.random.default_rng(0)
        p = SimpleNamespace(
            **{k: db.Parameter(rng.normal(size=s)).to(device) for k, s in shapes.items()}
        )
        with db.Graph(dtype="float64", device=device) as graph:
            sentences = [F.input(graph, rng.normal(size=(n, 3))) for n in LENGTHS]
            scans = [db.scan(normed_parts, xs, 4 if zeros else p.init, p) for xs in sentences]
            loss = F.sum([F.sum(ys * ys) + F.sum(h) for ys, h in scans])
            graph.backward(loss)
            found.append([loss.value])
        found[-1] += [dense_gradient(getattr(p, name)) for name in ("W", "U", "w", "b")]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@each_case
@pytest.mark.parametrize("steps", [1, exhaustive(2), exhaustive("sqrt"), exhaustive(100)])
@pytest.mark.parametrize(("rows", "few"), [(2, 0), (0, 128)])
def test_chunks_whose_forward_runs_again(cuda, monkeypatch, name, steps, rows, few):
    """Gradients are those of keeping everything, whatever was in the memory that chunks share."""
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    case = CASES[name]
    batch = case.batch(LENGTHS, zeros=rows > 0)
    batch.reverse = few > 0
    expected = outcome(db.scan, case.cell, batch)
    with poisoned_memory():
        found = outcome(partial(db.scan, recompute=steps), case.cell, batch, device="cuda")
    assert_equal_outcomes(found, expected, 1e-11)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("lengths", [(0, 0), (1,), (0, 17, 1, 0, 2), (1, 1, 1)])
def test_chunks_of_any_lengths(cuda, lengths, grad):
    case = CASES["additive_attention_in_the_recurrence"]
    batch = case.batch(lengths)
    expected = outcome(db.scan, case.cell, batch, grad=grad)
    for steps in (1, 2, "sqrt", 100):
        found = outcome(
            partial(db.scan, recompute=steps), case.cell, batch, device="cuda", grad=grad
        )
        assert_equal_outcomes(found, expected, 1e-11)


def test_chunks_in_a_graph_that_looks_at_every_batch(cuda):
    case = CASES["lstm"]
    scan, batch = partial(db.scan, recompute=1), case.batch(LENGTHS)
    expected = outcome(db.scan, case.cell, batch)
    found = outcome(scan, case.cell, batch, device="cuda", check=True)
    assert_equal_outcomes(found, expected, 1e-11)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_chunks_take_less_memory_as_estimated_and_one_upload(cuda, no_tail, bidirectional):
    def cost(recompute):
        """Peak and launches of a step of an LSTM."""
        lstm = models.LSTM(4, 16, rng=0, recompute=recompute, bidirectional=bidirectional)
        lstm.to("cuda")
        with db.Graph("cuda") as graph:
            loss = F.sum([F.sum(lstm(F.constant(graph, 1.0, (40, 4)))) for _ in range(8)])
            use = graph.estimate(loss)
            graph.backward(loss)
            assert graph.statistics.peak_bytes == use.peak_bytes
            assert graph.statistics.uploads == 1
        return use.peak_bytes, graph.statistics.launches

    peaks, launches = zip(*[cost(steps) for steps in (None, 20, 10, 5)], strict=True)
    assert peaks[0] > 1.5 * peaks[1] > 2 * peaks[2] > 2 * peaks[3]
    # The steps run again. Each chunk costs 4 gathers, the map of its tokens twice, 2 products for
    # weights, a last step's product apart; and for each direction the sum of both biases, which is
    # added to them, or copied at first. One pass has all sums in one launch.
    a_chunk = 9 + 2 * (1 + bidirectional)
    assert np.diff(launches).tolist() == [42 + a_chunk + bidirectional, 2 * a_chunk, 4 * a_chunk]


@pytest.mark.parametrize(
    "name", ["lstm", exhaustive("gru"), "additive_attention_in_the_recurrence"]
)
@pytest.mark.parametrize(("rows", "few"), [(0, 0), (0, 128), (2, 0)])
@pytest.mark.parametrize("steps", [None, 2])
def test_no_thread_reads_what_another_writes(monkeypatch, name, rows, few, steps):
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    case, scan = CASES[name], partial(db.scan, recompute=steps)
    batch = case.batch((3, 1, 0, 2))
    expected = outcome(step_by_step, case.cell, batch)
    with devices.device("gpu" if devices.has_gpu() else "checked"):
        assert_equal_outcomes(outcome(scan, case.cell, batch, device="cuda"), expected, 1e-11)


def test_attention_to_memories_is_prepared_with_the_loop(cuda, no_tail, monkeypatch):
    """No step of it is run by the batched kernels' node type, forward or back."""
    case = CASES["additive_attention_in_the_recurrence"]
    batch = case.batch(LENGTHS)
    expected = outcome(step_by_step, case.cell, batch)
    for name in ("forward", "backward"):
        monkeypatch.setattr(GenericStep, name, lambda *_: pytest.fail("a step by itself"))
    assert_equal_outcomes(outcome(db.scan, case.cell, batch, device="cuda"), expected, 1e-11)


@pytest.mark.parametrize("name", ["lstm", "gru", "additive_attention_in_the_recurrence"])
def test_steps_in_graphs(cuda, no_tail, monkeypatch, name):
    graphs_of_queue = graphs.LoopGraphs(queue().cupy)
    monkeypatch.setattr(queue(), "graphs", graphs_of_queue)
    monkeypatch.setattr(graphs, "STEPS", 2)
    assert_device_equals_cpu(CASES[name].cell, CASES[name].batch((7, 5, 0, 6)))
    assert graphs_of_queue.captured


@examples(
    8,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_random_cells(cuda, data):
    """Against the scan on the CPU, which is held to step by step elsewhere: dropout is the same."""
    chosen = recipe(lambda options: data.draw(st.sampled_from(options)), side_by_side=True)
    dtype, tolerance = data.draw(st.sampled_from([("float64", 1e-9), ("float32", 1e-4)]))
    cell, batch = chosen.cell(), chosen.batch(dtype)
    expected = tame_outcome(db.scan, cell, batch, dtype=dtype)
    assume(expected is not None)
    found = outcome(db.scan, cell, batch, device="cuda", dtype=dtype)
    assert_equal_outcomes(found, expected, tolerance)


@pytest.mark.parametrize("seed", [2104])  # a gradient in the place of values, written in part
def test_cells_that_once_failed(cuda, no_tail, seed):
    chosen = recipe(random.Random(seed).choice)
    expected = outcome(db.scan, chosen.cell(), chosen.batch())
    found = outcome(db.scan, chosen.cell(), chosen.batch(), device="cuda")
    assert_equal_outcomes(found, expected, 1e-9)


# What a step costs --------------------------------------------------------------------------------


def launches_of(lengths, grad, cell="lstm"):
    """Launches and uploads of a run with scans from zeros."""
    batch = CASES[cell].batch((), dtype="float32")
    for parameter in batch.parameters:
        parameter.to("cuda")
    with db.Graph(device="cuda", grad=grad) as graph:
        losses = []
        for length in lengths:
            xs = F.input(graph, np.ones((length, D)))
            ys, _ = db.scan(CASES[cell].cell, xs, (H, H), batch.params)
            losses.append(F.sum(ys))
        loss = F.sum(losses)
        if grad:
            graph.backward(loss)
        else:
            graph.forward()
    return graph.statistics.launches, graph.statistics.uploads


def test_weights_of_many_pieces_are_gathered_once_for_both_passes(cuda):
    """With all else that comes before or after a loop. Here no token wants its gradient."""
    names = ("gather_many", "gather_rows", "copy", "copy_rows", "accumulate")
    counts = queue().kernels("float32").launches
    found = []
    for cell in ("lstm", "lstm_by_gates"):  # one weight of each kind; one for each gate
        before = [counts[name] for name in names]
        launches_of((4, 2), True, cell)
        found.append([counts[name] - old for name, old in zip(names, before, strict=True)])
    # The copy is of the bias to its gradient, and one of each gate more.
    assert found == [[3, 0, 1, 0, 0], [3, 0, 5, 0, 0]]


@pytest.mark.parametrize("cell", ["lstm", "lstm_by_gates"])
@pytest.mark.parametrize(("rows", "forward", "both"), [(128, 1, 2), (0, 2, 4)])
def test_launches_of_a_step_of_an_lstm(cuda, no_tail, monkeypatch, cell, rows, forward, both):
    """Forward a product with the gates, back the product of a step with the gates of the next."""
    monkeypatch.setattr(fused_product, "FEW_ROWS", rows)
    for grad, expected in ((False, forward), (True, both)):
        launches, uploads = launches_of((4, 2), grad, cell)
        longer, _ = launches_of((9, 2), grad, cell)
        assert longer - launches == 5 * expected
        assert uploads == 1


def test_a_tail_is_one_launch_however_long(cuda):
    assert launches_of((4, 2), False) == launches_of((9, 2), False)
    assert launches_of((4, 2), True) == launches_of((9, 2), True)


@pytest.mark.parametrize(
    ("hidden", "dtype", "has_tail"),
    [(128, "float32", True), (128, "float64", False), (256, "float32", False)],
)
def test_a_tail_is_for_weights_that_are_read_faster_than_a_step_is_done(
    cuda, hidden, dtype, has_tail
):
    """By default for 256 KiB: a block reads all weights in every step."""
    model, found = models.LSTM(D, hidden).astype(dtype), []
    for parameter in model.parameters():
        parameter.to("cuda")
    for length in (2, 5):
        with db.Graph("cuda", dtype) as graph:
            model(F.input(graph, np.ones((length, D))))
            graph.forward()
            found.append(graph.statistics.launches)
    assert found[1] - found[0] == (0 if has_tail else 3)


def test_gates_and_their_gradients_lie_where_the_first_product_was(cuda):
    batch = CASES["lstm"].batch((2,))
    with db.Graph(dtype="float64") as graph:
        program = CASES["lstm"].cell.compiled(graph, CASES["lstm"].form, (), batch.params)
    loop = program.on_device.loop
    assert [buffer.width for buffer in loop.storage.packed] == [4 * H, H, H, H]
    assert [buffer.width for buffer in loop.storage.temporary] == [4 * H]
    # So do their gradients later; all others are carried from step to step, or of the tokens.
    assert loop.gradients.buffer_of(program.backward_program.of_maps[0])[0].name == "P0"
    assert not loop.gradients.packed and not loop.gradients.temporary


def test_a_second_backward_is_refused(cuda):
    batch = CASES["lstm"].batch((), dtype="float32")
    for parameter in batch.parameters:
        parameter.to("cuda")
    with db.Graph("cuda") as graph:
        ys, _ = db.scan(CASES["lstm"].cell, F.input(graph, np.ones((2, D))), (H, H), batch.params)
        loss = F.sum(F.sum(ys))
        assert np.isfinite(loss.value)  # forward by itself, so that its values stay
        graph.backward(loss)
        with pytest.raises(db.errors.FreedError, match="Scan"):
            graph.backward(loss)


# Generated kernels --------------------------------------------------------------------------------


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
@pytest.mark.parametrize(
    "name", ["lstm", *map(exhaustive, ("many_functions", "columns_across_two_maps"))]
)
@pytest.mark.parametrize("architecture", [*map(exhaustive, (75, 80)), 90])
def test_generated_kernels_compile_for_every_architecture(name, architecture):
    batch = CASES[name].batch((2,))
    with db.Graph(dtype="float64") as graph:
        memory = tuple([F.constant(graph, 1.0, (2, w)) for w in CASES[name].memories])
        program = CASES[name].cell.compiled(graph, CASES[name].form, memory, batch.params)
    for real, precision in (("float", "float32"), ("double", "float32"), ("float", "bfloat16")):
        with multiplying(precision):
            source = program.on_device.source
        options = (f"-DREAL={real}",)
        found = nvrtc.compile_kernels(source.text, source.name, architecture, options)
        assert set(found) == set(source.kernels)
        for kernel, taken in found.items():
            registers = 128 if "tail" in kernel else 64  # of 512 threads, of 256
            assert taken.registers <= registers and not taken.spilled_bytes, kernel


BARRIER = re.compile(r"__syncthreads\(\);")


@db.cell
def two_maps(x, state, p):
    """Two maps of the state one after the other; threads read columns that others have written."""
    h, c = state
    c = F.tanh(F.linear(h, p.U) + F.linear(x, p.W)) + 0.5 * c
    swapped = F.concat(F.chunk(F.sigmoid(c), 2)[::-1])
    h = F.tanh(F.linear(swapped, p.V)) * c
    return h, (h, c)


def scan_with_tail(barrier=None):
    """Runs scans of a cell whose tail lacks one of its barriers; returns how many it has."""
    rng = np.random.default_rng(0)
    shapes = {"U": (H, H), "V": (H, H), "W": (H, 2)}
    params = SimpleNamespace(
        **{
            name: db.Parameter(rng.standard_normal(shape).astype(np.float32), name).to("cuda")
            for name, shape in shapes.items()
        }
    )
    with db.Graph("cuda") as graph, pytest.MonkeyPatch.context() as patch:
        xs = [F.input(graph, np.ones((length, 2))) for length in (3, 1)]
        program = two_maps.compiled(graph, ScanForm(2, (H, H), False), (), params)
        whole = program.on_device.source
        text = whole.text
        products, tails = text.index("// The products of a tail"), text.index("_tail(")
        kernels = text.index('extern "C"', products)  # of groups and products, until the tails
        found = [x for x in BARRIER.finditer(text, products) if not kernels < x.start() < tails]
        if barrier is not None:
            text = text[: found[barrier].start()] + text[found[barrier].end() :]
        kernels = Kernels(np.float32, queue().cupy)
        patch.setitem(queue()._kernels, np.dtype(np.float32), kernels)
        patch.setitem(program.on_device._sources, "float32", whole._replace(text=text))
        losses = [F.sum(F.sum(db.scan(two_maps, x, (H, H), params)[0])) for x in xs]
        graph.backward(F.sum(losses))
    return len(found)


@pytest.mark.exhaustive
def test_every_barrier_of_a_tail_is_needed():
    with devices.device("checked"):
        count = scan_with_tail()
        assert count == 10
        for barrier in range(count):
            with pytest.raises(db.errors.BackendError, match=r"KernelFault.*(race|never wrote)"):
                scan_with_tail(barrier)
            queue().discard()
