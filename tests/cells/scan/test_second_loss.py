"""Two losses of one graph through one scan: what backward leaves for itself ends with it.

On a GPU a scan has one backward: gradients take the place of what forward left.
"""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing.precision import dense_gradient

ATTENTIONS = {
    "dot": lambda h, memory, v: F.attention(h, memory),
    "additive": lambda h, memory, v: F.additive_attention(h, memory, memory, v),
}


@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_a_second_loss_gets_its_own_gradient_through_attention(name):
    @db.cell
    def attending(x, h, p, memory):
        h = F.tanh(x + ATTENTIONS[name](h, memory, p["v"]))
        return h, h

    vector = db.Parameter(np.array([0.5, -1.0]), "v")

    def gradients(*losses):
        vector.zero_grad()
        with db.Graph(dtype="float64") as graph:
            x, memory = (F.input(graph, [[0.3, -0.2], [k, 1.0], [2.0, k]]).keep() for k in (1, 2))
            ys, _ = db.scan(attending, x, init=2, params={"v": vector}, memory=memory)
            made = (F.sum(ys), F.sum(ys * ys))
            graph.forward()
            for k in losses:
                vector.zero_grad()
                graph.backward(made[k])
            found = [x.gradient, memory.gradient]
        return [*found, dense_gradient(vector)]

    for found, expected in zip(gradients(0, 1), gradients(1), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
