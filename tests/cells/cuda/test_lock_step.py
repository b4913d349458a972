"""Scans of several cells of one program, side by side on a GPU, against the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.compiler.cuda import fused_product
from dynbatch.compiler.cuda import persistent as tail
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.testing.precision import dense_gradient
from tests.cells.cell_cases import CASES, D
from tests.cuda import devices
from tests.marks import exhaustive, quick

LENGTHS = (3, 1, 0, 2, 3)
NAMES = [
    "lstm", "states_are_linear_maps", "token_map_read_twice",
    *map(exhaustive, ("lstm_by_gates", "layer_norm_lstm", "additive_attention_in_the_recurrence",
                      "own_node_over_the_memory", "one_weight_twice", "choices")),
]  # fmt: skip

# Without operators that have kernels of their own.
WHOLE = ["lstm", "gru", "lstm_by_gates", "states_are_linear_maps", "overlapping_slices", "choices"]


def parameters(case, count, device):
    """Sets of parameters, one for each run."""
    rng = np.random.default_rng(0)
    return [
        {name: db.Parameter(rng.normal(size=shape), name).to(device)
         for name, shape in case.shapes.items()}
        for _ in range(count)
    ]  # fmt: skip


def results(case, device, count, given, lengths=LENGTHS, longer=0):
    """Outputs and gradients of scans by cells of one program; launches and uploads.

    Args:
        count:  of scans; every second one runs from the end.
        given:  whether their first states are given.
        longer: tokens more that the sentences of the last scan have.
    """
    sets, rng = parameters(case, count, device), np.random.default_rng(1)
    with db.Graph(dtype="float64", device=device) as graph:
        losses, found = [], []
        for length in lengths:
            tokens = F.input(graph, rng.normal(size=(length, D)))
            more = F.input(graph, rng.normal(size=(length + longer, D)))
            memory = tuple([F.input(graph, rng.normal(size=(2, w))) for w in case.memories])
            init = [F.input(graph, rng.normal(size=w)) if given else w for w in case.states]
            state = init[0] if case.single else tuple(init)
            for number, values in enumerate(sets):
                ys, last = db.scan(
                    case.cell, more if number == count - 1 and longer else tokens, state,
                    SimpleNamespace(**values, scale=0.5), memory or None, reverse=number % 2 > 0,
                )  # fmt: skip
                parts = [last] if case.single else [*last]
                found.append(ys.keep())
                losses.append(F.sum(ys * ys) + F.sum([F.sum(part) for part in parts]))
        graph.backward(F.sum(losses))
        cost = graph.statistics.launches, graph.statistics.uploads
        values = [ys.value for ys in found]
    return values + [dense_gradient(p) for each in sets for p in each.values()], cost


def assert_equal_to_cpu(case, *arguments, **named):
    expected, _ = results(case, "cpu", *arguments, **named)
    found, _ = results(case, "cuda", *arguments, **named)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "few"), [(0, 0), (0, 128), (2, 2)])
@pytest.mark.parametrize("given", [False, True])
def test_two_and_three_scans_side_by_side(cuda, monkeypatch, name, rows, few, given):
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    assert_equal_to_cpu(CASES[name], 2 + (few == 2), given)


@pytest.mark.parametrize(("rows", "few"), [(0, 0), (0, 128), (64, 0)])
def test_no_thread_reads_what_another_run_writes(monkeypatch, rows, few):
    monkeypatch.setattr(tail, "TAIL_ROWS", rows)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    with devices.device("gpu" if devices.has_gpu() else "checked"):
        assert_equal_to_cpu(CASES["lstm"], 2, True)


@pytest.mark.parametrize(("few", "a_step"), [(0, 4), (128, 2)])
def test_directions_share_all_launches_of_a_step(cuda, monkeypatch, few, a_step):
    """A step of both passes has as many launches for three scans as for one."""
    monkeypatch.setattr(tail, "TAIL_ROWS", 0)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    for count in (1, 2, 3):
        _, short = results(CASES["lstm"], "cuda", count, True, (4, 2))
        _, long = results(CASES["lstm"], "cuda", count, True, (9, 2))
        assert long[0] - short[0] == 5 * a_step
        assert long[1] == 1


def test_gathers_and_products_around_the_loops_are_joined(cuda):
    counts, found = queue().kernels("float64").launches, []
    for count in (1, 2):
        before, products = counts["gather_many"], queue()._handles.products
        results(CASES["lstm"], "cuda", count, True)
        found.append((counts["gather_many"] - before, queue()._handles.products - products))
    assert found[0] == found[1]


@pytest.mark.parametrize("few", [0, 128])
def test_scans_of_other_steps_stay_apart(cuda, monkeypatch, few):
    monkeypatch.setattr(tail, "TAIL_ROWS", 0)
    monkeypatch.setattr(fused_product, "FEW_ROWS", few)
    assert_equal_to_cpu(CASES["lstm"], 3, True, longer=2)


def test_two_runs_give_the_same_bits(cuda):
    one, _ = results(CASES["lstm"], "cuda", 2, True)
    other, _ = results(CASES["lstm"], "cuda", 2, True)
    assert all([np.array_equal(x, y) for x, y in zip(one, other, strict=True)])


# A whole scan in one launch -----------------------------------------------------------------------


@pytest.fixture
def whole_scans(monkeypatch):
    """Each pass of scans in one launch, however many sentences there are."""
    monkeypatch.setattr(tail, "TAIL_ROWS", 64)


@pytest.mark.parametrize("way", devices.ways())
@pytest.mark.parametrize("name", quick(["lstm", "gru"], WHOLE))
def test_a_whole_scan_equals_the_cpu(whole_scans, way, name):
    with devices.device(way):
        assert_equal_to_cpu(CASES[name], 2, name == "lstm", lengths=(9, 20, 0, *[5] * 20))


@pytest.mark.parametrize("count", [1, 3])
def test_a_whole_scan_is_one_launch_for_all_directions(cuda, whole_scans, count):
    counts = queue().kernels("float64").launches
    for lengths in ((4, 2), (40, *[17] * 30)):
        before = counts.copy()
        results(CASES["lstm"], "cuda", count, True, lengths)
        loops = {name: n for name, n in (counts - before).items() if name.startswith("cell_")}
        assert sorted(loops.values()) == [1, 1]  # forward and back


# The launches of a training step ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_launches_of_a_bidirectional_tagger_of_64_sentences(cuda, seed):
    """Two launches a step of both directions while more than 16 sentences run, and 38 others."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(1, rng.lognormal(3, 0.59, 64)).astype(int)
    encoder = models.LSTM(4, 4, bidirectional=True, rng=0)
    output = models.Linear(8, 3, rng=0)
    table = db.Parameter(rng.normal(size=(20, 4)).astype(np.float32))
    for parameter in [*encoder.parameters(), *output.parameters(), table]:
        parameter.to("cuda")
    with db.Graph("cuda") as graph:
        losses = []
        for length in lengths:
            words = F.lookup(graph, table, rng.integers(0, 20, length))
            logits = output(encoder(words))
            losses.append(F.cross_entropy(logits, rng.integers(0, 3, length)))
        graph.backward(F.mean(losses))
    steps = int(np.sort(lengths)[-17])
    assert (graph.statistics.launches, graph.statistics.uploads) == (2 * steps + 38, 1)
