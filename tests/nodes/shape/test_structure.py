import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
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


def test_stack_and_reverse_equal_torch():
    torch = import_torch()
    assert_equals_torch(lambda a, b: F.stack([a, b]), lambda a, b: torch.stack([a, b]), VECTORS)
    assert_equals_torch(F.reverse, lambda x: torch.flip(x, [0]), SENTENCES)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, v: F.reshape(x, (4, 2)), "cannot become"),
        (lambda x, v: F.reshape(x, (6, 0)), "cannot become"),
        (lambda x, v: F.reshape(x, (1, 2, 4)), "cannot become"),
        (lambda x, v: F.reshape(x, (-2, -3)), "cannot become"),
        (lambda x, v: F.reverse(v), "x has shape"),
        (lambda x, v: F.unsqueeze(x, 3), "dim is between"),
        (lambda x, v: F.unsqueeze(v, 2), "dim is between"),
        (lambda x, v: F.squeeze(v, 1), "has no dim 1"),
        (lambda x, v: F.stack([x, v]), "values of one shape"),
        (lambda x, v: F.stack([v, x], dim=-1), "values of one shape"),
        (lambda x, v: F.stack([v, F.concat([v, v])]), "values of one shape"),
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
