import functools

import numpy as np
import pytest

from benchmarks.lengths import Batch
from benchmarks.measure import Contender, Disagreement, Timing, interleave, require_agreement


class Recorder(Contender):
    """Writes down what it is asked to train on; its loss falls by `fall` each time."""

    def __init__(self, name, log=None, start=10.0, fall=1.0, is_bucketed=False):
        self.name, self.is_bucketed = name, is_bucketed
        self.log = [] if log is None else log
        self.value, self.fall = start, fall

    def loss(self, prepared):
        return self.value

    def train(self, prepared):
        self.log.append((self.name, [int(source[0]) for source in prepared.sources]))
        before, self.value = self.value, self.value - self.fall
        return before

    def timed_train(self, prepared):
        self.train(prepared)
        return 0.25


def batch(first, count=6):
    sentences = [np.array([first + i]) for i in range(count)]
    return Batch(sentences, sentences)


@functools.cache
def run_two(rounds=2):
    log = []
    contenders = [Recorder("a", log), Recorder("b", log), Recorder("c", log, is_bucketed=True)]
    random, bucketed = [batch(0), batch(100)], [batch(1000), batch(1100)]
    timings = interleave(contenders, random, bucketed, rounds, np.random.default_rng(0), 0.0)
    return log, timings


def test_the_first_round_is_run_and_not_counted():
    log, timings = run_two(rounds=2)
    assert len(log) == 3 * 2 * 3
    assert {name: timing.seconds for name, timing in timings.items()} == {
        name: (0.25,) * 4 for name in "abc"
    }


def test_contenders_take_turns_on_the_same_batch_in_the_same_order():
    log, _ = run_two()
    for turn in range(0, len(log), 3):
        seen = dict(log[turn : turn + 3])
        assert sorted(seen) == ["a", "b", "c"]
        assert seen["a"] == seen["b"]
        assert sorted(seen["c"]) == [word + 1000 for word in sorted(seen["a"])]


def test_another_contender_begins_each_time():
    log, _ = run_two()
    assert {name for name, _ in log[::3]} == {"a", "b", "c"}


def test_rounds_repeat_sentences_and_not_their_order():
    log, _ = run_two(rounds=1)
    orders = [tuple(words) for name, words in log if name == "a" and min(words) == 0]
    assert len(orders) == 2
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def test_timing_reports_milliseconds():
    timing = Timing((0.004, 0.001, 0.002))
    assert (timing.median_ms, timing.fastest_ms, timing.slowest_ms) == (2.0, 1.0, 4.0)


def test_agreement_returns_the_losses_before_and_after():
    losses = require_agreement(Recorder("a"), [Recorder("b", start=10.0005)], batch(0))
    assert losses == {"a": (10.0, 9.0), "b": (10.0005, 9.0005)}


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (Recorder("b", start=10.002), r"b and a do not compute the same: loss 10.002 and 10"),
        (Recorder("b", fall=1.02), r"fall of the loss by one update 1.02 and 1"),
        (Recorder("b", start=float("nan")), r"loss nan"),
    ],
)
def test_disagreement_stops_the_run_and_says_who_differs(other, complaint):
    with pytest.raises(Disagreement, match=complaint):
        require_agreement(Recorder("a"), [other], batch(0))
