"""A mini-batch in parts has the gradients of the whole: the mean is over all of its tokens."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F

WORDS, WIDTH = 23, 16


class LanguageModel(models.Module):
    """A small GPT; the loss of one sentence is summed over its words."""

    def __init__(self, dropout=0.0):
        self.embed = models.Embedding(WORDS, WIDTH, rng=0)
        self.body = models.TransformerEncoder(
            2, WIDTH, 2, activation="gelu", norm_first=True, dropout=dropout, rng=1
        )
        self.output = models.Linear(WIDTH, WORDS, rng=2)

    def loss(self, graph, words):
        x = self.body(self.embed(graph, words[:-1]), causal=True)
        return F.cross_entropy(self.output(x), words[1:], reduction="sum")


def sentences():
    rng = np.random.default_rng(3)
    return [rng.integers(0, WORDS, length + 1) for length in (1, 40, 2, 3, 25, 1, 2, 7, 11, 1)]


def tokens(words):
    return len(words) - 1


def parts_of(batch, count):
    return [batch[k::count] for k in range(count)]


def accumulated(parts, count):
    """Gradients of all parts, each with a graph of its own, divided by `count` tokens."""
    model = LanguageModel()
    for part in parts:
        with db.Graph() as graph:
            graph.backward(F.sum([model.loss(graph, words) for words in part]) / count)
    return gradients_of(model)


def gradients_of(model):
    gradients = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        gradients[name] = grad if isinstance(grad, np.ndarray) else grad.dense()
    return gradients


def largest_difference(found, expected):
    """The largest difference of all gradients, relative to the largest number in each."""
    assert found.keys() == expected.keys()
    return max(
        np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max() for name in found
    )


@pytest.mark.parametrize("count", [2, 3, 10])
def test_graphs_of_parts_add_up_to_the_gradients_of_the_whole(count):
    batch = sentences()
    total = sum(map(tokens, batch))
    whole = accumulated([batch], total)
    assert largest_difference(accumulated(parts_of(batch, count), total), whole) <= 1e-6


def test_the_mean_of_the_parts_means_is_another_gradient():
    batch = sentences()
    whole = accumulated([batch], sum(map(tokens, batch)))
    model, parts = LanguageModel(), parts_of(batch, 2)
    for part in parts:
        with db.Graph() as graph:
            mean = F.sum([model.loss(graph, words) for words in part]) / sum(map(tokens, part))
            graph.backward(mean / len(parts))
    assert largest_difference(gradients_of(model), whole) > 0.1


def test_a_memory_limit_divides_a_batch_of_tokens_and_changes_nothing_dropout_included():
    batch = sentences()
    results = []
    for share in (1.0, 0.4):
        model = LanguageModel(dropout=0.2)
        with db.Graph(seed=5) as graph:
            losses = [model.loss(graph, words) for words in batch]
            loss = F.sum(losses) / sum(map(tokens, batch))
            limit = int(share * graph.estimate(loss).peak_bytes)
            graph.backward(loss, memory_limit=limit)
            saving = graph.memory_use.saving
        results.append((float(loss.value), gradients_of(model), saving))
    (whole, expected, _), (found, gradients, saving) = results
    assert "parts" in saving or "micro-batches" in saving, saving
    assert found == pytest.approx(whole, rel=1e-6)
    assert largest_difference(gradients, expected) <= 1e-6


def test_a_trainer_that_counts_tokens_updates_alike_within_a_limit(tmp_path):
    class Batches:
        def epoch(self, number):
            return [sentences()]

    def moved(limit):
        """The distance that an update moves each parameter, and its line of the metrics.

        The rate is high, so that sums with the values before round nothing off.
        """
        model = LanguageModel()
        before = {name: p.value.copy() for name, p in model.named_parameters()}
        trainer = train.Trainer(
            model,
            optim.SGD(model.parameters(), lr=64.0),
            lambda graph, model, words: model.loss(graph, words),
            Batches(),
            num_tokens=tokens,
            memory_limit=limit,
            metrics_path=tmp_path / "metrics.jsonl",
            show_progress=False,
        )
        trainer.fit(1)
        (record,) = train.read_metrics(tmp_path / "metrics.jsonl")
        after = dict(model.named_parameters())
        return {name: after[name].value - value for name, value in before.items()}, record

    expected, whole = moved(None)
    found, limited = moved(whole["peak_bytes"] // 2)
    assert limited["peak_bytes"] <= whole["peak_bytes"] // 2
    assert limited["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert largest_difference(found, expected) <= 1e-6


class LongSentences:
    """Five mini-batches an epoch, of very different lengths, one part or several an update."""

    def __init__(self, parts):
        self.parts = parts

    def epoch(self, number):
        batch = sentences()
        whole = [batch[0:2], batch[2:5], batch[5:6], batch[6:8], batch[8:10]]
        if self.parts:
            return whole
        return [[words for part in whole[k : k + 2] for words in part] for k in (0, 2, 4)]


def trained(folder, parts, **settings):
    """A float64 model after two epochs of three updates, and its lines of the metrics."""
    model = LanguageModel().astype(np.float64)
    optimizer = optim.Adam(model, lr=0.01)
    trainer = train.Trainer(
        model,
        optimizer,
        lambda graph, model, words: model.loss(graph, words),
        LongSentences(parts),
        accumulate=2 if parts else 1,
        schedule=optim.InverseSqrt(optimizer, 2),
        make_graph=lambda: db.Graph(dtype="float64"),
        metrics_path=folder / "metrics.jsonl",
        show_progress=False,
        **settings,
    )
    trainer.fit(2)
    return model.state_dict(), train.read_metrics(folder / "metrics.jsonl")


@pytest.mark.parametrize("num_tokens", [tokens, None], ids=["tokens", "sentences"])
def test_updates_of_several_mini_batches_equal_those_of_large_ones(tmp_path, num_tokens):
    settings = dict(num_tokens=num_tokens, clip_norm=0.1)
    expected, whole = trained(tmp_path, False, **settings)
    found, parts = trained(tmp_path, True, **settings)
    assert [record["sentences"] for record in parts] == [5, 3, 2] * 2  # the last has what is left
    for one, other in zip(whole, parts, strict=True):
        assert one.keys() == other.keys()
        for name in ("step", "epoch", "sentences", "tokens", "loss", "gradient_norm", "lr"):
            assert other.get(name, 0) == pytest.approx(one.get(name, 0), rel=1e-12)
        assert other["gradient_norm"] > 0.1  # clipped once, after all mini-batches
    assert max(r["peak_bytes"] for r in parts) < 0.9 * max(r["peak_bytes"] for r in whole)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)


def test_several_mini_batches_keep_within_a_memory_limit(tmp_path):
    expected, free = trained(tmp_path, True, num_tokens=tokens)
    limit = max(record["peak_bytes"] for record in free) * 6 // 10
    found, limited = trained(tmp_path, True, num_tokens=tokens, memory_limit=limit)
    assert max(record["peak_bytes"] for record in limited) <= limit
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12, err_msg=name)
