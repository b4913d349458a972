import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import ROWS, WIDTH
from dynbatch.nodes.shape.axes import ALL, FEATURES, TOKENS, axis, segment_bytes, segments
from dynbatch.ragged import Ragged, packed


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
    packed = Ragged(np.arange(9.0).reshape(3, 3), [2, 0, 1])
    assert segments(packed, TOKENS)[1].tolist() == [0, 2, 2, 3]
    assert segments(packed, FEATURES)[1].tolist() == [0, 3, 6, 9]
    assert segments(packed, ALL)[1].tolist() == [0, 6, 6, 9]
    assert segments(packed, ALL)[0].shape == (9, 1)


def scores(graph, *shapes):
    made = []
    for queries, keys in shapes:
        q, k = F.input(graph, np.ones((queries, 2))), F.input(graph, np.ones((keys, 2)))
        made.append(q @ F.transpose(k))
    return made


def test_segments_of_different_widths_are_matrices_over_tokens_and_offsets_otherwise():
    with db.Graph() as graph:
        nodes = scores(graph, (2, 3), (1, 0), (2, 1))
        x = packed(np.arange(8.0), nodes)
        rows, matrices = segments(x, TOKENS)
        assert rows.shape == (8, 1)
        assert (matrices.rows.tolist(), matrices.widths.tolist()) == ([2, 1, 2], [3, 0, 1])
        assert segments(x, FEATURES)[1].tolist() == [0, 3, 6, 6, 7, 8]
        assert segments(x, ALL)[1].tolist() == [0, 6, 6, 8]


@pytest.mark.parametrize("over", [FEATURES, ALL])
def test_tables_of_segments_are_counted(over):
    with db.Graph() as graph:
        nodes = scores(graph, (2, 3), (1, 0), (2, 1))
        table = segments(packed(np.arange(8.0), nodes), over)[1]
        sums = Batch([F.sum(node) for node in nodes], np.dtype("float32"))
        assert segment_bytes(sums, over) == table.nbytes


@pytest.mark.parametrize(
    ("build", "lengths"),
    [
        (lambda x: x, "rows"),
        (lambda x: F.transpose(x), "width"),
        (lambda x: F.transpose(F.transpose(x)), "rows"),
        (lambda x: x @ F.transpose(x), "both"),
        (lambda x: F.transpose(x) @ x, "none"),
        (lambda x: F.softmax(F.tanh(x @ F.transpose(x)) * 2.0)[1:], "both"),
        (lambda x: F.sum(x @ F.transpose(x), dim=0), "both"),
        (lambda x: F.sum(x @ F.transpose(x), dim=-1), "rows"),
        (lambda x: F.squeeze(F.sum(x, dim=-1), dim=-1), "both"),
        (lambda x: F.squeeze(x[:1], dim=0), "rows"),
        (lambda x: F.unsqueeze(F.sum(x, dim=0)), "rows"),
        (lambda x: F.unsqueeze(F.sum(x, dim=0), -1), "none"),
        (lambda x: F.reshape(x, (-1,)), "both"),
        (lambda x: F.reshape(x, (-1, 1)), "rows"),
        (lambda x: F.stack([F.sum(x), F.mean(x)]), "both"),
        (lambda x: (x @ F.transpose(x))[0], "both"),
        (lambda x: F.concat([x @ F.transpose(x), x]), "both"),
    ],
)
def test_a_node_knows_which_of_its_dimensions_are_lengths(build, lengths):
    """Of one token as of three: shapes do not tell."""
    for length in (1, 3):
        with db.Graph() as graph:
            found = build(F.input(graph, np.ones((length, 3)))).ragged
        assert found == {"none": 0, "rows": ROWS, "width": WIDTH, "both": ROWS | WIDTH}[lengths]
