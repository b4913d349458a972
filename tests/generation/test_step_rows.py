"""Rows that the sentences of a step keep, against one sentence at a time."""

import numpy as np
import pytest

from dynbatch.generation.history import History
from dynbatch.generation.model import Continuation
from dynbatch.generation.pages import Caches
from dynbatch.generation.step_rows import StepRows
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.memory import Pool
from tests.generation.tiny_models import VOCAB, tiny


@pytest.mark.parametrize("name", ["gpt2", "window", "lstm", "t5", "writer"])
def test_sentences_keep_the_same_rows_alone_and_together(name):
    rng, model = np.random.default_rng(0), tiny(name, scale=0.2).eval()
    continuation = Continuation(model)
    with continuation.graph() as graph:
        slots = continuation.program(graph).slots
    lengths = [1, 40, 33, 7]
    ids = [rng.integers(0, VOCAB, n) for n in lengths]
    sources = [rng.integers(0, VOCAB, n) for n in (3, 1, 35, 8)]

    def kept(groups):
        """The rows that each sentence has at the end."""
        pool, found = Pool(), {}
        caches = Caches(slots, continuation.dtype, pool)
        for group in groups:
            histories = [History(caches) for _ in group]
            if continuation.begins:
                with continuation.graph() as graph:
                    histories = continuation.begin(graph, [sources[k] for k in group], caches)
            for step in range(max([lengths[k] for k in group])):
                live = [
                    pair for pair in zip(group, histories, strict=True) if step < lengths[pair[0]]
                ]
                for _, history in live:
                    history.reserve(1)
                continuation.run(caches, [(ids[k][step : step + 1], h) for k, h in live])
            for k, history in zip(group, histories, strict=True):
                pasts = StepRows(caches, [history], np.array([0])).pasts(0)
                found[k] = {place: joined(past) for place, past in pasts.items()}
                history.close()
        continuation.forget_steps()
        assert pool.used_bytes == 0
        return found

    def joined(past):
        rows = [past] if hasattr(past, "joined") else [past.states, past.memories]
        like = np.empty(0, continuation.dtype)
        return [x for each in rows if each is not None for x in each.joined(like)]

    together, alone = kept([[0, 1, 2, 3]]), kept([[2], [0], [3], [1]])
    for k in range(4):
        assert together[k].keys() == alone[k].keys() != set()
        for place, rows in together[k].items():
            for one, other in zip(rows, alone[k][place], strict=True):
                if not reason():  # where C runs, a row's bits do not depend on its company
                    assert one.tobytes() == other.tobytes()
                np.testing.assert_allclose(one, other, 1e-4, 1e-5)
