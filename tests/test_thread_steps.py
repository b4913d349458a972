import sys

import numpy as np
import pytest

from tests import thread_steps, threads
from tests.marks import exhaustive
from tests.thread_steps import OWN, PERIOD, SHARED

pytestmark = pytest.mark.slow


def every_kind(seed):
    """A step of each kind in turn."""
    steps = [make(seed) for make in OWN.values()]
    assert len(steps) == PERIOD
    return lambda number: steps[number](0)


@pytest.mark.parametrize(
    ("make", "steps"),
    [(OWN["lstm"], 32), (every_kind, 32), exhaustive(OWN["lstm"], 64), exhaustive(every_kind, 64)],
)
def test_threads_with_models_of_their_own_take_the_steps_that_each_takes_alone(make, steps):
    assert threads.check_threads(make, steps=steps) == (steps, 0, "")


@pytest.mark.parametrize("count", [2, exhaustive(4)])
def test_threads_that_read_one_model_get_what_it_gives_alone(count):
    steps = count * PERIOD
    found = threads.check_threads(SHARED["shared_model"], steps, count, shared=True)
    assert found == (steps, 0, "")


def test_a_step_that_others_change_is_counted():
    def make(seed):
        def step(number):
            taken.append(seed)
            return [repr(taken).encode()]

        return step

    taken = []
    found = threads.check_threads(make, steps=32)
    assert str(found).startswith("32 wrong of 32 steps: step 0 of model 0 gave other numbers")


def test_a_step_that_fails_is_counted_and_its_error_told():
    def make(seed):
        def step(number):
            if sys.getswitchinterval() < 1e-4:
                raise KeyError("only beside others")
            return []

        return step

    found = threads.check_threads(make, steps=32)
    assert found.wrong == 32
    assert "KeyError: 'only beside others'" in found.first


def test_the_switch_interval_is_put_back():
    before = sys.getswitchinterval()
    with pytest.raises(KeyError), threads.switching(1e-5):
        raise KeyError
    assert sys.getswitchinterval() == before


def test_the_command_counts_each_kind(capsys, monkeypatch):
    monkeypatch.setattr(threads, "OWN", {"lstm": OWN["lstm"]})
    monkeypatch.setattr(threads, "SHARED", {})
    assert threads.main(["--steps", "8", "--threads", "1"]) == 0
    assert capsys.readouterr().out == "lstm             0 wrong of 8 steps\n"


@pytest.mark.parametrize("kind", [*OWN, *SHARED])
def test_a_kind_gives_numbers_that_depend_on_model_and_step(kind):
    make = {**OWN, **SHARED}[kind]
    one, other = make(0), make(1)
    assert one(1) == make(0)(1)
    assert one(1) != other(1) or kind == "training"
    assert len({repr(one(number)) for number in range(PERIOD)}) > PERIOD // 2


def test_mini_batches_have_sentences_without_tokens():
    lengths = [len(x) for number in range(PERIOD) for x in thread_steps.sentences(0, number)]
    assert 0 in lengths and len(np.unique(lengths)) > 4
