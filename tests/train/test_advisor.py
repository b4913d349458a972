"""`Trainer(advise_after=N)` tells once what would make its updates faster."""

import numpy as np
import pytest

from dynbatch import Graph, models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.train import SentenceBatches, Trainer

EXAMPLES = [np.ones((n, 4)) for n in range(1, 9)]


class Kept:
    """Makes graphs and keeps them."""

    def __init__(self):
        self.graphs = []

    def __call__(self):
        self.graphs.append(Graph())
        return self.graphs[-1]


def train(advise_after, num_epochs=2, **settings):
    """Four updates an epoch."""
    model, kept = models.Linear(4, 1), Kept()
    Trainer(
        model,
        optim.SGD(model, lr=0.1),
        lambda graph, model, rows: F.sum(model(F.input(graph, rows))),
        SentenceBatches(EXAMPLES, batch_size=2),
        advise_after=advise_after,
        make_graph=kept,
        show_progress=False,
        **settings,
    ).fit(num_epochs)
    return kept.graphs


def test_nothing_is_told_unless_it_is_asked_for_or_before_its_time(capsys):
    train(None)
    train(9)
    assert "what to change" not in capsys.readouterr().err


@pytest.mark.parametrize("fastest", [3, 4, 5])
def test_the_fastest_of_the_last_three_mini_batches_is_asked_once(capsys, monkeypatch, fastest):
    numbers = {}

    def seconds(record):
        number = numbers.setdefault(id(record.statistics), len(numbers))
        return float(record.statistics.nodes) * (1 if number == fastest - 3 else 2)

    monkeypatch.setattr("dynbatch.train.advisor.total_seconds", seconds)
    monkeypatch.setattr(
        "dynbatch.train.advisor.advice_text",
        lambda record, observed: f"advice of {id(record.statistics)}",
    )
    graphs = train(6)
    assert len(graphs) == 8
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("advice of")]
    assert told == [f"advice of {id(graphs[fastest].statistics)}"]


def test_an_update_of_several_mini_batches_counts_once(capsys):
    train(2, num_epochs=1, accumulate=2)
    assert capsys.readouterr().err.count("what to change") == 1


@pytest.mark.parametrize("updates", [0, 1.5])
def test_the_updates_before_are_one_or_more(updates):
    with pytest.raises(ArgumentError, match="advise_after is"):
        train(updates)
