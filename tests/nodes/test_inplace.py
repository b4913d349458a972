"""Node types that say so may write their output over an input, and a gradient over another."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import backend
from dynbatch import nodes as F
from dynbatch.batcher.steps.parameter_gradients import StepGradients
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.operation import Retain
from dynbatch.nodes.unary.node_types import NODE_TYPES, Tanh
from dynbatch.ragged import packed
from tests.marks import exhaustive
from tests.node_cases import CASES
from tests.nodes.test_contract import as_nodes, kinds_in, parameters_of, sentences_of


def is_inplace(kind):
    return issubclass(kind, db.Operation) and (kind.inplace_forward or kind.inplace_backward)


def has_inplace_nodes(case):
    with db.Graph(dtype="float64") as graph:
        (arguments,) = sentences_of(case, [3])
        case.build(graph, *as_nodes(graph, arguments), *parameters_of(case))
        return any(is_inplace(type(node)) for node in graph._nodes)


INPLACE = [case for case in CASES if has_inplace_nodes(case)]


pytestmark = pytest.mark.usefixtures("block")


def batches_of(case, dtype, device):
    """Batches of the node types in question, one of each signature in a case."""
    parameters = parameters_of(case, dtype)
    with db.Graph(dtype=dtype, seed=0) as graph:
        for arguments in sentences_of(case):
            case.build(graph, *as_nodes(graph, arguments), *parameters)
        groups = {}
        for node in graph._nodes:
            if is_inplace(type(node)):
                groups.setdefault(node.sig, []).append(node)
    for parameter in parameters:
        parameter.to(device)
    where = backend.device(device)
    return [Batch(nodes, np.dtype(dtype), where) for nodes in groups.values()]


DOMAINS = {"Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.1, 1.8)}
"""Of types whose values outside are NaN."""


class Run:
    """Forward and backward of a batch on arrays of its own, some of them the same memory."""

    def __init__(self, batch, device):
        self.batch, self.kind = batch, type(batch.first)
        batch.gradients = StepGradients(set(), set())
        self.nodes = batch.nodes
        self.places = [[node.inputs[k] for node in self.nodes] for k in range(len(self.inputs()))]
        self.asarray = queue().cupy.asarray if device == "cuda" else np.array
        generator = np.random.default_rng(4)
        low, high = DOMAINS.get(self.kind.__name__, (0.2, 1.8))
        self.xs = [generator.uniform(low, high, size(nodes)) for nodes in self.places]
        self.dy = generator.standard_normal(size(self.nodes))

    def inputs(self):
        return self.nodes[0].inputs

    def ragged(self, flat, nodes):
        return packed(flat, nodes)

    def array(self, values):
        return self.asarray(np.asarray(values).astype(self.batch.dtype))

    def forward(self, over=None):
        """The output, written over input `over` or into memory of its own."""
        xs = [self.array(x) for x in self.xs]
        out = self.array(np.full(size(self.nodes), np.nan)) if over is None else xs[over]
        inputs = [self.ragged(x, nodes) for x, nodes in zip(xs, self.places, strict=True)]
        self.batch.saved = {
            name: self.array(np.full(shape, np.nan))
            for name, shape in self.kind.saved(self.batch).items()
        }
        self.kind.forward_batch(self.batch, self.ragged(out, self.nodes), *inputs)
        return host(out)

    def backward(self, wanted, over):
        """The wanted gradients, the last of them written over dy or into memory of its own."""
        retains = self.kind.retains
        self.batch.inputs = tuple(
            self.ragged(self.array(x), nodes) if retains.input(k) else None
            for k, (x, nodes) in enumerate(zip(self.xs, self.places, strict=True))
        )
        y = self.array(self.forward())
        self.batch.output = self.ragged(y, self.nodes) if retains.output else None
        dy = self.array(self.dy)
        dxs = [self.array(np.full(x.size, np.nan)) if w else None
               for x, w in zip(self.xs, wanted, strict=True)]  # fmt: skip
        if over:
            dxs[max(k for k, w in enumerate(wanted) if w)] = dy
        outputs = [None if dx is None else self.ragged(dx, nodes)
                  for dx, nodes in zip(dxs, self.places, strict=True)]  # fmt: skip
        self.kind.backward_batch(self.batch, self.ragged(dy, self.nodes), *outputs)
        left = [array for _, array in self.batch.gradients.dense]
        self.batch.gradients.dense.clear()
        return [host(array) for array in [*dxs, *left] if array is not None]


def size(nodes):
    return sum(node.rows * node.width for node in nodes)


def host(array):
    if isinstance(array, np.ndarray):
        return array
    queue().flush()
    return array.get()


# Of which inputs a gradient is asked for.
WANTED = {
    1: [(True,)],
    2: [(True, True), (True, False), (False, True)],
    3: [(True, True, True), (False, True, True), (False, False, True), (False, True, False)],
}


def same(found, expected):
    assert not np.isnan(expected).any()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [exhaustive("float32"), "float64"])
@pytest.mark.parametrize("case", INPLACE, ids=lambda case: case.name)
def test_memory_may_be_shared_where_a_type_says_so(case, dtype, device):
    for batch in batches_of(case, dtype, device):
        run = Run(batch, device)
        if run.kind.inplace_forward:
            expected = run.forward()
            for k, x in enumerate(run.xs):
                if x.size == expected.size:
                    same(run.forward(over=k), expected)
        if run.kind.inplace_backward and run.kind.differentiable:
            for wanted in WANTED[len(run.xs)]:
                for found, expected in zip(
                    run.backward(wanted, True), run.backward(wanted, False), strict=True
                ):
                    same(found, expected)


def test_the_types_that_say_so():
    kinds = {kind for case in INPLACE for kind in kinds_in(case) if issubclass(kind, db.Operation)}
    forward = {kind.__name__ for kind in kinds if kind.inplace_forward}
    backward = {kind.__name__ for kind in kinds if kind.inplace_backward}
    unary = {kind.__name__ for kind in NODE_TYPES.values()} - {"Detach"}
    selection = {
        "Equal", "Greater", "GreaterEqual", "IsEqual", "IsGreater", "IsGreaterEqual", "IsLess",
        "IsLessEqual", "IsNotEqual", "Maximum", "MaximumWithNumber", "Minimum",
        "MinimumWithNumber", "NotEqual", "Where",
    }  # fmt: skip
    both = unary | selection | {
        "Add", "Divide", "DivideByNumber", "DivideNumber", "InvertedDropout", "Multiply",
        "GatedUnit", "RaiseNumber", "RaiseTo", "Rotary", "Scale", "Shift", "Subtract",
    }  # fmt: skip
    assert backward == both | {"CumSum", "Detach", "LayerNormalization", "RmsNormalization"}
    assert forward == both | {"CumSum", "Detach", "LogSoftmax", "Softmax", "Sparsemax"}


class TwoPasses(Tanh):
    """tanh(x) · x, by a forward and a backward that read after they have begun to write."""

    __slots__ = ()
    retains = Retain(inputs=True)

    @classmethod
    def forward_batch(cls, batch, y, x):
        np.tanh(x.flat, out=y.flat)
        y.flat[...] *= x.flat

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        x = batch.inputs[0].flat
        dx.flat[...] = 1 - np.tanh(x) ** 2
        dx.flat[...] *= x
        dx.flat[...] += np.tanh(x)
        dx.flat[...] *= dy.flat


def test_a_users_type_does_not_inherit_what_its_own_kernels_may_not_bear():
    values = np.linspace(-1, 1, 6)
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, values).keep()
        loss = F.sum(2.0 * TwoPasses(x + 1.0))
        graph.backward(loss)
        gradient = x.gradient
    z = values + 1
    assert loss.value == pytest.approx(2 * (np.tanh(z) * z).sum())
    np.testing.assert_allclose(gradient, 2 * ((1 - np.tanh(z) ** 2) * z + np.tanh(z)))

    class Named(Tanh):
        __slots__ = ()

    class Sure(TwoPasses):
        __slots__ = ()
        inplace_forward = True

        @classmethod
        def forward_batch(cls, batch, y, x):
            np.multiply(x.flat, np.tanh(x.flat), out=y.flat)

    assert Named.inplace_forward and Named.inplace_backward
    assert Sure.inplace_forward and not Sure.inplace_backward
