"""Products of few rows with their group in one kernel: which products, and what they compute."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.scan.arguments import ScanForm
from dynbatch.compiler.cuda import fused_product
from dynbatch.compiler.cuda import persistent as tail
from dynbatch.compiler.cuda.emit import Kernel
from dynbatch.compiler.cuda.fused_product import FusedProduct
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import multiplying
from dynbatch.testing.precision import dense_gradient
from tests.cells.cell_cases import CASES
from tests.compiler.test_differentiate import compiled
from tests.cuda import devices, nvrtc
from tests.marks import exhaustive


@db.cell
def fed(x, state, p):
    """Two products added to each other for four gates, a third beside a kernel of its own."""
    h, c, feed = state
    gates = x + F.linear(h, p.U, p.b) + F.linear(feed, p.V)
    i, f, g, o = F.chunk(gates, 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    feed = F.tanh(F.softmax(h) + F.linear(h, p.S))
    return feed, (h, c, feed)


def fed_parameters(width, dtype):
    rng = np.random.default_rng(3)
    shapes = {
        "U": (4 * width, width),
        "b": (4 * width,),
        "V": (4 * width, width),
        "S": (width, width),
    }
    return {
        name: db.Parameter((rng.normal(size=shape) / 4).astype(dtype), name)
        for name, shape in shapes.items()
    }


def run_fed(width, lengths, device, dtype, zeros=True):
    """Outputs of every sentence, and all gradients."""
    parameters = fed_parameters(width, dtype)
    for parameter in parameters.values():
        parameter.to(device)
    init = db.Parameter(np.full(width, 0.5, dtype)).to(device)
    with db.Graph(dtype=dtype, device=device) as graph:
        found = []
        for number, length in enumerate(lengths):
            values = np.random.default_rng(number).normal(size=(length, 4 * width))
            xs = F.input(graph, values.astype(dtype))
            first = (width, width, width) if zeros else (init, width, init)
            found.append(db.scan(fed, xs, first, SimpleNamespace(**parameters))[0].keep())
        graph.backward(F.sum([F.sum(ys * ys) for ys in found]))
        values = [ys.value for ys in found]
    return values, [dense_gradient(parameter) for parameter in parameters.values()]


@pytest.fixture
def few(monkeypatch):
    """Steps of few rows by their own launches, and never the tail's."""
    monkeypatch.setattr(tail, "TAIL_ROWS", 0)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(
    ("width", "lengths"),
    [
        (5, (2, 1, 3)),  # a tile that neither rows nor columns fill
        (33, (1,) * 17),  # more of each than a tile has
        exhaustive(130, (2, 1)),  # a product longer than one stretch
    ],
)
@pytest.mark.parametrize("dtype", ["float64", exhaustive("float32")])
def test_any_size_equals_the_cpu(cuda, few, width, lengths, zeros, dtype):
    tolerance = 1e-11 if dtype == "float64" else 2e-4
    expected = run_fed(width, lengths, "cpu", dtype, zeros)
    found = run_fed(width, lengths, "cuda", dtype, zeros)
    for one, other in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(cuda, few):
    together, _ = run_fed(33, (3, 2, *(1,) * 18), "cuda", "float32")
    alone, _ = run_fed(33, (3,), "cuda", "float32")
    assert np.array_equal(together[0], alone[0])


# What is one kernel -------------------------------------------------------------------------------


def kinds(items):
    """The kind of each launch of a step of few rows."""
    return [
        f"{item.first}-{item.last}"
        if isinstance(item, FusedProduct)
        else "group"
        if isinstance(item, Kernel)
        else item.opcode.name
        for item in items
    ]


def device_cell(width=8):
    parameters = SimpleNamespace(**fed_parameters(width, "float64"))
    with db.Graph(dtype="float64") as graph:
        return fed.compiled(
            graph, ScanForm(4 * width, (width,) * 3, False), (), parameters
        ).on_device


def test_products_are_with_the_group_that_follows_them():
    """Both products of the gates in one, and back the last two; where there is no group, alone."""
    cell = device_cell()
    assert kinds(cell.forward.items) == ["LINEAR", "LINEAR", "group", "GENERIC", "LINEAR", "group"]
    assert kinds(cell.forward.few) == ["0-2", "GENERIC", "4-5"]
    assert kinds(cell.backward.few) == ["group", "1-1", "GENERIC_GRADIENT", "group", "4-5"]


