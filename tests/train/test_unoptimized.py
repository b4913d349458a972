"""A parameter that backward reaches and the optimizer lacks is told once, by name."""

import warnings

import numpy as np
import pytest

from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.train import SentenceBatches, Trainer


class Tagger(models.Module):
    def __init__(self):
        self.embed = models.Embedding(7, 4, rng=0)
        self.project = models.Linear(4, 3, rng=1)
        self.unused = models.Linear(2, 2, rng=2)


def loss(graph, model, words):
    scores = model.project(model.embed(graph, words))
    return F.cross_entropy(scores, [word % 3 for word in words])


def trainer_of(model, optimizer):
    batches = SentenceBatches([[1, 2], [3], [4, 5, 6], [2]], batch_size=2)
    return Trainer(model, optimizer, loss, batches, show_progress=False)


def test_parameters_that_the_optimizer_lacks_are_named_once_at_the_users_line():
    model = Tagger()
    before = model.embed.weight.numpy()
    trainer = trainer_of(model, optim.Adam(model.project))
    with pytest.warns(UserWarning, match=r"stay as they are: embed\.weight\. optim\.Adam") as told:
        trainer.fit(2)
    assert np.array_equal(model.embed.weight.numpy(), before)
    assert len(told) == 1 and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(3)


def test_of_many_parameters_the_first_are_named():
    model = Tagger()
    model.layers = [models.Linear(4, 4, rng=k) for k in range(4)]

    def deep_loss(graph, model, words):
        h = model.embed(graph, words)
        for layer in model.layers:
            h = layer(h)
        return F.cross_entropy(model.project(h), [0] * len(words))

    trainer = Trainer(
        model, optim.SGD(model.embed, lr=0.1), deep_loss,
        SentenceBatches([[1, 2], [3]], batch_size=2), show_progress=False,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"layers\.1\.bias and 4 more\. optim\.SGD") as told:
        trainer.fit(1)
    assert len(told) == 1


@pytest.mark.parametrize("which", ["all", "frozen", "groups"])
def test_nothing_is_told_of_parameters_that_are_trained_frozen_or_unused(which):
    model = Tagger()
    if which == "frozen":
        model.embed.weight.frozen = True
    optimizer = {
        "all": lambda: optim.Adam(model),
        "frozen": lambda: optim.Adam(model.project),
        "groups": lambda: optim.Adam(
            [{"params": model.embed, "lr": 1e-3}, {"params": model.project}]
        ),
    }[which]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_of(model, optimizer).fit(1)
