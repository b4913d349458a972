"""A frozen weight or bias gets no gradient, and does not keep the other from its own."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels.cuda.blas import segment_entries
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.linear import MatMul
from dynbatch.nodes.operation import ELEMENT
from dynbatch.ragged import packed


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_gets_no_gradient(frozen):
    weight, bias = db.Parameter(np.ones((2, 3)), "weight"), db.Parameter(np.zeros(2), "bias")
    parameters = {"weight": weight, "bias": bias}
    parameters.pop(frozen).frozen = True
    with db.Graph(dtype="float64") as graph:
        y = F.linear(F.input(graph, np.ones((4, 3))), weight, bias)
        graph.backward(F.sum(y))
    assert {"weight": weight, "bias": bias}[frozen].grad is None
    (trained,) = parameters.values()
    np.testing.assert_array_equal(trained.grad, np.full(trained.shape, 4.0))


def test_the_table_of_products_and_what_they_cost_are_counted():
    with db.Graph() as graph:
        shapes = [((4, 2), (2, 3)), ((0, 2), (2, 3)), ((2, 5, 2), (2, 2, 3)), ((2, 1, 2), (2, 3))]
        pairs = [(F.input(graph, np.ones(a)), F.input(graph, np.ones(b))) for a, b in shapes]
        batch = Batch([a @ b for a, b in pairs], np.dtype("float32"))
        columns = [*zip(*pairs, strict=True), batch.nodes]
        values = [packed(np.ones(sum([x.rows * x.width for x in c])), c) for c in columns]
        table, _ = segment_entries(*[x.cut([1, 1, 2, 1]) for x in values], False)
        assert MatMul.index_bytes(batch) == table.nbytes
        rows = 4 + 0 + 2 * 5 + 2 * 1
        assert MatMul.operations(batch) == rows * 2 * 3 + ELEMENT * rows * 3
