import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import EmptyBatchError, ShapeError
from dynbatch.nodes.shape.structure import Concat
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 4) for length in (3, 0, 1, 9, 2)]
VECTORS = [[(3,), (3,)], [(3,), (3,)], [(3,), (3,)]]


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, x: F.concat([x, F.reverse(x), x]),
        lambda graph, x: F.concat([x, x], dim=0),
        lambda graph, x: F.reverse(x),
        lambda graph, x: F.reshape(x, (-1, 2)),
        lambda graph, x: F.reshape(F.reshape(x, (x.rows * 4, 1)), x.shape),
        lambda graph, x: F.stack([F.sum(x, dim=0), F.mean(x, dim=0), F.sum(x, dim=0)]),
        lambda graph, x: F.stack([F.sum(x), F.mean(x)]),
        lambda graph, x: F.squeeze(F.unsqueeze(F.sum(x, dim=0)), dim=0),
        lambda graph, x: F.unsqueeze(F.sum(x, dim=0), -1),
    ],
)
def test_sentences_batch_and_differentiate(build):
    check_batching(build, shapes=[[shape] for shape in SENTENCES])
    for shape in SENTENCES[:3]:
        check_gradient(build, shapes=[shape])


def test_concat_equals_torch():
    torch = import_torch()
    pairs = [[(length, 4), (length, 2)] for length in (3, 0, 1, 9)]
    assert_equals_torch(lambda a, b: F.concat([a, b]), lambda a, b: torch.cat([a, b], 1), pairs)
    pairs = [[(3, 4), (1, 4)], [(0, 4), (2, 4)], [(1, 4), (5, 4)]]
    assert_equals_torch(lambda a, b: F.concat([a, b], 0), lambda a, b: torch.cat([a, b], 0), pairs)
    assert_equals_torch(lambda a, b: F.concat([a, b], 0), lambda a, b: torch.cat([a, b]), VECTORS)


def test_stack_and_reverse_equal_torch():
    torch = import_torch()
    assert_equals_torch(lambda a, b: F.stack([a, b]), lambda a, b: torch.stack([a, b]), VECTORS)
    assert_equals_torch(F.reverse, lambda x: torch.flip(x, [0]), SENTENCES)


def test_concat_of_all_widths_and_lengths_is_one_batch():
    with db.Graph() as graph:
        for length, width in [(3, 2), (0, 5), (7, 1)]:
            x = F.input(graph, np.ones((length, width)))
            F.concat([x] * (length + 1))
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [3, 3]  # inputs, concats


def test_squeeze_drops_only_the_dimension_asked_for():
    with db.Graph() as graph:
        column = F.input(graph, [[2.0]])
        assert F.squeeze(column).shape == ()
        assert F.squeeze(column, dim=-1).shape == (1,)
        assert F.squeeze(F.input(graph, [[1.0, 2.0]]), dim=0).value.tolist() == [1, 2]
        sentence = F.input(graph, np.ones((3, 2)))
        assert F.squeeze(sentence, dim=0) is sentence


def test_unsqueeze_puts_the_new_dimension_where_torch_does():
    with db.Graph() as graph:
        vector = F.input(graph, [1.0, 2.0])
        assert F.unsqueeze(vector).shape == (1, 2)
        assert F.unsqueeze(vector, 1).shape == F.unsqueeze(vector, -1).shape == (2, 1)
        assert F.unsqueeze(F.input(graph, 3.0)).value.tolist() == [3]


def test_reshape_to_its_own_shape_makes_no_node():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 3)))
        assert F.reshape(x, (2, -1)) is x


def test_a_chain_of_reshapes_is_one_copy_a_batch():
    with db.Graph() as graph:
        made = [F.reshape(F.input(graph, np.ones((2, 3))), (3, 2)) for _ in range(8)]
        graph.forward()
        assert made[0].shape == (3, 2)
        assert graph.statistics.launches == 2  # the inputs, and the reshapes


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, v: F.reshape(x, (4, 2)), "cannot become"),
        (lambda x, v: F.reshape(x, (6, 0)), "cannot become"),
        (lambda x, v: F.reshape(x, (1, 2, 3)), "cannot become"),
        (lambda x, v: F.reverse(v), "a sentence"),
        (lambda x, v: F.unsqueeze(x), "at most two dimensions"),
        (lambda x, v: F.unsqueeze(v, 2), "dim is between"),
        (lambda x, v: F.squeeze(v, 1), "has no dim 1"),
        (lambda x, v: F.stack([x, x]), "vectors of one width"),
        (lambda x, v: F.stack([x, x], dim=1), "vectors of one width"),
        (lambda x, v: F.stack([x, x], dim=-1), "vectors of one width"),
        (lambda x, v: F.stack([v, x], dim=-1), "vectors of one width"),
        (lambda x, v: F.stack([v, F.concat([v, v])]), "vectors of one width"),
        (lambda x, v: F.concat([x, x[:1]]), "different lengths"),
        (lambda x, v: F.concat([x, v], dim=0), "different widths"),
        (lambda x, v: F.concat([x, x], dim=2), "has no dim 2"),
    ],
)
def test_wrong_shapes_are_refused_where_the_node_is_made(build, message):
    with db.Graph() as graph:
        x, v = F.input(graph, np.ones((2, 3))), F.input(graph, np.ones(2))
        with pytest.raises(ShapeError, match=message) as caught:
            build(x, v)
        assert "rule:" in str(caught.value) and "test_structure.py" in str(caught.value)


@pytest.mark.parametrize("join", [F.concat, F.stack])
def test_joining_nothing_is_refused(join):
    with pytest.raises(EmptyBatchError, match="at least one input"):
        join([])


@pytest.mark.parametrize(("shift", "rectangles"), [(0, 2), (1, 4)])
def test_inputs_that_are_neighbours_are_one_rectangle(shift, rectangles, monkeypatch):
    found = []
    moves = Concat.rectangles

    def counted(batch):
        made = list(moves(batch))
        found.append(len(made))
        return made

    monkeypatch.setattr(Concat, "rectangles", counted)
    values = [np.full((2, 3), k) for k in range(3)]
    with db.Graph(dtype=np.float64) as graph:
        xs = [F.input(graph, value) for value in values]
        joined = [F.concat([xs[k], xs[(k + shift) % 3]]) for k in range(3)]
        for k, node in enumerate(joined):
            assert np.array_equal(node.value, np.hstack([values[k], values[(k + shift) % 3]]))
    assert found == [rectangles]