def test_products_that_are_added_have_one_sum():
    (fused, *_) = device_cell().forward.fused
    (lane,) = fused.tile_lanes
    assert [firsts for _, firsts in lane.terms] == [[0, 8, 16, 24], [0, 8, 16, 24]]
    assert (lane.columns, lane.tiles) == (8, 1)
    assert [fused.grid(rows) for rows in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_kernel_has_as_many_products_as_the_limit_and_no_more(monkeypatch):
    monkeypatch.setattr(fused_product, "MOST_TERMS", 2)
    assert kinds(device_cell().forward.few) == ["0-2", "GENERIC", "4-5"]
    monkeypatch.setattr(fused_product, "MOST_TERMS", 1)
    assert kinds(device_cell().forward.few) == ["LINEAR", "LINEAR", "group", "GENERIC", "4-5"]


def test_large_weights_are_multiplied_by_cublas(monkeypatch):
    cell = device_cell()
    assert cell.is_few(128, 4) and not cell.is_few(129, 4)
    monkeypatch.setattr(fused_product, "WEIGHT_BYTES", cell.loop.weights * 4)
    assert cell.is_few(128, 4) and not cell.is_few(128, 8)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.memories])
def test_every_product_is_in_one_kernel_of_few_rows(name):
    """No cell here has a product that its kernels leave to cuBLAS."""
    cell = compiled(name).on_device
    for each, step in ((cell.forward, cell.loop.forward), (cell.backward, cell.loop.backward)):
        done = [k for kernel in each.fused for k in range(kernel.first, kernel.last + 1)]
        assert len(done) == len(set(done))
        assert {k for run in step.runs for k in range(run.first, run.last + 1)} <= set(done)


WAYS = [("float", "float32"), ("double", "float32"), ("float", "tf32"), ("float", "bfloat16")]


@pytest.mark.skipif(bool(nvrtc.missing()), reason=str(nvrtc.missing()))
@pytest.mark.parametrize("architecture", [*map(exhaustive, (75, 80, 86, 89, 100, 120)), 90])
def test_kernels_keep_to_their_budgets(architecture):
    cell = device_cell(256)
    for real, precision in WAYS:
        with multiplying(precision):
            source = cell.source
        found = nvrtc.compile_kernels(source.text, source.name, architecture, (f"-DREAL={real}",))
        for kernel, taken in found.items():
            assert taken.registers <= 64 and not taken.spilled_bytes, kernel
            assert not taken.stack_bytes and taken.shared_bytes <= 48 * 1024, kernel


# Barriers -----------------------------------------------------------------------------------------

BARRIER = re.compile(r"__syncthreads\(\);")
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)')


def run_without(barrier=None):
    """Runs scans whose kernels lack one barrier, of `tile_product.cuh` or their own.

    Returns:
        the barriers whose code runs.
    """
    width, parameters = 5, fed_parameters(5, "float32")
    for parameter in parameters.values():
        parameter.to("cuda")
    params = SimpleNamespace(**parameters)
    with db.Graph("cuda") as graph, pytest.MonkeyPatch.context() as patch:
        program = fed.compiled(graph, ScanForm(4 * width, (width,) * 3, False), (), params)
        whole = program.on_device.source
        text = whole.text
        found = list(BARRIER.finditer(text, text.index('#line 1 "tile_product.cuh"')))
        if barrier is not None:
            text = text[: found[barrier].start()] + text[found[barrier].end() :]
        kernels = Kernels(np.float32, queue().cupy)
        patch.setitem(queue()._kernels, np.dtype(np.float32), kernels)
        patch.setitem(program.on_device._sources, "float32", whole._replace(text=text))
        xs = F.input(graph, np.ones((2, 4 * width)))
        graph.backward(F.sum(F.sum(db.scan(fed, xs, (width,) * 3, params)[0])))
    names = [[*KERNEL.finditer(text, 0, x.start())][-1:] for x in found]
    is_own = [bool(name) and name[0][1] in whole.kernels for name in names]
    return [
        number
        for number, (own, name) in enumerate(zip(is_own, names, strict=True))
        if not own or kernels.launches[name[0][1]]
    ]


@pytest.mark.exhaustive
def test_every_barrier_is_needed(few):
    with devices.device("checked"):
        found = run_without()
        assert len(found) >= 4 + 3
        for barrier in found:
            with pytest.raises(db.errors.BackendError, match=r"KernelFault.*(race|never wrote)"):
                run_without(barrier)
            queue().discard()
