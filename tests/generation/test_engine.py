"""The engine: tokens do not depend on company, and nothing is lost."""

import warnings

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, VocabularyError
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.reasons import END, FAILED, LENGTH, STOP
from dynbatch.kernels.runtime.precision import MANTISSA_BITS
from dynbatch.reporting import unbatched
from tests.cuda import devices
from tests.generation.companies import (
    BEAMS,
    GREEDY,
    SAMPLES,
    alone,
    numbers,
    prompts,
    together,
    tokens,
)
from tests.generation.tiny_models import DECODERS, VOCAB, logits_of, tiny
from tests.marks import exhaustive, quick


@pytest.mark.parametrize("count", [4, exhaustive(6)])
@pytest.mark.parametrize(
    "name", ["gpt2", "t5", "lstm", "linear", "matrix states", "writer", "seq2seq"]
)
def test_greedy_tokens_are_those_of_the_whole_sentence_computed_anew(name, count):
    model, given = tiny(name).eval(), prompts(count)
    for prompt, (best,) in zip(given, together(model, GREEDY, given), strict=True):
        ids = [model.start] if hasattr(model, "start") else prompt.tolist()
        wanted = []
        while len(wanted) < 8 and 5 not in wanted:
            with db.Graph(grad=False) as graph:
                row = logits_of(graph, model, prompt, np.array([*ids, *wanted])).value[-1]
            wanted.append(int(row.argmax()))
        assert list(best.tokens) == wanted
        assert best.reason == (END if wanted[-1] == 5 else LENGTH)


def test_log_probabilities_are_the_models_own():
    model, (prompt, *_) = tiny("gpt2").eval(), prompts()[2:]
    ((one, *_),) = together(model, SAMPLES, [prompt])
    ids = np.concatenate([prompt, one.tokens])
    with db.Graph(grad=False) as graph:
        logits = model.logits(graph, ids[:-1]).value.astype(np.float64)
    rows = logits[prompt.size - 1 :]
    scores = rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True))
    scores -= rows.max(1, keepdims=True)
    np.testing.assert_allclose(one.log_probs, scores[range(len(one.tokens)), one.tokens], atol=1e-5)
    assert one.score == pytest.approx(sum(one.log_probs))


def test_factors_of_products_are_rounded_as_in_a_graph(device):
    model, (prompt, *_) = tiny("gpt2").eval().to(device), prompts()[2:]
    ((one, *_),) = db.generate(model, [prompt], max_new_tokens=12, matmul="bfloat16")
    ids, rows = np.concatenate([prompt, one.tokens]), slice(prompt.size - 1, -1)
    found = []
    for matmul in ("bfloat16", "float32"):
        with db.Graph(device, grad=False, matmul=matmul) as graph:
            log_probs = F.log_softmax(model.logits(graph, ids)).value[rows]
        found.append(np.abs(log_probs[range(12), one.tokens] - one.log_probs).mean())
    if device == "cuda" and devices.has_gpu():  # where cuBLAS rounds as it likes
        assert max(found) < 2.0 ** (1 - MANTISSA_BITS["bfloat16"]) * -min(one.log_probs)
    else:
        assert found[0] < found[1] / 10
    with pytest.raises(ArgumentError, match="matmul is 'half'"):
        Engine(model, matmul="half")


def test_samples_of_one_prompt_share_its_pages_and_its_reading():
    model, prompt = tiny("gpt2"), prompts()[5]
    engine = Engine(model, SAMPLES, positions=300)
    engine.add(prompt, num_return_sequences=16, max_new_tokens=5, eos_token_id=())
    first = engine.step()
    assert [event.result for event in first] == list(range(16))
    (pages,) = engine.caches.grown
    assert pages.lent == pages.count(prompt.size) == 5
    engine.step()  # each goes on in a page of its own
    assert pages.lent == 5 + 16
    list(engine.run())
    assert engine.caches.lent_bytes == 0


def test_pages_go_back_in_the_step_in_which_a_sentence_ends():
    engine = Engine(tiny("gpt2"), GREEDY)
    short, long = [engine.add([3], max_new_tokens=n, eos_token_id=()) for n in (2, 9)]
    lent = []
    while not engine.is_idle:
        engine.step()
        lent.append(engine.caches.grown[0].lent)
    assert lent == [2, 1, 1, 1, 1, 1, 1, 1, 0]
    assert engine.results(short) and engine.results(long)


