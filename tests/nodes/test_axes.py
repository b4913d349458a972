import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.nodes.axes import ALL, FEATURES, TOKENS, axis, segments
from dynbatch.ragged import Ragged


def test_a_vector_has_features_only():
    with db.Graph() as graph:
        matrix, vector = F.input(graph, np.ones((2, 3))), F.input(graph, np.ones(3))
        assert [axis("sum", matrix, dim) for dim in (0, 1, -1, -2)] == [
            TOKENS, FEATURES, FEATURES, TOKENS,
        ]  # fmt: skip
        assert [axis("sum", vector, dim) for dim in (0, -1)] == [FEATURES, FEATURES]


@pytest.mark.parametrize(("shape", "dim"), [((2, 3), 2), ((2, 3), -3), ((3,), 1), ((), 0)])
def test_a_dim_that_is_not_there_is_refused(shape, dim):
    with db.Graph() as graph:
        x = F.input(graph, np.ones(shape))
        with pytest.raises(ShapeError, match=rf"mean.*has no dim {dim}"):
            axis("mean", x, dim)


def test_segments_are_sentences_rows_or_all_elements():
    with db.Graph() as graph:
        nodes = [F.input(graph, np.ones((length, 3))) for length in (2, 0, 1)]
        packed = Ragged(np.arange(9.0).reshape(3, 3), [2, 0, 1])
        assert segments(packed, nodes, TOKENS)[1].tolist() == [0, 2, 2, 3]
        assert segments(packed, nodes, FEATURES)[1].tolist() == [0, 3, 6, 9]
        assert segments(packed, nodes, ALL)[1].tolist() == [0, 6, 6, 9]
        assert segments(packed, nodes, ALL)[0].shape == (9, 1)
