"""Functions of small and large numbers inside cells, where generated programs compute them."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F


@db.cell
def gates(x, h, p):
    """The state is 0 throughout; a state keeps what it reads, and what reads it, in the loop."""
    y = F.log(F.sigmoid(x + h))
    return y, y * 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", ["scan", "call"])
def test_the_gate_of_a_cell_keeps_its_tail(way, dtype, device):
    nothing = SimpleNamespace()
    sentences = [[[-80.0, -17.5], [-38.5, 0.0]], [[-50.0, -87.0]]]
    with db.Graph(dtype=dtype, device=device) as graph:
        found = []
        xs = [F.input(graph, sentence).keep() for sentence in sentences]
        for x in xs:
            if way == "scan":
                found.append(db.scan(gates, x, init=2, params=nothing)[0])
            else:
                found.append(F.stack([gates(x[t], 2, nothing)[0] for t in range(x.rows)]))
        graph.backward(F.sum(F.concat([y.keep() for y in found], dim=0)))
        for sentence, x, y in zip(sentences, xs, found, strict=True):
            exact = -np.logaddexp(0, -np.array(sentence))
            np.testing.assert_allclose(y.value, exact, rtol=1e-6)
            np.testing.assert_allclose(x.gradient, 1 - np.exp(exact), rtol=1e-6)
