"""Reads of a cell's parameters are noted, by whatever way it gets there."""

from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch.compiler.recorder import Recorder, reads_of
from dynbatch.compiler.traced import is_unchanged
from dynbatch.errors import GraphError
from dynbatch.models import Dropout, Linear, Module
from dynbatch.testing.precision import dense_gradient


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
    """Assert that `read`'s values are handed on and that only `change` makes a difference."""
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


def test_what_is_looked_for_in_vain_may_come_later():
    params = SimpleNamespace(W=parameter(), table={"a": 1})
    recorder = Recorder(params)
    assert getattr(recorder, "bias", None) is None and not hasattr(recorder, "gain")
    assert "b" not in recorder.table
    for change in (
        lambda p: setattr(p, "bias", parameter()),
        lambda p: setattr(p, "gain", parameter()),
        lambda p: p.table.update(b=2) or p.table.pop("a"),
    ):
        other = SimpleNamespace(W=params.W, table={"a": 1})
        assert is_unchanged(other, reads_of(recorder))
        change(other)
        assert not is_unchanged(other, reads_of(recorder))


class Mode(Enum):
    SUM = 1
    GATE = 2


@dataclass(slots=True)
class Slotted:
    W: object
    v: object = None


@dataclass(frozen=True)
class Rule:
    """Hashed by its value, as a static attribute of a node has to be."""

    reach: int
    sizes: tuple[object, ...] = ()


@pytest.mark.parametrize(
    ("params", "read", "change"),
    [
        (SimpleNamespace(mode=Mode.SUM), lambda p: p.mode is Mode.SUM, {"mode": Mode.GATE}),
        (SimpleNamespace(drop=Dropout(0.5)), lambda p: p.drop is None, {"drop": None}),
        (SimpleNamespace(at=partial(max, 1)), lambda p: p.at(2), {"at": partial(max, 3)}),
        (SimpleNamespace(sizes=[1, 2]), lambda p: p.sizes == [1, 2], {"sizes": [1, 3]}),
        (SimpleNamespace(sizes=[1, 2]), lambda p: p.sizes.index(2), {"sizes": [2, 1]}),
        (SimpleNamespace(sizes=[1, 2]), lambda p: bool(p.sizes), {"sizes": []}),
        (SimpleNamespace(drop=Dropout(0.5)), lambda p: bool(p.drop), {"drop": 0}),
        (SimpleNamespace(known={1, 2}), lambda p: 1 in p.known, {"known": {2}}),
        (SimpleNamespace(a=1), lambda p: sorted(vars(p)), {"b": 1}),
        (SimpleNamespace(inner=Slotted(1)), lambda p: p.inner.W, {"inner": Slotted(2)}),
        (SimpleNamespace(rule=Rule(1)), lambda p: {p.rule: 2}[Rule(1)], {"rule": Rule(2)}),
        (
            SimpleNamespace(rules=[Rule(1, (2, Rule(3)))]),
            lambda p: {p.rules[0]: 2}[Rule(1, (2, Rule(3)))],
            {"rules": [Rule(1, (2, Rule(4)))]},
        ),
        (SimpleNamespace(gates=[1, 2, 3]), lambda p: tuple(p.gates[1:]), {"gates": [1, 2, 4]}),
    ],
    ids=lambda given: "" if not callable(given) else None,
)
def test_what_tells_one_thing_from_another(params, read, change):
    recorder = Recorder(params)
    assert read(recorder) == read(params)
    assert is_unchanged(params, reads_of(recorder))
    for name, value in change.items():
        setattr(params, name, value)
    assert not is_unchanged(params, reads_of(recorder))


def test_a_frozen_dataclass_with_more_than_numbers_and_text_is_read_piece_by_piece():
    params = SimpleNamespace(rule=Rule(1, (Slotted(1), [2])))
    recorder = Recorder(params)
    assert (recorder.rule.reach, recorder.rule.sizes[0].W, recorder.rule.sizes[1][0]) == (1, 1, 2)
    params.rule.sizes[0].W = 3
    assert not is_unchanged(params, reads_of(recorder))


