from functools import partial

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, ShapeError
from dynbatch.nodes.gated import GatedHalves, GatedUnit
from dynbatch.testing import check_batching, check_gradient
from tests.messages import raised
from tests.torch_parity import assert_equals_torch, import_torch

UNITS = {
    "swiglu": F.swiglu,
    "geglu": F.geglu,
    "geglu of tanh": partial(F.geglu, approximate="tanh"),
    "reglu": F.reglu,
}
UNIT = pytest.mark.parametrize("name", UNITS)
LENGTHS = [0, 1, 7, 70]


def activation(torch, name):
    functional = torch.nn.functional
    return {
        "swiglu": functional.silu,
        "geglu": functional.gelu,
        "geglu of tanh": partial(functional.gelu, approximate="tanh"),
        "reglu": functional.relu,
    }[name]


@UNIT
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_torch(name, dtype):
    torch = import_torch()
    f, unit = activation(torch, name), UNITS[name]
    assert_equals_torch(
        unit,
        lambda gate, value: f(gate) * value,
        [[(n, 6), (n, 6)] for n in LENGTHS] + [[(6,), (6,)]],
        dtype=dtype,
    )
    assert_equals_torch(
        unit,
        lambda x: f(x[..., :3]) * x[..., 3:],
        [(n, 6) for n in LENGTHS] + [(6,)],
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_glu_equals_torch(dtype):
    torch = import_torch()
    sentences = [(n, 6) for n in LENGTHS] + [(6,)]
    assert_equals_torch(F.glu, torch.nn.functional.glu, sentences, dtype=dtype)


@UNIT
def test_batches_and_differentiates(name):
    unit = UNITS[name]
    pairs = [[(n, 4), (n, 4)] for n in LENGTHS] + [[(3, 7), (3, 7)], [(5,), (5,)]]
    check_batching(lambda graph, gate, value: unit(gate, value), shapes=pairs)
    check_batching(lambda graph, x: unit(x), shapes=[[(n, 4)] for n in LENGTHS] + [[(4,)]])
    for shape in [(0, 4), (1, 4), (5, 4), (4,)]:
        check_gradient(lambda graph, x: unit(x), shapes=[shape])
        check_gradient(lambda graph, gate, value: unit(gate, value), shapes=[shape, shape])


def test_a_value_may_be_its_own_gate():
    check_gradient(lambda graph, x: F.swiglu(x, x), shapes=[(3, 4)])


def test_nothing_is_kept_beside_the_inputs():
    for kind in (GatedUnit, GatedHalves):
        assert not kind.saves and not kind.retains.output


def test_far_from_zero_a_gate_is_open_or_shut():
    far = [-1e30, -300.0, 300.0, 1e30]
    with db.Graph() as graph:
        for unit in UNITS.values():
            gate, value = F.input(graph, far).keep(), F.input(graph, np.full(4, 2.0)).keep()
            y = unit(gate, value)
            assert y.value == pytest.approx([0, 0, 600, 2e30])
            graph.backward(F.sum(y))
            assert gate.gradient.tolist() == [0, 0, 2, 2]
            assert value.gradient == pytest.approx([0, 0, 300, 1e30])


def test_wrong_arguments_are_refused():
    with db.Graph() as graph:
        x, odd = F.input(graph, np.ones((3, 4))), F.input(graph, np.ones((3, 5)))
        raised(
            ShapeError, lambda: F.swiglu(x, odd), "gate (3, 4) and value (3, 5) differ", "rule: "
        )
        raised(ShapeError, lambda: F.reglu(odd), "x (3, 5): 5 is no multiple of 2", "rule: ")
        raised(ShapeError, lambda: F.glu(F.sum(x)), "has no dim -1")
        raised(ShapeError, lambda: F.swiglu(F.sum(x)), "x has shape ()")
        raised(ShapeError, lambda: F.glu(x, 0), "glu over dim 0", "F.chunk(x, 2, dim=0)")
        raised(DtypeError, lambda: F.swiglu(x, 2.0), "swiglu: a node expected")
        raised(ArgumentError, lambda: F.geglu(x, approximate="new"), "a GELU: approximate is 'new'")
