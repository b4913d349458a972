"""A `Trainer` on several ranks makes the updates of one process, whichever rank has what."""

import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, random
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError, ParallelError
from dynbatch.interrupts import Terminated, noted_interrupts
from dynbatch.parallel import Communicator, Cost
from dynbatch.parallel.connect import _communicators
from dynbatch.row_sparse import RowSparse
from dynbatch.train import SentenceBatches, Trainer, read_checkpoint, read_metrics
from tests.marks import quick
from tests.parallel.ranks import on_ranks

WORDS, CLASSES = 13, 3
RARE = 12
"""A word that only some sentences have; they read a parameter that others do not."""


def sentence(number):
    rng = np.random.default_rng(number // 2)  # each one twice: equal sentences
    return rng.integers(0, WORDS, 1 + number % 10 // 2)


EXAMPLES = [sentence(number) for number in range(62)]


class Tagger(models.Module):
    def __init__(self, seed=0):
        self.embed = models.Embedding(WORDS, 6, rng=seed)
        self.hidden = models.Linear(6, 5, rng=seed + 1)
        self.output = models.Linear(5, CLASSES, rng=seed + 2)
        self.rare = models.Linear(5, 5, rng=seed + 3)

    def loss(self, graph, words):
        h = F.tanh(self.hidden(F.dropout(self.embed(graph, words), 0.3, self.training)))
        if RARE in words:
            h = h + self.rare(h)
        return F.cross_entropy(self.output(h), words % CLASSES, reduction="sum")


def loss(graph, model, words):
    return model.loss(graph, words)


class Run:
    """A training run on one rank, and the gradients of its updates."""

    def __init__(self, communicator=None, dtype="float32", batch_size=31, seed=0, **settings):
        random.seed(3)
        self.model = Tagger(seed).astype(dtype)
        self.optimizer = settings.pop("optimizer", optim.SGD)(self.model, lr=0.05)
        self.gradients = []
        batches = SentenceBatches(settings.pop("examples", EXAMPLES), batch_size)
        options = dict(
            num_tokens=len, show_progress=False, make_graph=lambda: db.Graph(dtype=dtype)
        )
        given = {"loss_function": loss, **options, **settings}
        self.trainer = Trainer(
            self.model, self.optimizer, batches=batches, communicator=communicator, **given
        )
        self.optimizer.step = self.noting(self.optimizer.step)

    def noting(self, step):
        def noted():
            named = self.optimizer.named_parameters()
            self.gradients.append({name: dense(each.grad) for name, each in named})
            step()

        return noted

    def weights(self):
        return {name: value.copy() for name, value in self.model.state_dict().items()}


def dense(grad):
    return grad.dense() if isinstance(grad, RowSparse) else None if grad is None else grad.copy()


def difference(found, wanted):
    """The difference of all arrays together, as a part of the largest number."""
    assert found.keys() == wanted.keys()
    names = [name for name in wanted if wanted[name] is not None]
    assert names == [name for name in found if found[name] is not None]
    largest = max([np.abs(wanted[name]).max() for name in names])
    return max([np.abs(found[name] - wanted[name]).max() for name in names]) / largest


def uneven(batch, size):
    """Shards of 1 and 30 of 31 examples; of four ranks one has none."""
    places = list(range(len(batch)))
    return [places[:1], places[1:]] if size == 2 else [places[:1], [], places[1:9], places[9:]]


def fitted(communicator, epochs=10, **settings):
    run = Run(communicator, **settings)
    run.trainer.fit(epochs)
    return run


@pytest.mark.parametrize(
    ("size", "dtype", "tolerance"),
    quick(
        [(2, "float32", 1e-6)],
        [(size, *dtype) for size in (2, 4) for dtype in (("float32", 1e-6), ("float64", 1e-12))],
    ),
)
def test_uneven_shards_make_the_updates_of_one_process(size, dtype, tolerance):
    alone = fitted(None, dtype=dtype)
    assert alone.trainer.step == 20
    runs = on_ranks(size, lambda communicator: fitted(communicator, dtype=dtype, shards=uneven))
    for run in runs:
        assert run.weights().keys() == alone.weights().keys()
        for own, first in zip(run.weights().values(), runs[0].weights().values(), strict=True):
            np.testing.assert_array_equal(own, first)
        for found, wanted in zip(run.gradients, alone.gradients, strict=True):
            assert difference(found, wanted) <= tolerance
        assert difference(run.weights(), alone.weights()) <= tolerance


def test_what_is_written_is_of_all_ranks_and_once(tmp_path):
    def settings(name):
        return dict(
            checkpoint_path=tmp_path / name / "run.safetensors", validate=len_of_weights,
            metrics_path=tmp_path / name / "metrics.jsonl", accumulate=2, clip_norm=0.5, watch=1,
            schedule=None, batch_size=5, epochs=2,
        )  # fmt: skip

    fitted(None, **settings("one"))
    on_ranks(3, lambda communicator: fitted(communicator, **settings("three")))
    one, three = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "three")]
    for found, wanted in zip(three, one, strict=True):
        assert found.keys() == wanted.keys()
        for name in ("step", "epoch", "sentences", "tokens", "is_best"):
            assert found.get(name) == wanted.get(name)
        for name in ("loss", "gradient_norm", "metric"):
            if name in wanted:
                assert found[name] == pytest.approx(wanted[name], rel=1e-5)
    steps = [read_checkpoint(tmp_path / name / "run.safetensors") for name in ("one", "three")]
    assert steps[0].graph_random == steps[1].graph_random
    assert steps[0].step == steps[1].step == 14


