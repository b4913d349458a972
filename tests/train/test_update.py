import sys

import numpy as np
import pytest

from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.train import SentenceBatches, Trainer, update


def loss(graph, model, example):
    return F.sum(model(F.input(graph, example)))


def calls_of_update(examples):
    """The calls within `dynbatch/train/update.py` for an update of so many examples."""
    batches = SentenceBatches([np.ones((1, 3), np.float32)] * examples, examples)
    model = models.Linear(3, 1)
    trainer = Trainer(model, optim.SGD(model, 0.1), loss, batches, num_tokens=len)
    ran = []
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code) if event == "call" else None)
    try:
        trainer.fit(1)
    finally:
        sys.setprofile(None)
    return len([code for code in ran if code.co_filename == update.__file__])


def test_an_example_costs_no_calls_for_errors_that_it_does_not_raise():
    assert calls_of_update(40) == calls_of_update(4)


@pytest.mark.parametrize("loss_of_batch", [False, True])
def test_a_type_error_of_a_loss_is_told_how_it_was_called(loss_of_batch):
    batches = SentenceBatches([np.ones((1, 3), np.float32)], 1)
    model = models.Linear(3, 1)

    def wrong(graph, model, example):
        raise TypeError("no")

    trainer = Trainer(model, optim.SGD(model, 0.1), wrong, batches, loss_of_batch=loss_of_batch)
    with pytest.raises(TypeError, match="no") as caught:
        trainer.fit(1)
    (note,) = caught.value.__notes__
    last = "examples is a list" if loss_of_batch else "example is a ndarray"
    assert last in note, note
