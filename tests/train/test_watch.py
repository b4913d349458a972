"""`Trainer(watch=N)`: what the metrics file says about every parameter."""

import numpy as np
import pytest

from dynbatch import Graph, optim, random
from dynbatch import nodes as F
from dynbatch.kernels.runtime.transfer import to_host
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from dynbatch.train import SentenceBatches, Trainer, read_metrics
from dynbatch.train.watch import Watched
from tests.cuda import devices

EXAMPLES = [np.random.default_rng(i).integers(0, 9, 1 + i % 4) for i in range(12)]


class Model(Module):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.table = Parameter(rng.standard_normal((11, 6)).astype(np.float32))  # two rows unread
        self.weight = Parameter(rng.standard_normal((5, 6)).astype(np.float32))
        self.bias = Parameter(np.zeros(5, np.float32))
        self.frozen = Parameter(np.ones(3, np.float32))
        self.frozen.frozen = True

    def loss(self, graph, words):
        logits = F.linear(F.lookup(graph, self.table, words), self.weight, self.bias)
        return F.cross_entropy(logits, [1] * len(words), reduction="sum")


def trainer_of(folder, device="cpu", watch=2, **settings):
    model = Model().to(device)
    optimizer = optim.Adam(model, lr=0.01, weight_decay=0.1)
    batches = SentenceBatches(EXAMPLES, batch_size=3)
    return Trainer(
        model, optimizer, lambda graph, model, words: model.loss(graph, words), batches,
        watch=watch, num_tokens=len, metrics_path=folder / "metrics.jsonl",
        show_progress=False, **settings,
    )  # fmt: skip


def dense(grad):
    values = grad.dense() if isinstance(grad, RowSparse) else grad
    return to_host(values).astype(np.float64)


def spied(trainer):
    """Weights and gradients before each update, and weights after it, as float64."""
    seen, step, backward = [], trainer.optimizer.step, Graph.backward

    def values():
        return {n: p.numpy().astype(np.float64) for n, p in trainer.model.named_parameters()}

    def noting(graph, loss, limit=None):
        backward(graph, loss, limit)
        named = trainer.model.named_parameters()
        grads = {name: dense(p.grad) for name, p in named if p.grad is not None}
        seen.append([values(), grads])

    def stepping():
        step()
        seen[-1].append(values())

    trainer.optimizer.step = stepping
    return seen, noting


def test_statistics_are_those_that_their_names_say(tmp_path, monkeypatch, device):
    trainer = trainer_of(tmp_path, device, clip_norm=0.05)
    seen, noting = spied(trainer)
    monkeypatch.setattr(Graph, "backward", noting)
    trainer.fit(2)
    records = read_metrics(tmp_path / "metrics.jsonl")
    watched = [record for record in records if "parameters" in record]
    assert [(record["step"], record["epoch"]) for record in watched] == [
        (1, 0), (3, 0), (5, 1), (7, 1),
    ]  # fmt: skip
    norms = {record["step"]: record["gradient_norm"] for record in records if "loss" in record}
    for record in watched:
        before, grads, after = seen[record["step"] - 1]
        assert list(record["parameters"]) == list(before)
        for name, found in record["parameters"].items():
            value, grad = before[name], grads.get(name)
            norm, update = np.linalg.norm(value), np.linalg.norm(after[name] - value)
            expected = {
                "norm": norm,
                "mean": value.mean(),
                "deviation": value.std(),
                "gradient_norm": None if grad is None else np.linalg.norm(grad),
                "update_norm": update,
                "update_ratio": update / norm if norm else None,
            }
            assert list(found) == list(expected)
            for key, number in expected.items():
                close = number is not None and pytest.approx(number, rel=1e-4, abs=1e-6)
                assert found[key] is number if number is None else found[key] == close, (name, key)
        squares = [s["gradient_norm"] ** 2 for s in record["parameters"].values() if s["mean"] != 1]
        assert np.sqrt(sum(squares)) == pytest.approx(norms[record["step"]], rel=1e-4)


def test_parameters_are_copied_only_where_it_is_their_turn(tmp_path, monkeypatch):
    copied = []
    monkeypatch.setattr(
        "dynbatch.train.watch.snapshot", lambda value: copied.append(value.size) or value.copy()
    )
    trainer_of(tmp_path, watch=5).fit(2)  # updates 1 and 6 of 8
    assert len(copied) == 2 * len(list(Model().parameters()))
    copied.clear()
    trainer_of(tmp_path, watch=None).fit(1)
    assert copied == []


def test_watching_changes_no_bit_and_a_resumed_run_writes_the_same_lines(tmp_path):
    def outcome(folder, epochs, **settings):
        random.seed(3)
        trainer = trainer_of(tmp_path / folder, **settings)
        for count in epochs:
            if settings.get("checkpoint_path"):
                trainer = trainer_of(tmp_path / folder, **settings)
                trainer.resume()
            trainer.fit(count)
        records = read_metrics(tmp_path / folder / "metrics.jsonl")
        for record in records:
            record.pop("sentences_per_second", None)
        return records, {n: v.tobytes() for n, v in trainer.model.state_dict().items()}

    whole, bits = outcome("whole", [2])
    resumed, same = outcome("resumed", [1, 2], checkpoint_path=tmp_path / "run.safetensors")
    assert resumed == whole and same == bits
    plain, same = outcome("plain", [2], watch=None)
    assert plain == [record for record in whole if "parameters" not in record] and same == bits


def test_a_damaged_line_about_parameters_is_named(tmp_path):
    path = tmp_path / "m"
    for spoiled in ('"x"', '{"w": 3}', '{"w": {"norm": "high"}}'):
        path.write_text(f'{{"step": 1}}\n{{"step": 1, "parameters": {spoiled}}}\n')
        with pytest.raises(ValueError, match="m:2: not a line of a metrics file"):
            read_metrics(path)


def test_statistics_wait_for_a_gpu_only_when_they_are_read(cuda):
    model = Model().to("cuda")
    optimizer = optim.Adam(model)
    with Graph(device="cuda") as graph:
        graph.backward(F.sum([model.loss(graph, words) for words in EXAMPLES[:3]]))
    with devices.waits() as waits:
        watched = Watched(optimizer)
        kept = watched._copies  # as freeing memory of the stand-in waits
        optimizer.step(clear=False)
        watched.updated()
    assert not waits and kept
    assert watched.statistics()["table"]["update_norm"] > 0