def len_of_weights(model):
    return float(np.abs(model.output.weight.numpy()).sum())


def test_a_signal_on_one_rank_ends_all_after_one_update_and_any_number_goes_on(tmp_path):
    settings = dict(
        checkpoint_path=tmp_path / "run.safetensors", optimizer=optim.Adam, batch_size=8,
    )  # fmt: skip
    alone = fitted(None, epochs=3, **{**settings, "checkpoint_path": None})

    def interrupted(communicator):
        def terminated(graph, model, words):
            if run.trainer.step == 4 and communicator.rank == 1:
                run.trainer.ranks._noted.append(signal.SIGTERM)
            return loss(graph, model, words)

        run = Run(communicator, loss_function=terminated, **settings)
        with pytest.raises(Terminated):
            run.trainer.fit(3)
        return run.trainer.step

    def resumed(communicator):
        run = Run(communicator, seed=9, **settings)
        assert run.trainer.resume()
        run.trainer.fit(2 if communicator.size == 3 else 3)
        return run

    assert on_ranks(2, interrupted) == [5, 5]
    on_ranks(3, resumed)
    assert read_checkpoint(tmp_path / "run.safetensors").epoch == 2
    (last,) = on_ranks(1, resumed)
    assert difference(last.weights(), alone.weights()) <= 1e-4  # Adam divides by small numbers


@pytest.mark.parametrize(
    ("shards", "told"),
    [
        (lambda batch, size: [range(9), range(8, 31)], "each place from 0 to 30"),
        (None, "digest of shards"),
    ],
)
def test_shards_that_are_not_of_one_cut_are_refused(shards, told):
    def do(communicator):
        first = communicator.rank + 1
        own = shards or (lambda batch, size: [range(first), range(first, len(batch))])
        fitted(communicator, shards=own)

    with pytest.raises((ArgumentError, ParallelError), match=told):  # its own or the other's
        on_ranks(2, do)


def test_shards_by_cost_are_those_of_the_run_when_it_is_resumed(tmp_path):
    """They leave the updates as they are; another cost would add in another order."""
    path = tmp_path / "run.safetensors"
    costs = [Cost(token=(1.0,), longest=(most,)) for most in (3.0, 4.0)]
    alone = fitted(None, epochs=1)

    def do(communicator):
        settings = dict(checkpoint_path=path, shards=costs[0].cut(len))
        run = fitted(communicator, epochs=1, **settings)
        other = Run(communicator, **{**settings, "shards": costs[1].cut(len)})
        with pytest.raises(CheckpointError, match=r'"longest": \[3.0\].*"longest": \[4.0\].* now'):
            other.trainer.resume()
        assert Run(communicator, **settings).trainer.resume()
        return run

    for run in on_ranks(2, do):
        assert difference(run.weights(), alone.weights()) <= 1e-5
    with pytest.raises(ParallelError, match=r"cost of a shard: .* on rank 0; .* on rank 1"):
        on_ranks(2, lambda ranks: fitted(ranks, shards=costs[ranks.rank].cut(len)))
    costs = [Cost(token=(1 / 3,) * 3, longest=(1 / 7,) * 3, fixed=k) for k in range(2)]
    with pytest.raises(ParallelError, match="cost of a shard: "):  # far behind in the text
        on_ranks(2, lambda ranks: fitted(ranks, shards=costs[ranks.rank].cut(lambda x: [1, 2, 3])))


def test_a_rank_that_begins_otherwise_gets_the_parameters_of_rank_0():
    def do(communicator):
        return fitted(communicator, epochs=1, seed=communicator.rank).weights()

    first, second = on_ranks(2, do)
    assert all([np.array_equal(first[name], second[name]) for name in first])
    assert difference(first, fitted(None, epochs=1).weights()) <= 1e-6


