import sys

import numpy as np
import pytest

import dynbatch as db
from dynbatch.generation.engine import Engine
from tests.generation.tiny_models import tiny
from tests.pictures.svg import SVG, require_clear_text, root_of, texts_of


def prompt(number, length):
    return np.random.default_rng(number).integers(0, 50, length)


def written(count, record=True, **settings):
    """An engine that has written for `count` prompts, half of them added on the way; its events."""
    engine = Engine(tiny("gpt2").eval(), step_tokens=24, record=record, **settings)
    lengths = [1 + 17 * k % 40 for k in range(count)]
    for k in range(-(-count // 2)):
        engine.add(prompt(k, lengths[k]), max_new_tokens=3 + k % 9)
    events, added = [], -(-count // 2)
    while not engine.is_idle:
        events.append(engine.step())
        if added < count:
            engine.add(prompt(added, lengths[added]), max_new_tokens=3 + added % 9)
            added += 1
    return engine, events, lengths


def test_a_step_tells_who_was_read_and_what_the_cache_took():
    engine, events, lengths = written(9)
    steps = engine.recording.steps
    assert len(steps) == len(events)
    for step, of_step in zip(steps, events, strict=True):
        assert {event.request for event in of_step} >= set(step.tokens)
        assert 0 < step.memory.live <= step.memory.reserved <= step.memory.peak
    assert max(step.memory.reserved for step in steps) == engine.memory_use().peak
    for number, length in enumerate(lengths):
        tokens = sum(event.request == number for of_step in events for event in of_step)
        # The step that reads a prompt to its end gives the first token.
        assert sum(number in step.tokens for step in steps) == tokens - 1
        assert sum(number in step.prompts for step in steps) >= -(-length // 24)
    new = sum(len(of_step) for of_step in events) - len(lengths)
    assert sum(step.rows for step in steps) == sum(lengths) + new
    assert any(step.pausing for step in steps)  # for 24 rows a step


def test_requests_wait_where_memory_is_limited():
    engine, _, _ = written(9, memory_limit="100 kB")
    steps = engine.recording.steps
    assert any(step.waiting for step in steps)
    assert all(step.memory.reserved <= 100_000 for step in steps)
    picture = db.pictures.generation(engine)
    assert "memory_limit 100 kB" in texts_of(picture) and "waits for room" in texts_of(picture)
    require_clear_text(picture)


def test_recording_changes_no_token_and_is_not_done_unasked():
    (_, events, _), (engine, same, _) = written(6), written(6, record=False)
    assert engine.recording is None and same == events
    with pytest.raises(ValueError, match=r"fix:  Engine\(model, record=True\)"):
        db.pictures.generation(engine)
    with pytest.raises(ValueError, match="has taken no step"):
        db.pictures.generation(Engine(tiny("gpt2").eval(), record=True))


@pytest.mark.parametrize("count", [1, 5, 12])
def test_each_request_is_a_lane_from_its_arrival_to_its_end(count, monkeypatch):
    monkeypatch.setattr(sys.modules["dynbatch.pictures.generation"], "MOST_LANES", 8)
    engine, events, _ = written(count)
    picture = db.pictures.generation(engine)
    require_clear_text(picture)
    requests = f"{count} request{'s' * (count != 1)}"
    assert picture.title == f"Generation: {requests} in {len(events)} steps"
    shapes = {e.get("class"): e.get("d") for e in root_of(picture).iter(f"{SVG}path")}
    assert shapes["fill-vermilion"].count("M") == min(count, 8)  # each prompt is read in a row
    assert ("The first 8 of 12 requests" in texts_of(picture)) is (count == 12)
