"""Requests that fail: each ends alone, nothing is lost, and the others have the same results."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch.errors import ArgumentError, OutOfMemory, VocabularyError
from dynbatch.generation import choosing
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.reasons import FAILED
from dynbatch.memory.pool import default_pool
from dynbatch.text import ByteTokenizer
from tests.generation.tiny_models import VOCAB, LSTMLanguageModel, Writer, tiny
from tests.marks import exhaustive

GREEDY = GenerationConfig(max_new_tokens=4, eos_token_id=(5,))
SAMPLES = GenerationConfig(
    max_new_tokens=4, do_sample=True, num_return_sequences=3, seed=3, top_k=20
)
BEAMS = GenerationConfig(max_new_tokens=4, num_beams=3, num_return_sequences=2)
PROMPTS = [[3, 4, 9], [7] * 40, [2]]
BAD = 45


def results(engine, numbers):
    return [[one.tokens for one in engine.results(number)] for number in numbers]


def expected(model, config, prompts):
    engine = Engine(model, config)
    numbers = [engine.add(prompt) for prompt in prompts]
    list(engine.run())
    return results(engine, numbers)


class Refusing(LSTMLanguageModel):
    """A language model that has no embedding for some of the ids that it predicts."""

    def __init__(self):
        super().__init__()
        self.embedding = models.Embedding(BAD, 12)


class RefusingEncoder(Writer):
    """An encoder of a user's own, which looks into its source."""

    def encode(self, graph, source):
        if BAD in np.asarray(source):
            raise ValueError("of the encoder")
        return super().encode(graph, source)


@pytest.mark.parametrize("config", [GREEDY, SAMPLES, BEAMS], ids=["greedy", "samples", "beams"])
@pytest.mark.parametrize(
    ("maker", "error"), [(Refusing, VocabularyError), (RefusingEncoder, ValueError)]
)
def test_a_prompt_that_the_model_refuses_fails_alone(maker, error, config):
    db.seed(1)
    model, config = maker(), replace(config, suppress_tokens=tuple(range(BAD, VOCAB)))
    wanted = expected(model, config, PROMPTS)
    engine = Engine(model, config, step_tokens=20)
    good = [engine.add(PROMPTS[0])]
    engine.step()
    bad = [engine.add([BAD]), engine.add([7] * 30 + [BAD])]
    good += [engine.add(prompt) for prompt in PROMPTS[1:]]
    events = list(engine.run())
    failed = [event for event in events if event.reason == FAILED]
    assert sorted(event.request for event in failed) == bad
    assert all(isinstance(event.error, error) for event in failed)
    for number in bad:
        with pytest.raises(error):
            engine.results(number)
    assert results(engine, good) == wanted
    assert engine.caches.lent_bytes == 0


def test_a_prompt_without_room_in_the_pool_fails_alone(monkeypatch):
    model, take = tiny("gpt2"), default_pool.take
    wanted = expected(model, GREEDY, PROMPTS)
    engine = Engine(model, GREEDY)
    (pages,) = engine.caches.grown
    elements = pages.page_bytes // 4

    def short(count, dtype, label=""):
        if "kept" in label and engine.caches.lent_bytes >= 6 * pages.page_bytes:
            raise OutOfMemory("no room")
        assert "kept" not in label or count == elements
        return take(count, dtype, label)

    monkeypatch.setattr(default_pool, "take", short)
    good = [engine.add(PROMPTS[0])]
    bad = engine.add([7] * 200)
    good += [engine.add(prompt) for prompt in PROMPTS[1:]]
    events = list(engine.run())
    assert [event.request for event in events if event.reason == FAILED] == [bad]
    with pytest.raises(OutOfMemory, match="no room"):
        engine.results(bad)
    assert results(engine, good) == wanted
    assert engine.caches.lent_bytes == 0


