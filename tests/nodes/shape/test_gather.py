import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.shape.gather import GatherRows
from dynbatch.nodes.shape.scatter import scattered
from dynbatch.ragged import packed
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 4) for length in (3, 0, 1, 9, 2)]
OCCUPIED = [(length, 4) for length in (3, 1, 9, 2)]


def test_gathering_and_repeating_equal_torch():
    torch = import_torch()
    assert_equals_torch(
        lambda x: F.gather_rows(x, [0, 2, 2, 1, 0, 0]),
        lambda x: torch.index_select(x, 0, torch.tensor([0, 2, 2, 1, 0, 0])),
        [(3, 4), (8, 4)],
    )
    assert_equals_torch(lambda x: F.repeat(x, 3), lambda x: x.repeat(3, 1), SENTENCES)
    assert_equals_torch(lambda x: F.repeat(x, 3), lambda x: x.repeat(3, 1), [(4,), (4,)])
    assert_equals_torch(F.transpose, lambda x: x.T, OCCUPIED)


def test_gathering_no_rows_gives_none_even_from_an_empty_sentence():
    with db.Graph() as graph:
        assert F.gather_rows(F.input(graph, np.zeros((0, 4))), []).value.shape == (0, 4)


@pytest.mark.parametrize(
    "empty",
    [
        lambda x, p: x[0:0],
        lambda x, p: p[0:0],
        lambda x, p: p.T[0:0][:, :3],
        lambda x, p: x.T[0:0].T[:3].T,
        lambda x, p: F.concat([p[0:0], x[0:0]], dim=0),
        lambda x, p: F.gather_rows(p, []),
    ],
)
def test_a_matrix_without_rows_is_transposed_whatever_it_was_cut_from(empty):
    values = np.arange(12.0).reshape(4, 3)
    parameter = db.Parameter(values.copy())
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, values).keep()
        y = empty(x, F.parameter(graph, parameter))
        product = (y.T @ y).keep()
        assert y.shape == (0, 3) and y.T.shape == (3, 0) and y.T.T.shape == (0, 3)
        graph.backward(F.sum(product) + F.sum(x) + F.sum(F.sum(y.T, dim=-1)))
        assert np.array_equal(product.value, np.zeros((3, 3)))
        assert np.array_equal(x.gradient, np.ones((4, 3)))


@pytest.mark.parametrize("widths", [(4, 4, 4), (4, 2, 7)], ids=["one width", "several widths"])
def test_ids_of_rows_are_counted_among_the_tables(widths):
    with db.Graph() as graph:
        xs = [F.input(graph, np.ones((n, w))) for n, w in zip((3, 1, 5), widths, strict=True)]
        ids = ([0, 2, 2, 1], [0], [4, 0])
        ys = [F.gather_rows(x, rows) for x, rows in zip(xs, ids, strict=True)]
        back = [scattered(y, rows, x.rows) for x, y, rows in zip(xs, ys, ids, strict=True)]
        whole = packed(np.ones(sum(x.rows * x.width for x in xs)), xs)
        for nodes in (ys, back):
            batch = Batch(nodes, np.dtype("float32"))
            told = type(nodes[0]).index_bytes(batch)
            assert told == 8 * 4 + GatherRows.packed_ids(batch, whole).nbytes
