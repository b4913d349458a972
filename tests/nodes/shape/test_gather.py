import numpy as np

import dynbatch as db
from dynbatch import nodes as F
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