def test_a_limit_of_memory_changes_who_waits_and_no_result():
    model, given = tiny("gpt2"), prompts()
    expected = together(model, GREEDY, given)
    engine = Engine(model, GREEDY)
    for pages in (5, 9):
        limit = pages * engine.caches.grown[0].page_bytes
        small = Engine(model, GREEDY, memory_limit=limit)
        added = [small.add(prompt) for prompt in given]
        seen = []
        while not small.is_idle:
            small.step()
            seen.append(small.caches.lent_bytes)
        assert max(seen) <= small.caches.peak_bytes <= limit
        assert tokens([small.results(k) for k in added]) == tokens(expected)


def test_a_request_joins_where_its_prompt_and_a_token_more_have_pages():
    model = tiny("gpt2")
    pages = Engine(model).caches.grown[0]
    engine = Engine(model, GREEDY, memory_limit=3 * pages.page_bytes)
    for _ in range(2):
        engine.add(np.zeros(pages.rows, np.int64))
    engine.step()
    assert (len(engine._queue.live), len(engine._queue.waiting)) == (1, 1)


def test_a_request_that_never_fits_is_refused_when_it_comes():
    model = tiny("gpt2")
    limit = 4 * Engine(model).caches.grown[0].page_bytes
    engine = Engine(model, GREEDY, memory_limit=limit)
    with pytest.raises(ArgumentError, match="memory_limit is"):
        engine.add(np.zeros(150, np.int64))
    engine.add([1])
    assert list(engine.run())


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ([], ArgumentError, "the prompt is empty"),
        ([1, VOCAB], VocabularyError, f"id {VOCAB} of {VOCAB}"),
        ([-1], VocabularyError, "id -1"),
        (np.zeros(20, int), ArgumentError, "leaves no room for another"),
    ],
)
def test_bad_prompts_are_refused_and_the_others_go_on(prompt, error, text):
    engine = Engine(tiny("gpt2"), GREEDY, positions=20)
    number = engine.add([1, 2])
    with pytest.raises(error, match=text):
        engine.add(prompt)
    list(engine.run())
    assert engine.results(number)


def test_a_prompt_is_told_the_bound_that_it_meets():
    engine = Engine(tiny("gpt2"), GREEDY, positions=20)
    with pytest.raises(ArgumentError, match="at most 5 tokens"):
        engine.add([1] * 5, max_length=5)
    with pytest.raises(ArgumentError, match="at most 20 tokens"):
        engine.add([1] * 20, max_length=25)


def test_steps_give_no_advice_on_batching(monkeypatch):
    monkeypatch.setattr(unbatched, "_warned", False)
    engine = Engine(tiny("gpt2"), GenerationConfig(max_new_tokens=60))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(30):
            engine.add([1, 2])
        list(engine.run())
        run_alone(engine, np.ones(3, int))


@pytest.mark.parametrize(
    "name",
    quick(
        ["gpt2", "lstm", "t5", "writer"], [*DECODERS, "bigram", "lstm", "t5", "marian", "writer"]
    ),
)
def test_new_weights_count_for_the_next_request(name):
    model, rng = tiny(name), np.random.default_rng(0)
    engine = Engine(model, SAMPLES)
    ids = rng.integers(6, VOCAB, 9)
    before = tokens([run_alone(engine, ids)])
    for values in ("in place", "as another array"):
        for parameter in model.parameters():
            noise = rng.standard_normal(parameter.shape).astype(parameter.dtype) / 3
            if values == "in place":
                parameter.value[...] += noise
            else:
                parameter.replace(parameter.value + noise)
        found = run_alone(engine, ids)
        assert found == run_alone(Engine(model, SAMPLES), ids)
        assert tokens([found]) != before
    assert engine.caches.lent_bytes == 0


def run_alone(engine, ids):
    number = engine.add(ids)
    list(engine.run())
    return engine.results(number)


def test_the_models_own_positions_bound_a_text():
    model = tiny("gpt2")
    engine = Engine(model, GenerationConfig(max_new_tokens=8))
    with pytest.raises(ArgumentError, match=f"at most {model.positions} tokens"):
        engine.add(np.zeros(model.positions, int))
    number = engine.add(np.zeros(model.positions - 3, int))
    list(engine.run())
    assert len(engine.results(number)[0].tokens) == 3