@pytest.mark.parametrize("config", [GREEDY, SAMPLES, BEAMS], ids=["greedy", "samples", "beams"])
@pytest.mark.parametrize("name", ["gpt2", "writer"])
def test_a_hook_may_fail_or_cancel_and_the_others_go_on(name, config):
    def raising(logits, ids):
        raise RuntimeError("of the hook")

    def cancelling(logits, ids):
        for number in numbers[1:3]:
            engine.cancel(number)
        return logits

    model = tiny(name)
    wanted = expected(model, config, PROMPTS)
    engine, numbers = Engine(model, config), []
    for hook in (raising, cancelling, None):
        numbers.append(engine.add(PROMPTS[1], process=hook))
    good = [engine.add(prompt) for prompt in PROMPTS]
    events = list(engine.run())
    failed = [event.request for event in events if event.reason == FAILED]
    assert failed == numbers[:1]
    assert results(engine, good) == wanted
    assert engine.caches.lent_bytes == 0


class Faults:
    """A pool whose takings are counted; those with the numbers given fail."""

    def __init__(self, monkeypatch, numbers=()):
        self._take, self._numbers, self.count = default_pool.take, numbers, 0
        monkeypatch.setattr(default_pool, "take", self.take)

    def take(self, elements, dtype, label=""):
        number, self.count = self.count, self.count + 1
        if number in self._numbers:
            raise OutOfMemory("no room")
        return self._take(elements, dtype, label)


def run(monkeypatch, model, config, faults):
    """The results of all prompts, None for one that failed; and how often the pool was asked."""
    used = default_pool.used_bytes
    engine = Engine(model, config, step_tokens=30)
    with monkeypatch.context() as patch:
        pool = Faults(patch, faults)
        numbers = [engine.add(prompt) for prompt in PROMPTS[:2]]
        events = engine.step()
        numbers.append(engine.add(PROMPTS[2]))
        events += engine.run()
    failed = {event.request for event in events if event.reason == FAILED}
    found = [None if k in failed else results(engine, [k])[0] for k in numbers]
    assert engine.caches.lent_bytes == 0 and default_pool.used_bytes == used
    return found, pool.count


def assert_no_fault_changes_a_result(monkeypatch, name, config, every):
    model = tiny(name)
    wanted, count = run(monkeypatch, model, config, ())
    assert count >= 5 and None not in wanted
    for number in range(0, count, every):
        # Once: only a request that is alone by then has nobody to take room from, and fails. From
        # some moment on always: all fail that have not ended.
        for faults, most in ([number], 1), (range(number, 10**6), 3):
            found, _ = run(monkeypatch, model, config, faults)
            assert all(one in (None, other) for one, other in zip(found, wanted, strict=True))
            assert found.count(None) <= most
        assert None in found


CONFIGS = {"greedy": GREEDY, "samples": SAMPLES, "beams": BEAMS}
CASES = [("gpt2", "samples"), ("lstm", "beams"), ("marian", "beams"), ("writer", "samples")]


@pytest.mark.parametrize(("name", "config"), CASES)
def test_a_pool_that_fails_loses_no_page_and_changes_no_result(monkeypatch, name, config):
    assert_no_fault_changes_a_result(monkeypatch, name, CONFIGS[config], every=29)


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["gpt2", "window", "lstm", "marian", "t5", "writer", "seq2seq"])
def test_each_allocation_may_fail(monkeypatch, name, config):
    assert_no_fault_changes_a_result(monkeypatch, name, CONFIGS[config], every=1)


def test_an_interrupt_in_a_step_leaves_all_requests_as_they_were(monkeypatch):
    model = tiny("lstm")
    wanted = expected(model, SAMPLES, PROMPTS)
    engine = Engine(model, SAMPLES)
    numbers = [engine.add(prompt) for prompt in PROMPTS]
    engine.step()
    run = engine._continuation.run

    def interrupted(*given):
        run(*given)  # states are written already
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine._continuation, "run", interrupted)
        engine.step()
    assert engine.caches.lent_bytes == 0
    list(engine.run())
    assert results(engine, numbers) == wanted


