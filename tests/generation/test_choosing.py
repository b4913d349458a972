"""The next tokens of many sentences at once."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.generation.choosing import choose
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.history import History
from dynbatch.generation.pages import Caches
from dynbatch.generation.processing import LogitsProcessing
from dynbatch.generation.reasons import FAILED
from dynbatch.generation.requests import Branch, GenerationRequest
from dynbatch.memory import Pool

V = 70


def add_five(logits, tokens):
    return logits + 50 * np.eye(V)[5].astype(logits.dtype)


def broken(logits, tokens):
    raise RuntimeError("of the hook")


SETTINGS = [
    {}, {"do_sample": True}, {"do_sample": True, "temperature": 0.5, "top_k": 9, "top_p": 0.8},
    {"repetition_penalty": 1.7, "presence_penalty": 0.3}, {"num_beams": 3},
    {"do_sample": True, "num_return_sequences": 3, "min_p": 0.1, "suppress_tokens": (3,)},
    {"no_repeat_ngram_size": 1, "num_beams": 2}, {"allowed_tokens": (7, 8)},
]  # fmt: skip


def request(settings, number=0, hook=None):
    config = GenerationConfig(**settings, max_new_tokens=4)
    context, caches = np.array([1, 2]), Caches([], np.dtype("float32"), Pool())
    processing = LogitsProcessing(config, [1, 2], V, 4, hook=hook)
    branch = Branch(0, History(caches), context, processing, None, random=number)
    return GenerationRequest(number, None, context, config, 4, branch, None)


def steps(requests, count, rows):
    """The events of some steps, whose logits follow from each sentence's tokens."""
    events = []
    for _ in range(count):
        ready = [(one, branch) for one in requests for branch in one.branches]
        ready = [(*pair, row) for row, pair in zip(rows(len(ready)), ready, strict=True)]
        logits = np.zeros((len(ready), V), np.float32)
        for one, branch, row in ready:
            seed = [one.number, *branch.processing.result]
            logits[row] = 2 * np.random.default_rng(seed).standard_normal(V)
        events.append(choose(ready, logits))
    return events


@pytest.mark.parametrize("seed", range(3))
def test_each_request_has_the_events_that_it_has_alone(seed):
    rng = np.random.default_rng(seed)
    hooks = [None] * len(SETTINGS) + [add_five, broken]
    given = [*SETTINGS, {}, {"do_sample": True}]
    requests = [request(s, k, hooks[k]) for k, s in enumerate(given)]
    together = steps(requests, 4, lambda n: rng.permutation(n).tolist())
    for k, settings in enumerate(given):
        alone = steps([request(settings, k, hooks[k])], 4, range)
        found = [[e for e in events if e.request == k] for events in together]
        assert [[e[:-1] for e in events] for events in found] == [
            [e[:-1] for e in events] for events in alone
        ]
    assert [e.token for e in together[0] if e.request == len(SETTINGS)] == [5]
    (failed,) = [e for events in together for e in events if e.reason == FAILED]
    assert failed.request == len(given) - 1 and str(failed.error) == "of the hook"
    assert not any([one.branches for one in requests])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_probabilities_have_the_bits_of_log_softmax(dtype):
    logits = (4 * np.random.default_rng(0).standard_normal((9, V))).astype(dtype)
    logits[3, 5:9] = -np.inf
    with db.Graph(dtype=dtype, grad=False) as graph:
        wanted = F.log_softmax(F.input(graph, logits)).value
    requests = [request({"do_sample": k % 2 == 1}, k) for k in range(9)]
    events = choose([(one, one.branches[0], k) for k, one in enumerate(requests)], logits)
    assert [e.log_prob for e in events] == [float(wanted[k, e.token]) for k, e in enumerate(events)]
    assert [e.token for e in events[::2]] == logits[::2].argmax(axis=1).tolist()


def test_plain_sentences_need_no_copy_and_no_edit(monkeypatch):
    def never(*given):
        raise AssertionError

    for name in ("edit_rows", "cut_rows", "rank_rows"):
        monkeypatch.setattr(f"dynbatch.generation.choosing.{name}", never)
    requests = [request({"do_sample": k % 2 == 1}, k) for k in range(4)]
    logits = np.random.default_rng(1).standard_normal((4, V)).astype(np.float32)
    before = logits.tobytes()
    assert len(choose([(one, one.branches[0], k) for k, one in enumerate(requests)], logits)) == 4
    assert logits.tobytes() == before
