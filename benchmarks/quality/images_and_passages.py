"""The convolutional networks of `examples.text_cnn` and `examples.digits`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import dynbatch as db
from benchmarks.quality.task import Batch, Task, Weights, dropped, inside, linear, padded
from dynbatch import nodes as F
from dynbatch import train
from dynbatch.text import Vocabulary
from examples.corpora import brown, digits
from examples.digits import train as digit_reader
from examples.text_cnn import train as text_cnn


class Passages(Task):
    """Passages told apart by their category, one of 15."""

    name = "text CNN"
    data = "Brown, 10,523 passages of 5 sentences, 4 epochs"
    example = "text_cnn"

    def __init__(self) -> None:
        options = text_cnn.arguments([])
        halves = brown.split(brown.load(options.data))
        parts = [brown.passages(half, options.sentences) for half in halves]
        categories = sorted({passage.label for passage in parts[0]})
        words = Vocabulary.build([passage.text.split() for passage in parts[0]], min_count=2)
        known, self._test = [
            [(words.encode(one.text.split()), categories.index(one.label)) for one in part]
            for part in parts
        ]
        self.model = text_cnn.TextCNN(
            len(words), len(categories), options.features, options.filters, options.dropout
        )
        batches = train.SentenceBatches(known, options.batch_size)
        self.train_on(batches, options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        return F.mean([
            F.cross_entropy(self.model.scores(graph, ids), label) for ids, label in batch
        ])  # fmt: skip

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        ids, lengths = padded([ids for ids, _ in batch])
        real = inside(lengths)[:, :, None]
        x = dropped(weights["embed.weight"][ids], self) * real
        x, maxima = x.transpose(1, 2), []
        for number, size in enumerate(text_cnn.WINDOWS):
            kernel = weights[f"filters.{number}.weight"].unflatten(1, (size, -1)).transpose(1, 2)
            bias = weights[f"filters.{number}.bias"]
            answers = torch.relu(functional.conv1d(x, kernel, bias, padding=size - 1))
            behind = ~inside(lengths + size - 1, answers.shape[2])
            maxima.append(answers.masked_fill(behind[:, None], 0).amax(2))  # no answer is below 0
        scores = linear(dropped(torch.cat(maxima, 1), self), weights, "project")
        return functional.cross_entropy(scores, torch.tensor([label for _, label in batch]))

    def evaluate(self) -> dict[str, float]:
        scores = db.predict(self.model, self.model.scores, [ids for ids, _ in self._test])
        labels = [label for _, label in self._test]
        return {"right, %": 100 * float(np.mean(np.argmax(scores, axis=1) == labels))}


class Digits(Task):
    """Handwritten digits, each image at its own size.

    In PyTorch too image by image, since padding would change what batch norm takes the mean of.
    """

    name = "digits"
    data = "1,437 images of 4 to 17 pixels a side, 12 epochs"
    example = "digits"

    def __init__(self) -> None:
        options = digit_reader.arguments([])
        every = digits.load(options.data)
        known = [digit for number, digit in enumerate(every) if number % 5]
        self._test = [
            digits.drawn(one, np.random.default_rng(k)) for k, one in enumerate(every[::5])
        ]
        self.model = digit_reader.DigitReader(options.channels, options.dropout)
        plain = train.SentenceBatches(known, options.batch_size)
        self.train_on(train.PreparedBatches(plain, digits.drawn, workers=0), options)

    def loss(self, graph: db.Graph, batch: Batch) -> db.Node:
        scores = self.model.scores(graph, [digit.image for digit in batch])
        pairs = zip(scores, batch, strict=True)
        return F.mean([F.cross_entropy(one, digit.label) for one, digit in pairs])

    def loss_in_pytorch(self, weights: Weights, batch: Batch) -> Tensor:
        xs = [torch.from_numpy(digit.image)[None] for digit in batch]
        for layer in range(3):
            if layer:
                xs = [functional.max_pool2d(x, 2) for x in xs]
            kernel = weights[f"convolutions.{layer}.weight"]
            xs = [functional.conv2d(x[None], kernel, padding=1)[0] for x in xs]
            xs = [torch.relu(x) for x in self._normed(xs, weights, f"norms.{layer}")]
        maxima = torch.stack([x.amax((1, 2)) for x in xs])
        scores = linear(dropped(maxima, self), weights, "output")
        return functional.cross_entropy(scores, torch.tensor([digit.label for digit in batch]))

    def _normed(self, xs: list[Tensor], weights: Weights, name: str) -> list[Tensor]:
        """Batch norm over the pixels of all images (C, H, W); it keeps the running statistics."""
        pixels = torch.cat([x.flatten(1) for x in xs], 1).T
        normed = functional.batch_norm(
            pixels, weights[f"{name}.running_mean"].detach(),
            weights[f"{name}.running_var"].detach(), weights[f"{name}.weight"],
            weights[f"{name}.bias"], training=self.model.training,
        )  # fmt: skip
        parts = normed.T.split([x[0].numel() for x in xs], 1)
        return [part.reshape(x.shape) for part, x in zip(parts, xs, strict=True)]

    def evaluate(self) -> dict[str, float]:
        read = self.model.read([digit.image for digit in self._test])
        labels = [digit.label for digit in self._test]
        return {"right, %": 100 * float(np.mean(read == labels))}
