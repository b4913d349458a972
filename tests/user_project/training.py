"""Trains the tagger, saves and loads it, looks at its memory, decides on values, generates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.tasks import LabellingTask, load_task

from .network import Ids, Sentence, Tagger


def sentences() -> list[Sentence]:
    rng = np.random.default_rng(1)
    words = [rng.integers(20, size=length) for length in (3, 9, 1, 5)]
    return [Sentence(one, one % 3) for one in words]


def sentence_loss(graph: db.Graph, model: Tagger, sentence: Sentence) -> db.Node:
    return model.loss(graph, sentence)


def trained(folder: Path, data: Sequence[Sentence]) -> tuple[Tagger, train.TrainingResult]:
    model = Tagger(words=20, tags=3)
    optimizer = optim.Adam(model, lr=1e-2)
    batches = train.SentenceBatches(data, batch_size=2, seed=0)

    def accuracy(model: Tagger) -> float:
        with db.Graph(grad=False) as graph:
            found = graph.values([model.logits(graph, one.words) for one in data])
        return float(
            np.mean(np.concatenate(found).argmax(-1) == np.concatenate([s.tags for s in data]))
        )

    trainer = train.Trainer(
        model,
        optimizer,
        sentence_loss,
        batches,
        num_tokens=lambda sentence: len(sentence.words),
        schedule=optim.Cosine(optimizer, total_steps=6),
        clip_norm=1.0,
        validate=accuracy,
        higher_is_better=True,
        checkpoint_path=folder / "tagger.safetensors",
        show_progress=False,
    )
    result = trainer.fit(3)
    picture = db.pictures.padding([len(one.words) for one in data])
    picture.save(folder / "padding.svg")
    again = Tagger(words=20, tags=3)
    assert train.load_checkpoint(folder / "tagger.safetensors", again).step == result.step
    return again, result


def bytes_and_loss(model: Tagger, data: Sequence[Sentence]) -> tuple[int, float]:
    with db.Graph() as graph:
        loss = F.mean([model.loss(graph, one) for one in data])
        peak = graph.estimate(loss).peak_bytes
        graph.backward(loss, memory_limit="1MB")
        db.pictures.timeline(graph)
        gradient = model.unit.b.grad
        assert gradient is not None and gradient.shape == (16,)
        return peak, float(loss.value)


def settle(graph: db.Graph, model: Tagger, words: Ids) -> Generator[db.Node, float, int]:
    h = model.root(graph, words)
    step = 0
    while step < 5:
        largest = yield F.max(F.abs(h))
        if largest < 0.1:
            break
        h, step = h * 0.5, step + 1
    return step


def steps_until_settled(model: Tagger, data: Sequence[Sentence]) -> list[int]:
    with db.Graph() as graph:
        return db.drive(graph, [settle(graph, model, one.words) for one in data])


def written() -> list[tuple[int, ...]]:
    model = models.Seq2Seq(source_vocab=10, target_vocab=12, embed=8, hidden=16, rng=0)
    results = db.generate(model, [[4, 5, 6], [7]], max_new_tokens=5, num_beams=2)
    return [best.tokens for best, *_ in results]


def labels(run: Path, lines: Sequence[str]) -> list[str]:
    task = load_task(run)
    assert isinstance(task, LabellingTask)
    return [task.line(found) for found in task.label(lines)]
