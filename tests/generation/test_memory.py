"""The size of an engine's caches, counted in bytes and in tokens that are read."""

import numpy as np
import pytest

from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.pages import ROWS
from tests.generation.tiny_models import VOCAB, tiny

MEAN = 500


def lengths_of(name, count):
    """Lengths of a mean of 500 tokens, as uneven as those of texts."""
    rng = np.random.default_rng(count)
    if name == "uniform":
        found = rng.integers(1, 2 * MEAN, count)
    else:
        found = np.maximum(1, rng.lognormal(sigma=0.7, size=count) * MEAN / np.exp(0.7**2 / 2))
    return (found * MEAN / found.mean()).astype(int)


def shares_of(lengths, tokens):
    """Live bytes over reserved ones, both of all steps together; the engine is empty then."""
    rng = np.random.default_rng(0)
    engine = Engine(tiny("llama"), GenerationConfig(max_new_tokens=tokens), step_tokens=1000)
    for length in lengths:
        engine.add(rng.integers(0, VOCAB, length))
    live = reserved = 0
    while not engine.is_idle:
        engine.step()
        use = engine.memory_use()
        live, reserved = live + use.live, reserved + use.reserved
        assert use.live <= use.reserved <= use.peak
    assert engine.memory_use()[:2] == (0, 0)
    return live / reserved


def test_most_bytes_of_pages_hold_rows():
    assert shares_of(lengths_of("lognormal", 6), tokens=3) >= 0.96


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["uniform", "lognormal"])
def test_most_bytes_of_pages_hold_rows_over_a_whole_run(name):
    assert shares_of(lengths_of(name, 64), tokens=40) >= 0.96


def pages_of(rows, *, shared=0, copies=1):
    """Pages of sentences that share their first rows, where there are several."""
    if copies == 1:
        return -(-(shared + rows) // ROWS)
    return -(-shared // ROWS) + copies * -(-rows // ROWS)


@pytest.mark.parametrize(("precision", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_the_peak_is_what_lengths_alone_say(precision, itemsize):
    rng, model = np.random.default_rng(1), tiny("gpt2")
    engine = Engine(model, GenerationConfig(seed=1, do_sample=True), precision=precision)
    requests = []
    for prompt, tokens, copies in [(1, 40, 1), (31, 3, 1), (64, 34, 4), (100, 9, 2), (150, 70, 1)]:
        ids = rng.integers(0, VOCAB, prompt)
        engine.add(ids, max_new_tokens=tokens, num_return_sequences=copies)
        requests.append((prompt, tokens, copies))
    list(engine.run())
    planned = max(
        sum([pages_of(step, shared=p, copies=n) for p, tokens, n in requests if step < tokens])
        for step in range(70)
    )
    (pages,) = engine.caches.grown
    widths = [width for slot in pages.slots for width in slot.widths]
    assert pages.page_bytes == ROWS * sum(widths) * itemsize
    assert engine.memory_use() == (0, 0, planned * pages.page_bytes, 0)


def test_many_samples_of_a_prompt_read_it_once_and_keep_it_once(monkeypatch):
    count, length, tokens = 64, 500, 40
    engine = Engine(tiny("llama"), GenerationConfig(do_sample=True, seed=5, max_new_tokens=tokens))
    run, read = engine._continuation.run, []

    def counted(caches, rows):
        read.append(sum([ids.size for ids, _ in rows]))
        return run(caches, rows)

    monkeypatch.setattr(engine._continuation, "run", counted)
    engine.add(np.arange(length) % VOCAB, num_return_sequences=count)
    (pages,) = engine.caches.grown
    of_prompt = length * pages.row_bytes
    for step in range(tokens - 1):
        engine.step()
        use = engine.memory_use()
        own_pages = count * -(-step // ROWS)
        assert use.live == of_prompt + count * step * pages.row_bytes
        assert of_prompt <= use.reserved - own_pages * pages.page_bytes <= 1.05 * of_prompt
    engine.step()
    assert read == [length] + [count] * (tokens - 1)
    assert engine.is_idle and engine.memory_use()[:2] == (0, 0)


def test_a_window_takes_no_more_for_a_longer_text():
    peaks = []
    for tokens in (200, 500):
        engine = Engine(tiny("window"), GenerationConfig(max_new_tokens=tokens))
        engine.add([1, 2, 3])
        list(engine.run())
        peaks.append(engine.memory_use().peak)
        assert engine.caches.lent_bytes == 0
    (pages,) = engine.caches.grown
    assert peaks[0] == peaks[1] == 3 * pages.page_bytes  # a tile of keys, and those behind it


def test_layers_with_a_window_give_back_pages_that_others_keep():
    engine = Engine(tiny("mixed"), GenerationConfig(max_new_tokens=200))
    engine.add([1] * 20)
    most = [0, 0]
    while not engine.is_idle:
        engine.step()
        most = [max(pair) for pair in zip(most, [p.lent for p in engine.caches.grown], strict=True)]
    assert sorted(most) == [3, 7]
