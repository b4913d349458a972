"""Train a convolutional network on handwritten digits whose images have sizes of their own.

python examples/digits/train.py
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.corpora import digits


class DigitReader(models.Module):
    """Scores of the ten digits, from images (H, W) of ink.

    Three convolutions of 3 × 3 pixels have a batch norm and a relu behind them; after the first
    two, pools halve height and width. The maximum of each channel over all pixels is left, (C,),
    whatever the image's size, and a linear map makes scores of it.
    """

    def __init__(self, channels, dropout):
        widths = [1, channels, 2 * channels, 4 * channels]
        pairs = list(pairwise(widths))
        # A bias would vanish in the batch norm, which subtracts the mean.
        self.convolutions = [models.Conv2d(i, o, 3, padding=1, bias=False) for i, o in pairs]
        self.norms = [models.BatchNorm(width) for width in widths[1:]]
        self.dropout = models.Dropout(dropout)
        self.output = models.Linear(widths[-1], 10)

    def scores(self, graph, images):
        """Scores (10,) of each image of a mini-batch, whose pixels batch norm takes together."""
        xs = [F.input(graph, image[:, :, None]) for image in images]
        for layer, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            if layer:
                xs = [F.max_pool2d(x, 2) for x in xs]
            xs = [F.relu(x) for x in norm(graph, [convolve(x) for x in xs])]
        maxima = [F.max(F.reshape(x, (-1, x.width)), dim=0) for x in xs]
        return [self.output(self.dropout(maximum)) for maximum in maxima]

    def read(self, images):
        """The digit that each image shows, read alone."""
        scores = db.predict(self, lambda graph, image: self.scores(graph, [image])[0], images)
        return np.argmax(scores, axis=1)


def padding(batches):
    """The share of padding in mini-batches that would bring images to their largest sides."""
    sizes = [[digit.image.shape for digit in batch] for batch in batches]
    pixels = sum([height * width for batch in sizes for height, width in batch])
    largest = [np.max(batch, axis=0) for batch in sizes]
    padded = sum([len(b) * h * w for b, (h, w) in zip(sizes, largest, strict=True)])
    return 1 - pixels / padded


def main(argv=None):
    """Train; after each epoch print the accuracy on the test set, each fifth digit."""
    options = arguments(argv)
    every = digits.load(options.data)
    known = [digit for number, digit in enumerate(every) if number % 5]
    test = [digits.drawn(one, np.random.default_rng(k)) for k, one in enumerate(every[::5])]
    labels = np.array([digit.label for digit in test])

    db.seed(0)
    reader = DigitReader(options.channels, options.dropout).to(options.device)
    plain = train.SentenceBatches(known, options.batch_size)
    batches = train.PreparedBatches(plain, digits.drawn, workers=options.workers)
    print(f"{len(known):,} images to learn from, {len(test):,} for the test")
    print(f"padded, mini-batches would be {padding(batches.epoch(0)):.0%} padding, saved here")
    optimizer = optim.Adam(reader, options.lr)
    updates = options.epochs * len(plain)
    schedule = optim.Cosine(optimizer, updates, warmup_steps=updates // 10)
    for epoch in range(options.epochs):
        reader.train()
        bar = tqdm(batches.epoch(epoch), f"epoch {epoch + 1}", total=len(plain), ncols=80)
        for batch in bar:
            with db.Graph(options.device) as graph:
                scores = reader.scores(graph, [digit.image for digit in batch])
                pairs = zip(scores, batch, strict=True)
                loss = F.mean([F.cross_entropy(one, digit.label) for one, digit in pairs])
                graph.backward(loss)
            optim.clip_grad_norm_(reader, 5.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}")
        extra = {"channels": options.channels, "dropout": options.dropout}
        train.save_checkpoint(options.checkpoint, reader, extra=extra)
        found = reader.read([digit.image for digit in test])
        wrong = [f"{a} for {b}" for a, b in zip(found, labels, strict=True) if a != b]
        print(f"{np.mean(found == labels):.2%} right, {len(wrong)} wrong: {', '.join(wrong[:9])}")


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--data", help="a wheel of scikit-learn (fetched with pip, once)")
    option("--epochs", type=int, default=12)
    option("--batch-size", type=int, default=32)
    option("--channels", type=int, default=16, help="of the first convolution")
    option("--dropout", type=float, default=0.25)
    option("--lr", type=float, default=4e-3)
    option("--workers", type=int, default=1, help="threads that draw images ahead of training")
    option("--device", default="cpu")
    option("--checkpoint", default="runs/digits.safetensors", help="written after each epoch")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
