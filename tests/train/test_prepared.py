"""Prepared mini-batches: the same for any workers, in order, errors with places, clean ends."""

import _thread
import itertools
import multiprocessing
import threading
import time

import numpy as np
import pytest

from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.train import PreparedBatches, SentenceBatches, TokenBatches, Trainer

PLAIN = SentenceBatches(range(23), batch_size=4, seed=5)


def augmented(example, rng):
    """An example with numbers of its own; early ones take longest."""
    time.sleep(0.002 if example % 5 == 0 else 0)
    return example, float(rng.random())


def failing_at_7(example, rng):
    if example == 107:
        raise ValueError("not a picture")
    return example


def thread_names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prepare")]


@pytest.mark.parametrize("settings", [{"workers": 1}, {"workers": 5, "ahead": 1}, {}])
def test_batches_are_the_same_for_any_number_of_workers(settings):
    alone = list(PreparedBatches(PLAIN, augmented, workers=0).epoch(3))
    assert list(PreparedBatches(PLAIN, augmented, **settings).epoch(3)) == alone
    assert [[example for example, _ in batch] for batch in alone] == PLAIN.epoch(3)
    numbers = [number for batch in alone for _, number in batch]
    assert len(set(numbers)) == 23
    assert list(PreparedBatches(PLAIN, augmented).epoch(4)) != alone
    assert thread_names() == []


def test_processes_prepare_the_same_and_end():
    batches = PreparedBatches(PLAIN, augmented, workers=2, processes=True)
    assert list(batches.epoch(0)) == list(PreparedBatches(PLAIN, augmented, workers=0).epoch(0))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("settings", [{"workers": 0}, {}, {"workers": 2, "processes": True}])
def test_an_error_comes_in_its_place_and_names_the_example(settings):
    plain = SentenceBatches(range(100, 123), batch_size=4, seed=5)
    given = PreparedBatches(plain, failing_at_7, **settings).epoch(0)
    before = list(itertools.takewhile(lambda batch: 107 not in batch, plain.epoch(0)))
    assert list(itertools.islice(given, len(before))) == before
    with pytest.raises(ValueError, match="not a picture") as raised:
        next(given)
    assert any("example 7 of the list" in note for note in raised.value.__notes__)
    assert thread_names() == [] and multiprocessing.active_children() == []


def test_no_more_is_prepared_ahead_than_asked():
    begun = []
    batches = PreparedBatches(PLAIN, lambda example, rng: begun.append(example), ahead=2)
    given = batches.epoch(0)
    assert begun == []
    next(given)
    given.close()
    assert 4 <= len(begun) <= 12
    assert thread_names() == []


def test_batches_by_tokens_are_prepared_too():
    plain = TokenBatches(["aaa", "b", "cc", "dddddd"], max_tokens=4)
    batches = PreparedBatches(plain, lambda text, rng: text.upper())
    assert [[text.lower() for text in batch] for batch in batches.epoch(1)] == plain.epoch(1)
    assert batches.num_batches(1) == len(plain.epoch(1))
    assert batches.summary() == plain.summary()


def trainer(path, prepare, workers):
    model = models.Linear(3, 1, rng=0)
    batches = PreparedBatches(PLAIN, prepare, workers=workers)
    return Trainer(
        model, optim.Adam(model),
        lambda graph, model, x: F.sum(model(F.input(graph, x))), batches,
        checkpoint_path=path, show_progress=False,
    )  # fmt: skip


def vector(example, rng):
    return (example + rng.random(3)).astype(np.float32)


def test_ctrl_c_saves_ends_the_workers_and_resumes_to_the_same_bits(tmp_path):
    whole = trainer(tmp_path / "whole.safetensors", vector, workers=0)
    whole.fit(2)
    taken = []

    def interrupting(example, rng):
        taken.append(example)
        if len(taken) == 15:
            _thread.interrupt_main()
        return vector(example, rng)

    stopped = trainer(tmp_path / "run.safetensors", interrupting, workers=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(2)
    assert thread_names() == []
    prepared = []

    def noting(example, rng):
        prepared.append(example)
        return vector(example, rng)

    resumed = trainer(tmp_path / "run.safetensors", noting, workers=2)
    assert resumed.resume()
    left = 2 * 23 - sum(map(len, PLAIN.epoch(0)[: resumed.position]))
    assert resumed.epoch == 0
    resumed.fit(2)
    assert len(prepared) == left  # what was done before is not prepared again
    for name, value in whole.model.state_dict().items():
        assert np.array_equal(value, resumed.model.state_dict()[name])


def test_wrong_arguments_say_what_to_give():
    with pytest.raises(ArgumentError, match="with the examples' places"):
        PreparedBatches([1, 2], augmented)
    with pytest.raises(ArgumentError, match="workers is -1"):
        PreparedBatches(PLAIN, augmented, workers=-1)
    with pytest.raises(ArgumentError, match="a function at the top of a module"):
        PreparedBatches(PLAIN, lambda example, rng: example, processes=True)
