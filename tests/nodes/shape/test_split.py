import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 4) for length in (3, 0, 1, 9, 2)]
MATRIX = np.arange(12.0).reshape(3, 4)


def test_split_and_chunk_equal_torch():
    torch = import_torch()
    assert_equals_torch(
        lambda x: F.split(x, [1, 3]), lambda x: torch.split(x, [1, 3], 1), SENTENCES
    )
    for dim in (0, -1):
        for shape in SENTENCES:
            assert_equals_torch(
                lambda x, dim=dim: F.chunk(x, 3, dim=dim),
                lambda x, dim=dim: torch.chunk(x, 3, dim=dim),
                [shape],
            )
            assert_equals_torch(
                lambda x, dim=dim: F.split(x, 3, dim=dim),
                lambda x, dim=dim: torch.split(x, 3, dim=dim),
                [shape],
            )


def test_split_undoes_concat():
    with db.Graph() as graph:
        parts = [F.input(graph, MATRIX[:, :1]), F.input(graph, MATRIX[:, 1:])]
        again = F.split(F.concat(parts), [1, 3])
        assert all((a.value == b.value).all() for a, b in zip(parts, again, strict=True))