@pytest.mark.parametrize("config", [GREEDY, SAMPLES, BEAMS], ids=["greedy", "samples", "beams"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_fault_while_tokens_are_chosen_leaves_all_requests_as_they_were(
    monkeypatch, error, config
):
    model = tiny("lstm")
    wanted = expected(model, config, PROMPTS)
    engine = Engine(model, config)
    numbers = [engine.add(prompt) for prompt in PROMPTS]
    engine.step()

    def fail(*_):
        raise error

    name = "rank_rows" if config is BEAMS else "draw_rows"
    with monkeypatch.context() as patch:
        patch.setattr(choosing, name, fail)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        else:
            assert not engine.step()
    assert engine.caches.lent_bytes == 0
    list(engine.run())
    assert results(engine, numbers) == wanted


def test_an_interrupt_in_a_hook_ends_no_request_but_those_that_failed():
    model, prompts = tiny("gpt2"), [[1, 2], [3], [4, 5, 6]]
    (wanted,) = expected(model, GREEDY, [[4, 5, 6]])

    def failing(logits, _):
        raise ValueError("of the hook")

    def interrupted(logits, tokens):
        if len(tokens) == 3 and not seen:
            seen.append(tokens)
            raise KeyboardInterrupt
        return logits

    seen = []
    engine = Engine(model, GREEDY)
    hooks = [failing, None, interrupted]
    numbers = [engine.add(ids, process=hook) for ids, hook in zip(prompts, hooks, strict=True)]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.is_idle
    list(engine.run())
    with pytest.raises(ValueError, match="of the hook"):
        engine.results(numbers[0])
    assert results(engine, numbers[2:]) == [wanted]
    assert engine.caches.lent_bytes == 0


@pytest.mark.parametrize("numbers", [(1, 2, 10, 16), exhaustive(range(1, 17))], ids=str)
@pytest.mark.parametrize("config", [GREEDY, SAMPLES, BEAMS], ids=["greedy", "samples", "beams"])
def test_an_interrupt_in_a_tokenizer_changes_no_token_and_no_text(config, numbers):
    class Interrupted(ByteTokenizer):
        def __init__(self, number):
            super().__init__()
            self.left, self.is_interrupted = number, False

        def decode(self, ids):
            self.left -= 1
            if not self.left:
                self.is_interrupted = True
                raise KeyboardInterrupt
            return super().decode(ids)

    def told(of_prompt):
        return [(one.tokens, one.text, one.reason) for one in of_prompt]

    model, struck = tiny("gpt2"), []
    wanted = db.generate(model, [[1, 2], [3]], config, tokenizer=ByteTokenizer())
    for number in numbers:
        tokenizer = Interrupted(number)
        engine = Engine(model, config, tokenizer=tokenizer)
        added = [engine.add([1, 2], seed=3), engine.add([3], seed=4)]
        while not engine.is_idle:
            with suppress(KeyboardInterrupt):
                engine.step()
        assert [told(engine.results(k)) for k in added] == [told(found) for found in wanted]
        struck.append(tokenizer.is_interrupted)
    assert struck[:2] == [True, True] and (config is BEAMS or all(struck))


def test_a_model_tells_where_it_runs_and_in_which_dtype():
    class Empty(models.Module):
        def __call__(self, graph, ids):
            raise AssertionError

    with pytest.raises(ArgumentError, match="Empty has no parameters"):
        Engine(Empty())
    model = tiny("lstm")
    db.generate(model, [[1]], max_new_tokens=1)  # its parameters keep their dtype from then on
    model.output.astype("float64")
    with pytest.raises(ArgumentError, match="float32 on cpu and float64 on cpu"):
        Engine(model)


def test_a_limit_of_memory_is_a_number_of_bytes():
    model = tiny("gpt2")
    with pytest.raises(ValueError, match="memory_limit"):
        Engine(model, memory_limit="much")
    engine = Engine(model, GREEDY, memory_limit="1 MiB")
    number = engine.add([1, 2])
    list(engine.run())
    assert engine.results(number)