def test_what_changes_in_place_has_changed():
    params = SimpleNamespace(known={1}, mask=np.ones(3), inner=Slotted(parameter()))
    recorder = Recorder(params)
    _ = recorder.known, recorder.mask, recorder.inner.W
    changes = [lambda: params.known.add(2), lambda: params.mask.fill(0)]
    for change in [*changes, lambda: setattr(params.inner, "W", parameter())]:
        reads = {**reads_of(recorder)}
        assert is_unchanged(params, reads)
        change()
        assert not is_unchanged(params, reads)
        recorder = Recorder(params)
        _ = recorder.known, recorder.mask, recorder.inner.W


# What parameters may be --------------------------------------------------------------------------


def layered(W, v):
    module = Module()
    module.layers, module.table = [W], {"v": v}
    return module


FORMS = {
    "a parameter": (lambda W, v: W, lambda p: (p, None)),
    "a list": (lambda W, v: [W, v], lambda p: p[0:2]),
    "a tuple": (lambda W, v: (W, v), lambda p: (p[-2], p[-1])),
    "a dict": (lambda W, v: {"W": W, "v": v}, lambda p: (p["W"], p.get("v"))),
    "a namespace": (lambda W, v: SimpleNamespace(W=W, v=v), lambda p: (p.W, p.v)),
    "a dataclass with slots": (Slotted, lambda p: (p.W, p.v)),
    "nested": (lambda W, v: {"a": [Slotted((W,)), {"v": v}]},
               lambda p: (p["a"][0].W[0], p["a"][1]["v"])),
    "a module": (layered, lambda p: (p.layers[0], p.table["v"])),
}  # fmt: skip


def scanned(cell, xs, params):
    return db.scan(cell, xs, 3, params)[0]


def called(cell, xs, params):
    h, outputs = db.nodes.constant(xs.graph, 0.0, (3,)), []
    for t in range(xs.rows):
        y, h = cell(xs[t], h, params)
        outputs.append(y)
    return db.nodes.stack(outputs)


def of_form(name):
    """A cell that takes its parameters in this form, a weight, a vector, and the form of them."""
    hold, take = FORMS[name]

    @db.cell
    def step(x, h, p):
        W, v = take(p)
        y = db.nodes.tanh(db.nodes.linear(x, W) + h)
        y = y if v is None else y * v
        return y, y

    rng = np.random.default_rng(0)
    W, v = db.Parameter(rng.normal(size=(3, 3))), db.Parameter(rng.normal(size=3))
    return step, W, v, hold(W, v)


def gradients(run, cell, W, v, params, **graph_options):
    with db.Graph(**{"dtype": "float64"} | graph_options) as graph:
        xs = db.nodes.input(graph, np.linspace(-1, 1, 12).reshape(4, 3))
        loss = db.nodes.sum(run(cell, xs, params) ** 2)
        graph.backward(loss)
    found = [np.zeros(p.shape) if p.grad is None else dense_gradient(p) for p in (W, v)]
    for p in (W, v):
        p.zero_grad()
    return found


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("run", [scanned, called])
def test_parameters_of_every_form(run, name):
    cell, W, v, params = of_form(name)
    expected = gradients(called, cell.function, W, v, params)
    for found, wanted in zip(gradients(run, cell, W, v, params), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11)
    assert np.abs(expected[0]).max() > 0.1


@pytest.mark.parametrize("name", ["a parameter", "a tuple", "nested"])
@pytest.mark.parametrize("run", [scanned, called])
def test_parameters_of_every_form_on_a_gpu(cuda, run, name):
    cell, W, v, params = of_form(name)
    expected = gradients(called, cell.function, W, v, params)
    W.to("cuda"), v.to("cuda")
    for found, wanted in zip(
        gradients(run, cell, W, v, params, device="cuda"), expected, strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-11)


def test_another_single_parameter_is_another_program():
    cell, W, v, _ = of_form("a parameter")
    other = db.Parameter(W.value * 2)
    for p in (W, other):
        expected = gradients(called, cell.function, p, v, p)
        np.testing.assert_allclose(gradients(scanned, cell, p, v, p)[0], expected[0], rtol=1e-11)
    assert len(cell.programs) == 2


def test_none_is_none_in_a_cell():
    @db.cell
    def plain(x, h, p):
        return (h, h + x) if p is None else (h, h)

    with db.Graph() as graph:
        _, last = db.scan(plain, db.nodes.constant(graph, 1.0, (3, 2)), 2)
        assert last.value.tolist() == [3, 3]
