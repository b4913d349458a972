"""Sentences that no token may follow, and logits that are not numbers."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import NumericError
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.reasons import END, FAILED, NO_TOKEN
from dynbatch.text import ByteTokenizer
from tests.generation.tiny_models import VOCAB, tiny

WAYS = {
    "greedy": {},
    "samples": {"do_sample": True, "num_return_sequences": 3, "top_p": 0.8, "top_k": 9, "seed": 1},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams that stop early": {"num_beams": 2, "early_stopping": True},
}
ALL = tuple(range(VOCAB))


def put(value, place=slice(None), at=1):
    """A hook that writes a value into the logits, once there are so many ids."""

    def hook(logits, ids):
        if len(ids) == at:
            logits[place] = value
        return logits

    return hook


@pytest.fixture(params=WAYS)
def settings(request):
    return {**WAYS[request.param], "max_new_tokens": 20}


@pytest.mark.parametrize("name", ["gpt2", "seq2seq", "t5"])
def test_where_no_token_may_come_at_all_results_are_empty_and_say_why(name, settings):
    model, settings = tiny(name), {**settings, "eos_token_id": ()}
    for found in (
        db.generate(model, [[3, 4]], suppress_tokens=ALL, **settings),
        db.generate(model, [[3, 4]], bad_words_ids=tuple([(one,) for one in ALL]), **settings),
        db.generate(model, [[3, 4]], process=put(-np.inf, at=1 + (name == "gpt2")), **settings),
    ):
        for one in found[0]:
            assert (one.tokens, one.log_probs, one.score, one.reason) == ((), (), 0.0, NO_TOKEN)


@pytest.mark.parametrize("is_float64", [False, True])
def test_a_result_ends_where_its_settings_leave_no_token(settings, is_float64):
    model = tiny("gpt2").astype("float64" if is_float64 else "float32")
    allowed = {"allowed_tokens": (1, 2, 3, 4, 5), "no_repeat_ngram_size": 1}
    with Engine(model, GenerationConfig(**settings, **allowed)) as engine:
        number = engine.add([3, 9])
        events = list(engine.run())
        assert engine.caches.lent_bytes == 0
        results = engine.results(number)
    assert len(results) == settings.get("num_return_sequences", 1)
    for one in results:
        assert sorted(one.tokens) == [1, 2, 4, 5] and one.reason == NO_TOKEN
    ends = [(event.result, event.token, event.reason) for event in events if event.reason]
    assert ends == [(k, None, NO_TOKEN) for k in range(len(results))]


def test_results_that_ended_stand_before_those_that_no_token_may_follow():
    # The one token that may come is the end mark, after which no other beam is left.
    allowed = {"allowed_tokens": (5,), "eos_token_id": 5}
    with Engine(tiny("gpt2")) as engine:
        number = engine.add([3], num_beams=3, num_return_sequences=3, **allowed)
        assert not engine.has_ended(number)
        (event,) = list(engine.run())
        assert engine.has_ended(number)
        (only,) = engine.results(number)
        assert not engine.has_ended(number)
    assert (event.result, event.reason) == (0, END) and only.tokens == (5,)
    allowed = {"allowed_tokens": (1, 5), "eos_token_id": 5, "no_repeat_ngram_size": 1}
    ((first, second),) = db.generate(
        tiny("gpt2"), [[3]], num_beams=2, num_return_sequences=2, process=put(-np.inf, 5, at=2),
        **allowed,
    )  # fmt: skip
    assert (first.tokens, first.reason) == ((5,), END)
    assert (second.tokens, second.reason) == ((1,), NO_TOKEN)


def test_text_that_was_held_back_comes_with_the_event_that_ends_it():
    allowed = {"allowed_tokens": (33, 34), "no_repeat_ngram_size": 1, "stop_strings": '"!x'}
    with Engine(tiny("gpt2"), tokenizer=ByteTokenizer()) as engine:
        number = engine.add([3], process=lambda logits, ids: logits + np.arange(VOCAB), **allowed)
        events = list(engine.run())
        (one,) = engine.results(number)
    assert one.text == '"!' and [event.text for event in events] == ["", "", '"!']


@pytest.mark.parametrize("name", ["gpt2", "writer"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [slice(None), 7])
def test_a_hook_that_returns_no_numbers_fails_its_own_request(name, value, place, settings):
    model, prompts = tiny(name), [[3, 4], [7], [2] * 40]
    wanted = db.generate(model, prompts[1:2], batch_invariant=True, **settings)
    with Engine(model, GenerationConfig(**settings), batch_invariant=True) as engine:
        bad = engine.add(prompts[0], process=put(value, place, at=2 + (name == "gpt2")))
        good = engine.add(prompts[1])
        events = list(engine.run())
        assert engine.caches.lent_bytes == 0
        assert [event.request for event in events if event.reason == FAILED] == [bad]
        message = (
            f"Engine: request {bad}: the model's logits of token 2 are NaN or infinite, behind"
        )
        with pytest.raises(NumericError, match=message):
            engine.results(bad)
        assert engine.results(good) == wanted[0]


@pytest.mark.parametrize("name", ["lstm", "seq2seq", "averages"])
def test_weights_that_are_nan_fail_the_requests_that_read_them(name, settings):
    model = tiny(name)
    weight = {"seq2seq": "source_embedding.weight", "averages": "words.weight"}.get(
        name, "embedding.weight"
    )
    parameter = dict(model.named_parameters())[weight]
    config = GenerationConfig(suppress_tokens=(9,), **settings)
    wanted = db.generate(model, [[3, 4], [2] * 40], config, batch_invariant=True)
    parameter.assign(np.where(np.arange(VOCAB)[:, None] == 9, np.nan, parameter.value))
    with Engine(model, config, batch_invariant=True) as engine:
        prompts = [[3, 4], [9, 3], [2] * 40, [9]]
        numbers = [engine.add(prompt, seed=1 + k // 2) for k, prompt in enumerate(prompts)]
        events = list(engine.run())
        assert {event.request for event in events if event.reason == FAILED} == {*numbers[1::2]}
        assert engine.caches.lent_bytes == 0
        for number in numbers[1::2]:
            message = f"request {number}: the model's logits of token 1 are NaN or infinite.\n"
            with pytest.raises(NumericError, match=message):
                engine.results(number)
        assert [engine.results(number) for number in numbers[::2]] == wanted
        # Whoever is lent their pages next has its own results.
        again = engine.add([3, 4], seed=1)
        list(engine.run())
        assert [engine.results(again)] == wanted[:1]


def test_a_prefix_and_forced_marks_hide_no_nan():
    model = tiny("gpt2")
    for parameter in model.parameters():
        parameter.assign(np.full(parameter.shape, np.nan))
    for forced in ({"forced_bos_token_id": 3}, {"forced_bos_token_id": 3, "num_beams": 2}):
        with pytest.raises(NumericError, match="logits of token 1 are NaN"):
            db.generate(model, [[3]], **forced)
