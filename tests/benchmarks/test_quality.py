"""The results of examples: both sides compute the same, and the table says what is missing."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

import dynbatch as db
from benchmarks.quality import __main__ as command
from benchmarks.quality import training, translation, trees
from benchmarks.quality.table import NUM_SEEDS, conclusion, table
from benchmarks.quality.task import LikeLengths
from dynbatch import optim
from dynbatch.text import ParallelText
from examples.corpora import listops, pairs
from examples.trees.listops import Settings, TreeEvaluator, evaluation
from examples.trees.node_classifier import LabelledTree

pytestmark = pytest.mark.usefixtures("same_threads")

SIZES = {"embed": 6, "hidden": 8}


class Messages(translation.Messages):
    options = "libreoffice --embed 6 --hidden 8 --dropout 0.2"


class ListOps(trees.ListOps):
    def __init__(self):
        self.model = TreeEvaluator(**SIZES)
        drawn = [evaluation(one) for one in listops.draw(12, 0)]
        self.train_on_trees(drawn, Settings(batch_size=8))


class Nodes(trees.OfNodes):
    """Random trees, one of a node alone."""

    def __init__(self):
        rng = np.random.default_rng(0)
        known = []
        for count in (1, 7, 4, 12):
            heads = np.array([-1, *[rng.integers(0, node) for node in range(1, count)]])
            asked = rng.permutation(count)[: (count + 1) // 2]
            features = rng.integers(0, 5, (2, count))
            known.append(LabelledTree(features, heads, asked, rng.integers(0, 3, len(asked))))
        self.train_on_nodes(known, (5, 5), 3, Settings(batch_size=4, dropout=0.2, **SIZES))


@pytest.fixture
def messages(monkeypatch):
    """A few short texts instead of LibreOffice's messages, which are fetched."""
    rng = np.random.default_rng(0)
    texts = sorted({" ".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(60)})
    corpus = pairs.split([ParallelText(text, (text[::-1],)) for text in texts])
    monkeypatch.setitem(pairs.CORPORA, "libreoffice", lambda: corpus)
    monkeypatch.setitem(translation.MessagesByTransformer.settings, "hidden", 8)


@pytest.mark.parametrize("make", [Messages, translation.MessagesByTransformer, ListOps, Nodes])
def test_both_sides_lose_the_same_by_an_update(make, messages):
    """Dropout aside."""
    db.seed(0)
    task = make()
    training._compare(task)  # leaves dropout off
    batch = next(iter(task.batches(0)))
    start = {name: each.value.copy() for name, each in task.model.named_parameters()}
    ours, theirs = training._dynbatch, training._pytorch
    losses = []
    for step_of in (lambda *given: ours(*given, "dynbatch"), theirs):
        for name, each in task.model.named_parameters():
            each.value[:] = start[name]
        step = step_of(task, optim.Adam(task.model, 1e-3))
        losses.append([step(batch)[0] for _ in range(2)])
    assert losses[0][1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_mini_batches_of_like_lengths_have_every_example_once():
    lengths = np.random.default_rng(0).integers(1, 40, 500).tolist()
    batches = LikeLengths(lengths, 100, int)
    batches.pool = 250
    for epoch in (0, 1):
        made = list(batches.epoch(epoch))
        assert sorted([one for batch in made for one in batch]) == sorted(lengths)
        assert max([sum(batch) for batch in made]) <= 100
        assert sum([len(batch) * max(batch) for batch in made]) < 1.2 * sum(lengths)
    assert batches.indices(0) == batches.indices(0) != batches.indices(1)


def lines(seeds, side="dynbatch", commit="abc"):
    return [
        {
            "task": "scan", "side": side, "seed": seed, "quality": {"wrong": seed + 1.0},
            "seconds": 60.0, "peak_mb": 7.0, "commit": commit,
        }
        for seed in seeds
    ]  # fmt: skip


def test_the_table_says_how_many_seeds_are_missing():
    assert NUM_SEEDS == 3
    results = [*lines([0, 1, 2]), *lines([1], "pytorch", "def")]
    *_, row = table(results, {"scan": translation.Scan}).splitlines()
    assert "| wrong | 2.00 (1.00 – 3.00) | – | 2.00 (1 of 3 seeds) | 1 / – / 1 |" in row
    assert row.endswith("| abc, def |")


def test_a_training_that_fails_is_named_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "RESULTS", tmp_path / "quality.json")
    monkeypatch.setattr(command, "write_table", lambda *_: None)
    ran = []

    def run(arguments, **_):
        """The training of seed 1 fails."""
        ran.append(arguments)
        outcome = json.dumps({"quality": {"wrong": 0.0}})
        return command.subprocess.CompletedProcess(arguments, int("1" in arguments), f"{outcome}\n")

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setattr("sys.argv", ["quality", "scan", "--sides", "pytorch"])
    assert command.main() == 1
    assert capsys.readouterr().err == "failed: scan --sides pytorch --seeds 1\n"
    assert [each["seed"] for each in command.results()] == [0, 2]


def test_the_conclusion_names_what_differs_where_all_seeds_are_there():
    tasks = {"scan": translation.Scan}
    slower = [{**one, "seconds": 150.0, "peak_mb": 14.0} for one in lines([0, 1, 2], "pytorch")]
    assert conclusion([*lines([0, 1]), *slower], tasks) == ""
    told = conclusion([*lines([0, 1, 2]), *slower], tasks)
    assert "overlap in 1 of 1 measures. PyTorch takes 2.5 (`scan`) times the minutes" in told
    worse = [{**one, "quality": {"wrong": 9.0}} for one in slower]
    assert "0 of 1 measures. They do not in `scan`: wrong." in conclusion(
        [*lines([0, 1, 2]), *worse], tasks
    )