def with_frozen_rows(model, lr):
    model.embed.weight.frozen_rows = [1, 3]
    return optim.SGD(model, lr)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (dict(clip_norm=1.0), "clip_norm: None on ranks 0, 2; 1.0 on rank 1"),
        (
            dict(examples=EXAMPLES[:-1]),
            "number of examples: 62 on ranks 0, 2; 61 on rank 1(?s:.*)fix:  give every rank all ex",
        ),
        (
            dict(examples=EXAMPLES[::-1]),
            "digest of the examples: (?s:.*)fix:  make the same examples (?s:.*) fixed seed, and\n"
            " *sort what comes from a set",
        ),
        (
            dict(optimizer=lambda model, lr: optim.SGD(model, lr=1.0)),
            "lr of the optimizer: 0.05 on ranks 0, 2; 1.0 on rank 1",
        ),
        (
            dict(optimizer=lambda model, lr: optim.SGD([{"params": model}], lr, momentum=0.5)),
            "momentum of the optimizer: 0.0 on ranks 0, 2; 0.5 on rank 1",
        ),
        (dict(dtype="float64"), "parameter 'embed.weight': float32"),
        (dict(optimizer=with_frozen_rows), "parameter 'embed.weight': .*, 2 rows frozen on rank 1"),
    ],
)
def test_ranks_that_differ_are_told_in_what(changed, told):
    def do(communicator):
        fitted(communicator, epochs=1, **(changed if communicator.rank == 1 else {}))

    with pytest.raises(ParallelError, match=told):
        on_ranks(3, do)


def test_ranks_with_unequally_many_mini_batches_are_told_so():
    def do(communicator):
        batches = SimpleNamespace(epoch=lambda n: [EXAMPLES[:2]] * (2 + communicator.rank))
        run = Run(communicator)
        run.trainer.batches = batches
        run.trainer.fit(1)

    with pytest.raises(ParallelError, match="mini-batches left: none on rank 0; some on rank 1"):
        on_ranks(2, do)


def test_a_loss_that_is_not_finite_on_one_rank_ends_all_before_the_update():
    def do(communicator):
        def wrong(graph, model, words):
            bad = communicator.rank == 1 and run.trainer.step == 2
            return loss(graph, model, words) * (np.nan if bad else 1.0)

        run = Run(communicator, loss_function=wrong)
        with pytest.raises(db.errors.NumericError, match=r"step 3 .*rank 1: "):
            run.trainer.fit(3)
        return run.trainer.step, run.weights()

    (step, first), (_, second) = on_ranks(2, do)
    assert step == 2
    assert all([np.array_equal(first[name], second[name]) for name in first])


class Normed(Tagger):
    def __init__(self, seed=0):
        super().__init__(seed)
        self.norm = models.BatchNorm(5)

    def normed(self, graph, words):
        h = self.norm(graph, [self.hidden(self.embed(graph, words))])[0]
        return F.cross_entropy(self.output(h), words % CLASSES, reduction="sum")


def test_batch_norm_is_refused():
    def of_batch(communicator):
        Run(communicator, loss_of_batch=True)

    with pytest.raises(ArgumentError, match="loss_of_batch with 2 processes"):
        on_ranks(2, of_batch)

    def of_one(communicator):
        model = Normed()
        batches = SentenceBatches([np.arange(k + 2) for k in range(6)], 6)
        Trainer(
            model, optim.SGD(model, lr=0.1), lambda graph, model, words: model.normed(graph, words),
            batches, communicator=communicator, show_progress=False,
        ).fit(1)  # fmt: skip

    with pytest.raises(ParallelError, match=r"digest of 'norm.running_mean'(?s:.*)norm.eval"):
        on_ranks(2, of_one)


def test_signals_are_noted_and_a_second_one_takes_effect():
    noted = []
    with pytest.raises(KeyboardInterrupt), noted_interrupts(noted):
        signal.raise_signal(signal.SIGINT)
        assert noted == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), noted_interrupts(noted := []):
        signal.raise_signal(signal.SIGINT)


def test_a_trainer_alone_among_connected_processes_warns():
    Run()  # nothing is connected

    def do(communicator):
        _communicators.add(communicator)  # as `connect` does
        communicator.barrier()
        if communicator.rank == 0:
            with pytest.warns(UserWarning, match="2 processes are connected, and this one trains"):
                Run()
            Run(Communicator())
            Run(communicator)
        communicator.barrier()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_ranks(2, do)
        Run()  # all are closed
