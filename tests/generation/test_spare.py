"""Spare sentences fill a step that is replayed; nothing of theirs is seen."""

import numpy as np
import pytest

from dynbatch.errors import OutOfMemory
from dynbatch.generation.engine import Engine
from dynbatch.generation.pages import ROWS, Caches
from dynbatch.generation.spare import SpareSentences
from dynbatch.generation.step_rows import StepRows
from dynbatch.kernels.cuda.runtime import replays
from dynbatch.memory import Pool
from dynbatch.memory.pool import pool_of
from tests.generation.tiny_models import tiny


def spare_of(name, **limits):
    """Spare sentences of a model, on the CPU, and their pool."""
    caches, pool = Engine(tiny(name)).caches, Pool(**limits)
    grown = [slot for pages in caches.grown for slot in pages.slots]
    slots = [*grown, *caches.kept.slots, *caches.states.slots]
    return SpareSentences(Caches(slots, np.dtype("float32"), pool)), pool


@pytest.mark.parametrize("name", ["gpt2", "lstm", "mixed", "t5"])
def test_each_has_a_row_and_a_state_of_its_own(name):
    spare, pool = spare_of(name)
    histories = spare.take(ROWS + 3)
    step = StepRows(spare._caches, histories, np.ones(len(histories), np.int64))
    places = [
        set(past.table.rows_added(past.widths[0] * 4) + past.offsets[0])
        for past in step.pasts(0).values()
        if hasattr(past, "table") and past.table.new.any()
    ]
    assert all([len(each) == ROWS + 3 for each in places])
    caches = spare._caches
    assert [pages.lent for pages in caches.grown] == [2] * len(caches.grown)
    states = [history.state for history in histories if history.state is not None]
    assert len(set(map(id, states))) == caches.states.lent == len(states)
    assert spare.take(5) == histories[:5]
    spare.close()
    del histories, states
    assert caches.lent_bytes == 0 and pool.used_bytes == 0


def test_without_room_none_is_left_behind():
    spare, pool = spare_of("lstm")
    spare.take(1)
    page = pool.used_bytes
    spare.close()
    spare, pool = spare_of("lstm", limit_bytes=3 * page)
    with pytest.raises(OutOfMemory):
        spare.take(4)
    assert len(spare.take(3)) == 3
    spare.close()
    assert pool.used_bytes == 0


def test_an_engine_gives_their_pages_back_and_does_not_count_them(cuda, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", 64)
    model = tiny("gpt2").to("cuda")
    before = pool_of(model.parameters()[0].device).used_bytes
    engine = Engine(model)
    for _ in range(5):
        engine.add([3, 4], max_new_tokens=4)
    held = []
    while not engine.is_idle:
        engine.step()
        spare = engine._continuation._spare
        held.append(0 if spare is None else len(spare._histories))
        page_bytes = engine.caches.grown[0].page_bytes
        assert engine.memory_use().reserved in (5 * page_bytes, 0)
    assert held == [0, 3, 3, 0]
    assert pool_of(model.parameters()[0].device).used_bytes == before


def test_without_replays_a_step_has_no_spare_sentences(cuda):
    engine = Engine(tiny("gpt2").to("cuda"))
    for _ in range(3):
        engine.add([3, 4], max_new_tokens=4)
    list(engine.run())
    assert engine._continuation._spare is None
