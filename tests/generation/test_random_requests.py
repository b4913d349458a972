"""Random requests side by side, some of which can go on no further, or meet NaN: each ends with an
event and a reason, and has the results that it has alone."""

from typing import NamedTuple

import numpy as np
import pytest

from dynbatch.errors import ArgumentError, NumericError
from dynbatch.generation.engine import Engine
from dynbatch.generation.reasons import END, FAILED, LENGTH, NO_TOKEN, STOP
from dynbatch.text import ByteTokenizer
from tests.generation.tiny_models import VOCAB, tiny
from tests.marks import quick

MODELS = ("gpt2", "t5", "marian", "seq2seq", "lstm", "window", "writer", "averages")
UNKNOWN = 9  # an id whose embedding is NaN, where a model has one for what it reads alone
READ = {"seq2seq": "target_embedding.weight", "lstm": "embedding.weight"}
READ["writer"] = "target.weight"


class Request(NamedTuple):
    """The arguments of `Engine.add`."""

    prompt: np.ndarray
    prefix: tuple[int, ...]
    hook: object
    settings: dict

    def add(self, engine):
        return engine.add(self.prompt, prefix=self.prefix, process=self.hook, **self.settings)


def hook_of(kind, step, length):
    """A hook that does something at one step of a result."""

    def hook(logits, ids):
        if len(ids) == length + step:
            if kind == "raises":
                raise RuntimeError("of the hook")
            if kind == "all":
                logits[:] = np.nan
            elif kind != "as it is":
                place = slice(None) if kind == -np.inf else step * 7 % VOCAB
                logits[place] = kind
        return logits

    return hook


def ids(rng, most):
    return tuple(rng.integers(0, VOCAB, rng.integers(1, most + 1)).tolist())


def random_request(rng, has_source):
    """Settings that often leave no token."""

    def sometimes(share, value, otherwise):
        return value if rng.random() < share else otherwise

    beams, samples = [(1, 1), (int(rng.integers(2, 5)), 1), (1, int(rng.integers(1, 4)))][
        rng.integers(3)
    ]
    drawn = {
        "do_sample": True, "num_return_sequences": samples, "seed": int(rng.integers(100)),
        "temperature": rng.choice([0.5, 1.0, 2.0]), "top_k": int(rng.choice([0, 4])),
        "top_p": rng.choice([1.0, 0.7]), "min_p": rng.choice([0.0, 0.1]),
    }  # fmt: skip
    followed = {
        "num_beams": beams, "num_return_sequences": int(rng.integers(1, beams + 1)),
        "length_penalty": rng.choice([0.0, 1.0, -0.5]),
        "early_stopping": [True, False, "never"][rng.integers(3)],
    }  # fmt: skip
    settings = {
        **[{}, followed, drawn][1 if beams > 1 else 2 * int(rng.random() < 0.6)],
        "max_new_tokens": int(rng.integers(1, 9)),
        "eos_token_id": [(), (5,), (5, 7)][rng.integers(3)],
        "no_repeat_ngram_size": int(rng.choice([0, 0, 1, 2])),
        "min_new_tokens": int(rng.choice([0, 0, 3])),
        "repetition_penalty": rng.choice([1.0, 1.4]),
        "presence_penalty": rng.choice([0.0, 0.3]),
        "bad_words_ids": sometimes(0.3, (ids(rng, 1), ids(rng, 2)), ()),
        "suppress_tokens": sometimes(0.1, tuple(range(VOCAB)), sometimes(0.3, ids(rng, 20), ())),
        "begin_suppress_tokens": sometimes(0.1, tuple(range(VOCAB)), ()),
        "allowed_tokens": sometimes(0.4, (5, *ids(rng, 3)), None),
        "forced_bos_token_id": sometimes(0.1, 3, None),
        "forced_eos_token_id": sometimes(0.1, (5,), ()),
        "stop_strings": sometimes(0.2, tuple([chr(one) for one in ids(rng, 4)]), ()),
    }
    prompt = rng.integers(0, VOCAB, int(rng.choice([1, 2, 30, 70])))
    kind = ["raises", "all", np.nan, np.inf, -np.inf, "as it is"][rng.integers(6)]
    hook = hook_of(kind, int(rng.integers(4)), 1 if has_source else len(prompt))
    prefix = sometimes(0.1, ids(rng, 2), ())
    return Request(prompt, prefix, sometimes(0.4, hook, None), settings)