def test_a_hook_that_raises_ends_its_own_request_alone():
    def hook(logits, ids):
        if ids.size == 4:
            raise RuntimeError("of the hook")
        return logits

    model = tiny("gpt2")
    engine = Engine(model, GREEDY)
    bad, good = engine.add([1, 2], process=hook), engine.add([1, 2])
    events = list(engine.run())
    ((failed,),) = [[event for event in events if event.reason == FAILED]]
    assert failed.request == bad and str(failed.error) == "of the hook"
    with pytest.raises(RuntimeError, match="of the hook"):
        engine.results(bad)
    assert tokens([engine.results(good)]) == tokens(together(model, GREEDY, [[1, 2]]))
    assert engine.caches.lent_bytes == 0


@pytest.mark.parametrize("config", [GREEDY, SAMPLES, BEAMS], ids=["greedy", "samples", "beams"])
@pytest.mark.parametrize("name", ["marian", "writer", "mixed"])
def test_a_request_is_cancelled_at_any_time_and_loses_no_page(name, config):
    model = tiny(name)
    expected = tokens(alone(model, config, [[8] * 70]))
    for steps in range(4):
        engine = Engine(model, config)
        first, second = engine.add([3, 4]), engine.add([8] * 70)
        for _ in range(steps):
            engine.step()
        engine.cancel(first)
        list(engine.run())
        assert engine.caches.lent_bytes == 0
        assert tokens([engine.results(second)]) == expected


def test_an_engine_that_is_left_holds_no_page():
    with Engine(tiny("gpt2"), GREEDY) as engine:
        engine.add([1, 2])
        waits = engine.add([3] * 70)
        for _ in engine.run():
            break
        assert engine.caches.lent_bytes
    assert engine.caches.lent_bytes == 0 and engine.is_idle
    with pytest.raises(ArgumentError, match=f"request {waits} is not known"):
        engine.results(waits)


def test_the_model_is_left_in_its_mode_and_draws_no_dropout():
    model = tiny("gpt2")
    assert model.training
    first = together(model, GREEDY, [[1, 2, 3]])
    assert model.training
    assert numbers(first) == numbers(together(model.eval(), GREEDY, [[1, 2, 3]]))


def test_events_tell_each_token_and_why_it_ended():
    engine = Engine(tiny("gpt2"), GREEDY)
    number = engine.add([1, 2])
    events = list(engine.run())
    (best,) = engine.results(number)
    assert tuple(event.token for event in events) == best.tokens
    assert [event.reason for event in events[:-1]] == [""] * (len(events) - 1)
    assert events[-1].reason == best.reason
    engine.cancel(number)  # one that has ended and is forgotten


def test_results_are_read_once_and_when_a_request_has_ended():
    model = tiny("gpt2")
    engine = Engine(model, GREEDY)
    number, cancelled = engine.add([1, 2]), engine.add([3])
    with pytest.raises(ArgumentError, match=f"request {number} goes on"):
        engine.results(number)
    engine.step()
    engine.cancel(cancelled)
    with pytest.raises(ArgumentError, match=f"request {cancelled} is not known"):
        engine.results(cancelled)
    with pytest.raises(ArgumentError, match=f"request {number} goes on"):
        engine.results(number)
    list(engine.run())
    assert tokens([engine.results(number)]) == tokens(together(model, GREEDY, [[1, 2]]))
    with pytest.raises(ArgumentError, match=f"request {number} is not known"):
        engine.results(number)


def test_stop_strings_end_a_result_and_its_text():
    class Letters:
        def decode(self, ids):
            return "".join([chr(97 + one % 26) for one in ids])

    model = tiny("gpt2")
    whole = together(model, SAMPLES, [[1, 2]], tokenizer=Letters())
    text = whole[0][0].text
    stop = text[3:5]
    engine = Engine(model, SAMPLES, tokenizer=Letters())
    number = engine.add([1, 2], stop_strings=(stop,))
    pieces = "".join([event.text for event in engine.run() if event.result == 0])
    first = engine.results(number)[0]
    assert first.reason == STOP and first.text == pieces == text[: text.index(stop)]
    with pytest.raises(ArgumentError, match="stop strings without a tokenizer"):
        Engine(model).add([1], stop_strings=("a",))
