import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError, VocabularyError
from dynbatch.testing import check_batching, check_gradient

SENTENCES = [(length, 4) for length in (3, 0, 1, 9, 2)]
OCCUPIED = [(length, 4) for length in (3, 1, 9, 2)]
MATRIX = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, x: x[1:3],
        lambda graph, x: x[-2:],
        lambda graph, x: x[::2],
        lambda graph, x: x[::-2],
        lambda graph, x: x[:, 1:3],
        lambda graph, x: x[:, 2],
        lambda graph, x: x[1:, :-1],
        lambda graph, x: F.slice(x, 1, -1),
        lambda graph, x: F.slice(x, None, 2, dim=0),
        lambda graph, x: F.split(x, [1, 3]),
        lambda graph, x: F.split(x, 2, dim=0),
        lambda graph, x: F.chunk(x, 3),
        lambda graph, x: F.chunk(x, 2, dim=0),
        lambda graph, x: F.repeat(x, 3),
        lambda graph, x: F.repeat(x, 0),
        lambda graph, x: F.repeat(F.sum(x, dim=0), x.rows),
        lambda graph, x: F.gather_rows(x, np.repeat(np.arange(x.rows), 2)[::-1]),
    ],
)
def test_parts_of_sentences_batch_and_differentiate(build):
    check_batching(build, shapes=[[shape] for shape in SENTENCES])
    for shape in SENTENCES[:3]:
        check_gradient(build, shapes=[shape])


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, x: x[0],
        lambda graph, x: x[-1],
        lambda graph, x: x[0, 2],
        lambda graph, x: x[0][1:3],
        lambda graph, x: x[0][[3, 0, 0]],
        lambda graph, x: F.pick(F.pick(x, -1), 0),
        lambda graph, x: x[[0, x.rows - 1, 0]],
        lambda graph, x: F.transpose(x),
    ],
)
def test_parts_of_occupied_sentences_batch_and_differentiate(build):
    check_batching(build, shapes=[[shape] for shape in OCCUPIED])
    for shape in OCCUPIED[:2]:
        check_gradient(build, shapes=[shape])


@pytest.mark.parametrize(
    "key",
    [
        0, -1, np.int64(2), slice(1, 3), slice(None), slice(-2, None), slice(5, 2), slice(-9, 9),
        slice(None, None, -1), slice(2, 0, -2), (1, slice(2)), (slice(1, 2), slice(-3, -1)), (0, 3),
        [2, 0, 2],
    ],
)  # fmt: skip
def test_indexing_equals_numpy(key):
    with db.Graph() as graph:
        found = F.input(graph, MATRIX)[key].value
        assert found.shape == MATRIX[key].shape
        assert (found == MATRIX[key]).all()


@pytest.mark.parametrize("key", [0, -1, slice(1, 3), slice(-2, None)])
def test_indexing_a_vector_takes_features(key):
    with db.Graph() as graph:
        assert (F.input(graph, MATRIX[1])[key].value == MATRIX[1][key]).all()


def test_one_feature_of_every_token_is_a_column():
    with db.Graph() as graph:
        assert F.input(graph, MATRIX)[:, 1].value.tolist() == [[1], [5], [9]]


def test_slices_of_any_kind_are_one_batch():
    with db.Graph() as graph:
        x, vector = F.input(graph, MATRIX), F.input(graph, MATRIX[0])
        _ = [x[0], x[:2], x[:, 1:], x[1, 2], vector[1], vector[:2], x[::-1]]
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [2, 6]  # x[0] is not read


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda x: x[3], VocabularyError, "token 3 of 3"),
        (lambda x: x[-4], VocabularyError, "token -4 of 3"),
        (lambda x: x[0][4], VocabularyError, "feature 4 of 4"),
        (lambda x: x[:, 4], VocabularyError, "feature 4 of 4"),
        (lambda x: F.pick(x, 3), VocabularyError, "token 3 of 3"),
        (lambda x: F.gather_rows(x, [0, 3]), VocabularyError, "row 3 at position 1 of 2"),
        (lambda x: F.gather_rows(x, [-1]), VocabularyError, "row -1 at position 0"),
        (lambda x: x[:, 2:2], ShapeError, "at least one feature"),
        (lambda x: x[:, ::2], ShapeError, "without a step"),
        (lambda x: x[0][0, 0], ShapeError, "no tokens"),
        (lambda x: x[0][0][0], ShapeError, "no parts"),
        (lambda x: F.split(x, [1, 2]), ShapeError, "sum to 3"),
        (lambda x: F.split(x, 0), ShapeError, "positive size"),
        (lambda x: F.chunk(x, 0), ShapeError, "at least one chunk"),
        (lambda x: F.repeat(x, -1), ShapeError, "times >= 0"),
        (lambda x: F.repeat(x[0, 0], 2), ShapeError, "x has shape"),
        (lambda x: F.transpose(x[0]), ShapeError, "x has shape"),
        (lambda x: x["a"], DtypeError, "an integer, a slice or a list of ids"),
        (lambda x: x[1.5], DtypeError, "an integer, a slice or a list of ids"),
        (lambda x: x[[0.5]], ShapeError, "sequence of integers"),
    ],
)
def test_what_cannot_be_taken_is_refused_at_the_users_line(build, error, message):
    with db.Graph() as graph:
        x = F.input(graph, MATRIX)
        with pytest.raises(error, match=message) as caught:
            build(x)
        assert "fix:" in str(caught.value) and "test_indexing.py" in str(caught.value)


@pytest.mark.parametrize(
    "key", [[2, 0], np.array([0, 3, 3]), [0], np.array([True, False, False, True]), []], ids=str
)
def test_ids_and_a_mask_select_elements_of_a_vector(key):
    values = np.array([5.0, 6.0, 7.0, 8.0])
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, values).keep()
        part = x[key]
        graph.backward(F.sum(part) + F.sum(x))
        expected = values[np.asarray(key, None if len(key) else int)]
        assert part.shape == expected.shape
        assert x.gradient.tolist() == [1 + np.sum(expected == value) for value in values.tolist()]
    with db.Graph(dtype="float64") as graph:
        assert F.input(graph, values)[key].value.tolist() == expected.tolist()
