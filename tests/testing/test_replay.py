"""A dumped graph is the same graph, runs under every policy, and shows what differs."""

import json
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.cells.calls import group_run
from dynbatch.errors import CheckError, GraphError, NumericError
from dynbatch.nodes.unary.node_types import Tanh
from dynbatch.testing import load_graph, replay
from dynbatch.testing.__main__ import main
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import gradient_of, outputs_of, probe, random_like
from dynbatch.testing.random_graphs import draw
from tests.marks import quick
from tests.node_cases import CASES
from tests.nodes.test_contract import as_nodes, over, parameters_of, sentences_of

OWN = """
import dynbatch as db
import numpy as np

class Tripled(db.Node):
    __slots__ = ("shift",)
    any_shape = True

    def infer_shape(self, x):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        np.multiply(x.flat, 3, out=y.flat)
        y.flat[...] += batch.first.shift if {wrong} else np.repeat(batch.array("shift"), x.lengths)

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        if dx is not None:
            np.multiply(dy.flat, 3, out=dx.flat)
"""


PLAIN = [case for case in CASES if case.name != "block"]  # which comes back as its operators


@over(quick(PLAIN[::3], PLAIN))
def test_every_node_type_comes_back(case, tmp_path):
    parameters = parameters_of(case)
    path = tmp_path / "graph.npz"
    with db.Graph(dtype="float64", seed=5) as graph:
        outputs = []
        for arguments in sentences_of(case):
            outputs += outputs_of(case.build, graph, [*as_nodes(graph, arguments), *parameters])
        for node in outputs:
            node.keep()
        loss = probe(outputs, random_like(outputs, 3))
        graph.backward(loss)
        graph.dump(path)
        expected = [loss.value, *[node.value for node in outputs if node.index != loss.index]]
        kept = [gradient_of(node) for node in outputs]
        kinds = [(type(n), n.shapes) for n in graph._nodes]
    with load_graph(path) as loaded:
        assert [(type(n), n.shapes) for n in loaded.nodes] == kinds
        loaded.run()
        (again,) = loaded.losses
        nodes = [loaded.nodes[node.index] for node in outputs]
        found = [again.value, *[node.value for node in nodes if node.index != again.index]]
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one, other, equal_nan=True)
        for one, other in zip([gradient_of(node) for node in nodes], kept, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("seed", quick(range(3), range(5)))
def test_random_graphs_have_no_difference(seed, tmp_path):
    random_graph = draw(seed, most_instructions=8)
    with db.Graph(dtype="float64", seed=1) as graph:
        built = random_graph.build(graph)
        graph.backward(built.loss)
        graph.dump(tmp_path / "graph.npz")
        loss = built.loss.value
    with load_graph(tmp_path / "graph.npz") as loaded:
        loaded.run()
        assert loaded.losses[-1].value == loss
    assert replay(tmp_path / "graph.npz") is None


def test_a_model_with_scans_dropout_and_a_folded_loss_comes_back(tmp_path):
    model = models.Seq2Seq(8, 9, 5, 6, attention="additive", dropout=0.3, rng=0)
    parameters = {parameter.name: parameter for parameter in model.parameters()}
    path = tmp_path / "model.npz"
    with db.Graph(seed=4) as graph:
        losses = [model.loss(graph, [3, 4, 5], [7, 3]), model.loss(graph, [5], [4, 4, 3])]
        _ = losses[0].value
        graph.backward(F.mean(losses))
        graph.dump(path)
    with load_graph(path) as loaded:
        loaded.run()
        assert len(loaded.graph.plans) == len(graph.plans) == 2
        found = {p.name: dense_gradient(p) for p in loaded.parameters}
    assert found.keys() <= parameters.keys()
    for name, gradient in found.items():
        assert np.array_equal(gradient, dense_gradient(parameters[name])), name


@pytest.mark.parametrize("name", ["matmul", "precision"])
def test_a_graph_comes_back_with_what_it_rounds_to(tmp_path, name):
    model, path = models.Linear(70, 9, rng=0), tmp_path / "graph.npz"
    x = np.random.default_rng(1).standard_normal((6, 70)).astype(np.float32)
    with db.Graph(**{name: "bfloat16"}) as graph:
        y = model(F.input(graph, x))
        rounded = y.value
        graph.dump(path)
    for precision, is_equal in (("bfloat16", True), ("float32", False)):
        with load_graph(path, **({} if is_equal else {name: precision})) as loaded:
            loaded.run()
            assert getattr(loaded.graph, name) == precision
            assert np.array_equal(loaded.nodes[y.index].value, rounded) == is_equal
    assert replay(path) is None


@db.cell
def gate(x, below, p):
    h, (c, count) = below
    c = F.sigmoid(F.linear(x, p["w"]) + F.tanh(F.parameter(x.graph, p["shift"]))) * c + h
    return F.tanh(c), (c, count + 1.0)


def gated_trees(graph):
    """Calls of calls, of zeros, sums, parts, mixed tuples and operators between; two phases."""
    p = {
        "w": db.Parameter(np.full((2, 3), 0.1), "w"), "shift": db.Parameter(np.ones(2), "shift")
    }  # fmt: skip
    losses = []
    for length in (3, 1, 2):
        xs = F.input(graph, np.full((length, 3), 0.1 * length)).keep()
        one = F.constant(graph, 1.0, ())
        leaves = [gate(xs[t], (2, (2, one)), p) for t in range(length)]
        h, state = gate(xs[0], db.total(leaves), p)
        h, (c, count) = gate(xs[-1], (F.exp(h), state), p)
        rows, _ = db.stack([*leaves, (h, (c, count))][:length])
        losses.append(F.sum(rows * rows) + F.sum(h * c) * count)
        xs[0].keep()
    return losses


@pytest.mark.parametrize("reads", [False, True])
def test_calls_of_cells_come_back_as_calls(reads, tmp_path):
    path = tmp_path / "graph.npz"
    with db.Graph(dtype="float64", policy="by_depth") as graph:
        losses = gated_trees(graph)
        if reads:
            graph.values(losses[:1])
        loss = F.mean(losses)
        graph.backward(loss)
        graph.dump(path)
        text = str(graph.plans[-1])
        batches = [(row.kind, row.inside) for row in graph._record().rows if row.inside]
    with load_graph(path) as loaded:
        assert [node.label() for node in loaded.nodes] == [n.label() for n in loaded.graph.nodes]
        loaded.run()
        found = [(r.kind, r.inside) for r in loaded.graph._record().rows if r.inside]
        assert found == batches and len(batches) == 2 * (1 + reads)
        assert str(loaded.graph.plans[-1]) == text
        assert loaded.losses[-1].value == loss.value
    assert replay(path) is None


def test_a_fault_in_a_region_is_shown_at_the_first_call(tmp_path, monkeypatch):
    path = tmp_path / "graph.npz"
    with db.Graph(dtype="float64") as graph:
        losses = gated_trees(graph)
        graph.dump(path)
        first = [node for node in graph.nodes if type(node).__name__ == "Call"][6]
        assert len(losses) == 3
    gather = group_run.gather

    def wrong(sources, table, first, end, out):
        gather(sources, table, first, end, out)
        if end - first == 3 and out.shape[1] == 2:
            out[first + 1] += 0.1

    monkeypatch.setattr(group_run, "gather", wrong)
    report = replay(path)
    assert f"{first.label()}[0], sentence 1: value" in report


def test_a_planted_fault_is_shown_at_the_first_node(tmp_path, capsys):
    path = tmp_path / "graph.npz"
    with db.Graph(dtype="float64") as graph:
        ys = [F.tanh(F.input(graph, [0.1 * k, 1.0]).keep()) for k in range(3)]
        zs = [F.sum(F.exp(y)) for y in ys]
        graph.backward(F.sum(zs))
        graph.dump(path)
    forward = Tanh.forward_batch.__func__

    def wrong(cls, batch, y, *xs):
        forward(cls, batch, y, *xs)
        if len(batch.nodes) > 1:
            y.flat[3] += 1e-3

    with patch.object(Tanh, "forward_batch", classmethod(wrong)):
        report = replay(path)
        assert f"{ys[1].label()}, sentence 1: value, element (1,)" in report
        assert "under by_depth" in report
        assert main([str(path), "--policy", "by_agenda"]) == 1
        assert ys[1].label() in capsys.readouterr().out
        assert "CheckError" in replay(path, ["by_agenda"], check=True)
    assert main([str(path), "--check"]) == 0
    assert "no difference" in capsys.readouterr().out


def test_a_run_that_failed_is_dumped_and_fails_again(tmp_path):
    path = tmp_path / "graph.npz"
    with db.Graph(guard=True) as graph:
        good = F.input(graph, [1.0]).value
        loss = F.sum(F.log(F.input(graph, [0.0, good[0]]).keep()))
        with pytest.raises(NumericError, match="Log #"):
            graph.backward(loss)
        graph.dump(path)
    assert "NumericError: Log #" in replay(path, guard=True)
    with load_graph(path, guard=True) as loaded, pytest.raises(NumericError, match="Log #"):
        loaded.run()


def test_errors_of_check_and_guard_tell_about_dump():
    with db.Graph(guard=True) as graph, pytest.raises(NumericError, match=r"graph\.dump\("):
        _ = F.log(F.input(graph, [0.0])).value

    def wrong(cls, batch, y, *xs):
        y.flat[...] = len(batch.nodes)

    with patch.object(Tanh, "forward_batch", classmethod(wrong)):
        with db.Graph(check=True) as graph, pytest.raises(CheckError, match=r"graph\.dump\("):
            graph.values([F.tanh(F.input(graph, [0.0])) for _ in range(2)])


def own_type(folder, wrong):
    Path(folder, "tripled_for_replay.py").write_text(OWN.format(wrong=wrong))


def test_node_types_of_the_user_are_imported(tmp_path, monkeypatch):
    own_type(tmp_path, wrong=True)
    monkeypatch.syspath_prepend(tmp_path)
    from tripled_for_replay import Tripled

    path = tmp_path / "graph.npz"
    with db.Graph(dtype="float64") as graph:
        ys = [Tripled(F.input(graph, [1.0]).keep(), shift=float(k)) for k in range(2)]
        graph.backward(F.sum([F.sum(y) for y in ys]))
        graph.dump(path)
    assert f"{ys[1].label()}, sentence 1: value" in replay(path)
    monkeypatch.undo()
    del sys.modules["tripled_for_replay"]
    with pytest.raises(GraphError, match=r"tripled_for_replay.*cannot be imported"):
        load_graph(path)


def test_what_cannot_be_dumped_is_named(tmp_path):
    class Holding(Tanh):
        __slots__ = ("function",)

    with db.Graph() as graph:
        node = Holding(F.input(graph, [1.0]), function=len)
        with pytest.raises(GraphError, match=rf"{node.label()}: its attribute 'function'"):
            graph.dump(tmp_path / "graph.npz")
    assert not (tmp_path / "graph.npz").exists()
    with pytest.raises(GraphError, match="closed"):
        graph.dump(tmp_path / "graph.npz")


def test_other_files_and_types_that_are_not_nodes_are_refused(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, a=np.ones(2))
    with pytest.raises(GraphError, match="does not hold a graph"):
        load_graph(path)
    with db.Graph() as graph:
        F.input(graph, [1.0])
        graph.dump(path)
    with np.load(path) as file:
        arrays = dict(file)
    for change, message in (({"version": 99}, "version 99"), ({}, "is not a subclass of")):
        document = json.loads(arrays["graph"].tobytes()) | change
        document["nodes"][0]["type"] = "os:PathLike"
        text = np.frombuffer(json.dumps(document).encode(), np.uint8)
        np.savez(path, **(arrays | {"graph": text}))
        with pytest.raises(GraphError, match=message):
            load_graph(path)


def test_the_command(tmp_path, monkeypatch, capsys):
    with db.Graph() as graph:
        graph.backward(F.sum(F.tanh(F.input(graph, [1.0]).keep())))
        graph.dump(tmp_path / "graph.npz")
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "graph.npz"), "--check", "--guard"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(Path(db.__file__).parent / "testing"), run_name="__main__")
    printed = capsys.readouterr()
    assert (end.value.code, printed.err) == (0, "")
    assert "3 nodes" in printed.out and "no difference" in printed.out


def test_a_graph_goes_from_one_device_to_the_other(device, tmp_path):
    path = tmp_path / "graph.npz"
    weight = db.Parameter(np.array([[0.5, -1.0]]), "weight")
    weight.to(device)
    with db.Graph(device, dtype="float64") as graph:
        ys = [F.tanh(F.linear(F.input(graph, [[0.1, k]] * 2), weight)).keep() for k in range(3)]
        graph.backward(F.mean([F.sum(y) for y in ys]))
        graph.dump(path)
        expected = [y.value for y in ys]
    with load_graph(path, device="cpu") as loaded:
        loaded.run()
        found = [loaded.nodes[y.index].value for y in ys]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert replay(path, device=device) is None