def outcome(engine, number):
    """The results of a request, or the kind and text of what made it fail, without its number."""
    try:
        return [(one.tokens, one.log_probs, one.score, one.reason, one.text)
                for one in engine.results(number)]  # fmt: skip
    except Exception as error:
        return type(error), str(error).replace(f"request {number}:", "request:")


def run(model, requests, step_tokens=2048):
    """The results of requests side by side, with the events of each."""
    with Engine(model, tokenizer=ByteTokenizer(), step_tokens=step_tokens) as engine:
        numbers = [request.add(engine) for request in requests]
        told = {number: [] for number in numbers}
        steps = 0
        while not engine.is_idle:
            steps += 1
            assert steps <= 1000, "some request goes on for ever"
            for event in engine.step():
                told[event.request].append(event)
        assert all(engine.has_ended(number) for number in numbers)
        outcomes = [outcome(engine, number) for number in numbers]
        assert engine.caches.lent_bytes == 0
    return outcomes, list(told.values())


def assert_told(request, outcome, events):
    """Each result ends with one event, and holds no token that may not come."""
    ends = [event for event in events if event.reason]
    if isinstance(outcome, tuple):
        assert ends[-1].reason == FAILED and issubclass(type(ends[-1].error), outcome[0])
        assert issubclass(outcome[0], (NumericError, RuntimeError))
        return
    settings, wanted = request.settings, request.settings.get("num_return_sequences", 1)
    assert 1 <= len(outcome) <= wanted and (len(outcome) == wanted or "num_beams" in settings)
    assert sorted((e.result, e.reason) for e in ends) == [
        (k, reason) for k, (_, _, _, reason, _) in enumerate(outcome)
    ]
    forced = {*request.prefix, settings["forced_bos_token_id"], *settings["forced_eos_token_id"]}
    for tokens, log_probs, score, reason, _ in outcome:
        assert reason in (END, LENGTH, STOP, NO_TOKEN) and len(tokens) == len(log_probs)
        assert not np.isnan([*log_probs, score]).any()
        chosen = {*tokens} - forced
        assert not chosen & {*settings["suppress_tokens"]}
        assert chosen <= {*(settings["allowed_tokens"] or range(VOCAB))}
        if settings["no_repeat_ngram_size"] == 1:
            assert len({*tokens}) == len(tokens) or forced & {*tokens}


def check(seed):
    rng = np.random.default_rng(seed)
    name = MODELS[seed % len(MODELS)]
    model, has_source = tiny(name, seed), name in ("t5", "marian", "seq2seq", "writer")
    if name in READ and rng.random() < 0.5:
        weight = dict(model.named_parameters())[READ[name]]
        is_unknown = np.arange(len(weight.value))[:, None] == UNKNOWN
        weight.assign(np.where(is_unknown, np.nan, weight.value))
    with Engine(model, batch_invariant=True)._products():  # without C tested once
        requests, expected = [], []
        while len(requests) < 6:
            request = random_request(rng, has_source)
            try:
                outcomes, _ = run(model, [request])
            except ArgumentError:  # its settings contradict each other
                continue
            requests.append(request)
            expected += outcomes
        for step_tokens in (2048, 40):
            outcomes, told = run(model, requests, step_tokens)
            for k, request in enumerate(requests):
                assert_told(request, outcomes[k], told[k])
                assert outcomes[k] == expected[k], (k, request)
    return outcomes


@pytest.mark.parametrize("seed", quick(range(2), range(64)))
def test_each_request_ends_for_a_reason_with_what_it_has_alone(seed):
    check(seed)
