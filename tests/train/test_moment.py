"""Losses of whole mini-batches, and that buffers are those of the last whole update."""

import numpy as np
import pytest

from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, NumericError
from dynbatch.train import SentenceBatches, Trainer

EXAMPLES = [np.random.default_rng(k).normal(k, 1, (2 + k % 3, 4)) for k in range(12)]


class Net(models.Module):
    def __init__(self):
        self.first, self.norm = models.Linear(4, 4, rng=0), models.BatchNorm(4)
        self.last = models.Linear(4, 1, rng=1)

    def losses(self, graph, examples):
        hidden = [F.tanh(self.first(F.input(graph, x))) for x in examples]
        return [F.sum(F.tanh(self.last(h))) for h in self.norm(graph, hidden)]


def trainer(path=None, after_loss=lambda calls: None, **settings):
    model, calls = Net(), []

    def loss(graph, model, examples):
        calls.append(len(examples))
        found = model.losses(graph, examples)
        after_loss(len(calls))
        return found

    return Trainer(
        model, optim.SGD(model, lr=0.01), loss, SentenceBatches(EXAMPLES, 3), loss_of_batch=True,
        checkpoint_path=path, show_progress=False, accumulate=2, **settings,
    )  # fmt: skip


def assert_same(left, right):
    for name, value in left.model.state_dict().items():
        assert np.array_equal(value, right.model.state_dict()[name]), name


def test_a_loss_of_whole_mini_batches_trains_and_tracks():
    run = trainer()
    first = run.model.first.weight.numpy()
    assert run.fit(2).step == 4
    assert run.model.norm.num_batches_tracked.value[0] == 8
    assert not np.array_equal(run.model.first.weight.value, first)
    assert not run.model.training


def test_ctrl_c_between_two_mini_batches_of_an_update_takes_their_statistics_back(tmp_path):
    whole = trainer()
    whole.fit(3)

    def interrupt(calls):
        if calls == 8:  # the second of the fourth update's; the first is in the statistics
            raise KeyboardInterrupt

    stopped = trainer(tmp_path / "run.safetensors", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(3)
    assert stopped.step == 3
    assert stopped.model.norm.num_batches_tracked.value[0] == 6
    resumed = trainer(tmp_path / "run.safetensors")
    assert resumed.resume()
    assert resumed.model.norm.num_batches_tracked.value[0] == 6
    resumed.fit(3)
    assert_same(resumed, whole)


def test_an_update_that_is_not_finite_leaves_the_statistics_of_the_one_before():
    def spoil(calls):
        if calls == 4:
            run.model.last.weight.value[:] = np.nan

    run = trainer(None, spoil)
    with pytest.raises(NumericError, match="step 2"):
        run.fit(1)
    assert run.model.norm.num_batches_tracked.value[0] == 2
    assert np.isfinite(run.model.norm.running_mean.value).all()


def test_losses_that_are_not_one_an_example_are_refused():
    model = Net()
    run = Trainer(
        model, optim.SGD(model, lr=0.01), lambda graph, model, xs: F.sum(model.losses(graph, xs)),
        SentenceBatches(EXAMPLES, 3), loss_of_batch=True, show_progress=False,
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="for 3 examples"):
        run.fit(1)
