"""`F.kmax_pool`: what it refuses."""

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError
from tests.messages import raised


def test_less_than_k_tokens_and_a_wrong_k_are_refused():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0, 2.0], [3.0, 4.0]])
        raised(ShapeError, lambda: F.kmax_pool(x, 3), "the 3 largest tokens of (2, 2)", "fix:")
        raised(ArgumentError, lambda: F.kmax_pool(x, 0), "kmax_pool: k is 0", "rule:")
