"""What a cell reads of its parameters is noted, by whatever way it gets there."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch.cells.recorder import Recorder, is_unchanged, reads_of
from dynbatch.errors import GraphError
from dynbatch.models import Dropout, Linear, Module


def parameter():
    return db.Parameter(np.ones(2, np.float32))


class Block(Module):
    def __init__(self):
        self.linear = Linear(2, 3)
        self.drop = Dropout(0.5)
        self.gates = [parameter(), parameter()]
        self.width = 3

    @property
    def half(self):
        return self.width / 2

    def both(self):
        return self.gates[0], self.linear.weight


class Special(Linear):
    def __call__(self, x):
        return super().__call__(x)


def assert_noticed(params, read, change):
    """What `read` reads is handed on as it is; `change` makes a difference, other changes none."""
    recorder = Recorder(params)
    found = read(recorder)
    assert found == read(params)
    reads = reads_of(recorder)
    assert is_unchanged(params, reads)
    params.unread = 1
    assert is_unchanged(params, reads)
    change(params)
    assert not is_unchanged(params, reads)


def test_an_attribute():
    def change(p):
        p.W = parameter()

    assert_noticed(SimpleNamespace(W=parameter(), b=None), lambda p: p.W, change)


def test_a_number_is_compared_by_value():
    params = SimpleNamespace(scale=1000.5)
    recorder = Recorder(params)
    assert recorder.scale == 1000.5
    params.scale = float("1000.5")
    assert is_unchanged(params, reads_of(recorder))
    params.scale = 1000.25
    assert not is_unchanged(params, reads_of(recorder))


def test_true_is_not_one():
    params = SimpleNamespace(flag=1)
    recorder = Recorder(params)
    assert recorder.flag == 1
    params.flag = True
    assert not is_unchanged(params, reads_of(recorder))


def test_a_parameter_of_a_module_inside():
    def change(p):
        p.linear.weight = parameter()

    assert_noticed(Block(), lambda p: p.linear.weight, change)


def test_an_item_of_a_list():
    def change(p):
        p.gates[1] = parameter()

    assert_noticed(Block(), lambda p: p.gates[1], change)


def test_a_list_that_grows():
    assert_noticed(Block(), lambda p: [*p.gates], lambda p: p.gates.append(parameter()))


def test_unpacking():
    def change(p):
        p.pair = (p.pair[0], parameter())

    def read(p):
        a, b = p.pair
        return a, b

    assert_noticed(SimpleNamespace(pair=(parameter(), parameter())), read, change)


def test_a_dict():
    weights = {"W": parameter(), "b": parameter()}

    def change(p):
        p.weights["W"] = parameter()

    assert_noticed(SimpleNamespace(weights={**weights}), lambda p: p.weights["W"], change)
    assert_noticed(SimpleNamespace(weights={**weights}), lambda p: [*p.weights.items()], change)
    assert "W" in Recorder(weights) and "c" not in Recorder(weights)


def test_a_property():
    def change(p):
        p.width = 5

    assert_noticed(Block(), lambda p: p.half, change)


def test_what_a_method_reads():
    def change(p):
        p.gates[0] = parameter()

    assert_noticed(Block(), lambda p: p.both(), change)


@pytest.mark.parametrize("kind", [Linear, Special])
def test_what_a_called_module_reads(kind):
    block = Block()
    block.linear = kind(2, 3)
    with db.Graph() as graph:
        x = db.nodes.constant(graph, 1.0, (2,))
        recorder = Recorder(block)
        assert np.array_equal(recorder.linear(x).value, block.linear(x).value)
    block.linear.bias = parameter()
    assert not is_unchanged(block, reads_of(recorder))


def test_whether_a_module_trains():
    block = Block()
    recorder = Recorder(block)
    with db.Graph() as graph:
        recorder.drop(db.nodes.constant(graph, 1.0, (2,)))
    assert is_unchanged(block, reads_of(recorder))
    block.eval()
    assert not is_unchanged(block, reads_of(recorder))


def test_a_function_is_handed_on_and_noted():
    def change(p):
        p.activation = db.nodes.sigmoid

    assert_noticed(SimpleNamespace(activation=db.nodes.tanh), lambda p: p.activation, change)


def test_what_is_gone_has_changed():
    params = SimpleNamespace(W=parameter(), layers=[parameter()], weights={"W": 1})
    recorder = Recorder(params)
    _ = recorder.W, recorder.layers[0], recorder.weights["W"]
    reads = reads_of(recorder)
    for other in (SimpleNamespace(), SimpleNamespace(W=params.W, layers=[], weights={}), None):
        assert not is_unchanged(other, reads)


def test_a_cell_cannot_set_its_parameters():
    recorder = Recorder(SimpleNamespace(W=parameter(), table={}))
    with pytest.raises(GraphError, match="return what changes as a part of the state"):
        recorder.W = parameter()
    with pytest.raises(GraphError, match="a cell sets 'x' of its parameters"):
        recorder.table["x"] = 1
