"""Prompts, and ways in which they come together."""

import numpy as np

from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from tests.generation.tiny_models import VOCAB

GREEDY = GenerationConfig(max_new_tokens=8, eos_token_id=(5,))
SAMPLES = GenerationConfig(
    max_new_tokens=9, eos_token_id=(5,), do_sample=True, temperature=1.4, top_k=20,
    num_return_sequences=3, repetition_penalty=1.2, seed=11,
)  # fmt: skip
BEAMS = GenerationConfig(
    max_new_tokens=8, eos_token_id=(5,), num_beams=3, num_return_sequences=2, length_penalty=0.7
)


def prompts(count=7):
    """Prompts of lengths around a page's and a tile's, and others."""
    rng = np.random.default_rng(3)
    lengths = [1, 2, 63, 64, 65, 130, *rng.integers(1, 100, count)][:count]
    return [rng.integers(0, VOCAB, n) for n in lengths]


def tokens(results):
    return [[one.tokens for one in of_prompt] for of_prompt in results]


def numbers(results):
    return [[(one.tokens, one.log_probs, one.reason) for one in found] for found in results]


def run(engine, given):
    """The results of prompts that are added at once, each with a seed of its own."""
    added = [engine.add(prompt, seed=11 + k) for k, prompt in enumerate(given)]
    list(engine.run())
    assert engine.caches.lent_bytes == 0
    return [engine.results(number) for number in added]


def together(model, config, given, **options):
    return run(Engine(model, config, **options), given)


def alone(model, config, given, **options):
    """The results of one prompt after the other, each in an engine of its own."""
    found = []
    for k, prompt in enumerate(given):
        engine = Engine(model, config, **options)
        number = engine.add(prompt, seed=11 + k)
        list(engine.run())
        found.append(engine.results(number))
    return found


def continuously(model, config, given, room, **options):
    """The results where there is room for few at a time, and long prompts are read in parts."""
    probe = Engine(model, config, **options)
    run(probe, [max(given, key=len)])
    limit = room * probe.memory_use().peak
    engine = Engine(model, config, step_tokens=40, memory_limit=limit, **options)
    found = run(engine, given)
    assert limit / 4 < engine.memory_use().peak <= limit
    return found


def joining(model, config, given, seed, **options):
    """The results where prompts join at random moments, in a random order."""
    engine, rng = Engine(model, config, **options), np.random.default_rng(seed)
    order, added = rng.permutation(len(given)).tolist(), {}
    while order or not engine.is_idle:
        for _ in range(rng.integers(0, 3)):
            if order:
                k = order.pop()
                added[k] = engine.add(given[k], seed=11 + k)
        engine.step()
    assert engine.caches.lent_bytes == 0
    return [engine.results(added[k]) for k in range(len(given))]
