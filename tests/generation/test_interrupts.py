"""Ctrl-C at any line of generation: the steps after it give what they would have given."""

import pytest

from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.memory.pool import default_pool
from dynbatch.text import ByteTokenizer
from tests.generation.tiny_models import tiny
from tests.interruptions import broken_off
from tests.marks import exhaustive

COMMON = {"max_new_tokens": 4, "no_repeat_ngram_size": 2, "presence_penalty": 0.5}
CONFIGS = {
    "samples": GenerationConfig(do_sample=True, num_return_sequences=2, seed=3, **COMMON),
    "beams": GenerationConfig(num_beams=3, num_return_sequences=2, **COMMON),
}
PROMPTS = [[1, 2, 3], [4]]
SHARED = tuple(
    f"dynbatch/generation/{name}.py"
    for name in ("pages", "history", "growing", "request_queue", "requests", "processing", "beams")
)
STEP = (*SHARED, *[f"dynbatch/generation/{name}.py" for name in (
    "engine", "choosing", "model", "prepared", "step_rows", "streaming", "sampling"
)])  # fmt: skip
EVERY = (*STEP, "memory/pool.py", "memory/arena.py", "execution/run.py", "execution/repeated.py")


def results(engine):
    return [
        [(one.tokens, one.log_probs, one.score, one.reason, one.text) for one in engine.results(k)]
        for k in range(len(PROMPTS))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "callers", "every", "first"),
    [((*SHARED, "memory/pool.py"), 1, 16, 0), *[exhaustive(EVERY, 2, 4, k) for k in range(4)]],
    ids=["tables", *[f"all, from the line {k}" for k in range(4)]],
)
@pytest.mark.parametrize("name", ["gpt2", "lstm", exhaustive("marian")])
@pytest.mark.parametrize("config", CONFIGS)
def test_an_interrupt_at_any_line_changes_no_result_and_loses_no_page(
    name, config, files, callers, every, first
):
    model, engines = tiny(name), []

    def begun():
        # Sentences are read again in other parts: no bit may depend on that, without C too.
        engine = Engine(
            model, CONFIGS[config], tokenizer=ByteTokenizer(), step_tokens=4, batch_invariant=True
        )
        for prompt in PROMPTS:
            engine.add(prompt)
        engines.append(engine)
        return engine

    def run():
        for _ in engines[-1].run():
            pass

    begun()
    used, count, wrong = default_pool.used_bytes, 0, {}
    run()
    wanted = results(engines[-1])
    assert engines[-1].caches.lent_bytes == 0 and default_pool.used_bytes == used
    begun()
    for line, error in broken_off(run, files, callers, every, first=first):
        count += 1
        said = [] if isinstance(error, KeyboardInterrupt) else [f"the interrupt became {error!r}"]
        engine = engines.pop()
        try:
            for _ in engine.run():
                pass
            said += ["other results"] if results(engine) != wanted else []
        except Exception as failed:
            said.append(repr(failed))
        if engine.caches.lent_bytes or default_pool.used_bytes != used:
            said.append(f"lost: {engine.caches.lent_bytes}, {default_pool.on_loan()}")
        if said:
            wrong[line] = said
        begun()
    assert not wrong
    assert count * every > 200
