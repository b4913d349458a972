"""Training on mini-batches that vary: after a warm-up the pool asks its upstream for nothing."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.memory import Pool
from tests.marks import exhaustive
from tests.reference_models import Tagger, sentences


def train(model, lengths, seed, pool, with_values):
    with db.Graph(pool=pool) as graph:
        losses = model.losses(graph, sentences(lengths, seed))
        if with_values:  # a run of its own, whose arena stays until the end
            graph.values(losses[:8])
        graph.backward(F.mean(losses))
    for parameter in model.parameters():
        parameter.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("with_values", [exhaustive(False), True])
def test_after_the_warm_up_nothing_is_allocated_and_bytes_stay(with_values):
    model, pool, rng = Tagger(), Pool(), np.random.default_rng(1)
    seen = []
    for step in range(300):
        lengths = np.clip(rng.lognormal(3.0, 0.6, 64), 1, 80).astype(int)
        train(model, lengths, step, pool, with_values)
        found = pool.statistics()
        assert found.rounded_bytes == 0
        seen.append((found.upstream_allocations, found.reserved_bytes, found.scattered_bytes))
    assert len(set(seen[50:])) == 1
    allocations, reserved, scattered = seen[-1]
    assert allocations <= 8 and scattered == 0
    assert found.peak_rounded_bytes <= reserved <= 1.25 * found.peak_rounded_bytes
