"""Train a graph-based dependency parser with biaffine scores on PetroGold.

python examples/biaffine/train.py
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
from examples.corpora import petrogold
from examples.parser.evaluation import PUBLISHED, neighbour, scores
from examples.tagging.train import WordVectors


class Parser(models.Module):
    """Words to trees: vectors, a bi-LSTM, biaffine scores, the best tree.

    Source: Dozat & Manning 2017, arXiv:1611.01734, with smaller sizes.
    """

    def __init__(self, words, letters, tags, labels, features, hidden, layers, dropout):
        self.tags, self.labels = Vocabulary(tags), list(labels)
        self.vectors = WordVectors(words, letters, features, features // 2)
        self.tag = models.Embedding(len(self.tags), features // 2, scale=0.1) if tags else None
        width = features + (features // 2 if tags else 0)
        self.context = models.LSTM(width, hidden, layers, bidirectional=True, dropout=dropout)
        self.scores = models.BiaffineParser(2 * hidden, len(labels), dropout=dropout)
        self.dropout = models.Dropout(dropout)

    def states(self, graph, sentence):
        """The state of each word of a sentence in its context, (T, 2 hidden)."""
        x = self.vectors(graph, sentence.words)
        if self.tag is not None:
            x = F.concat([x, self.tag(graph, self.tags.encode(sentence.tags))])
        return self.dropout(self.context(self.dropout(x)))

    def loss(self, graph, sentence):
        """Negative log-likelihood of heads, and of labels given the heads, summed, in nats."""
        labels = [self.labels.index(label) for label in sentence.labels]
        return self.scores.loss(self.states(graph, sentence), sentence.heads, labels)

    def parse(self, sentences):
        """Heads of the best tree of each sentence, and the labels of its arcs.

        Two runs a mini-batch: arcs of all sentences and, once their trees are known, labels.
        """
        arcs = db.predict(self, lambda graph, s: self.scores.arcs(self.states(graph, s)), sentences)
        heads = [models.maximum_spanning_tree(scores) for scores in arcs]

        def labels_of(graph, pair):
            return self.scores.labels(self.states(graph, pair[0]), pair[1])

        pairs = list(zip(sentences, heads, strict=True))
        best = [np.argmax(each, axis=1) for each in db.predict(self, labels_of, pairs)]
        return [
            (tree.tolist(), [self.labels[k] for k in labels])
            for tree, labels in zip(heads, best, strict=True)
        ]


def main(argv=None):
    """Train; after each epoch print the scores on the test set."""
    options = arguments(argv)
    known, test = petrogold.load("train"), petrogold.load("test")
    np.random.default_rng(0).shuffle(known)
    known = known[: options.limit]
    sentences = [sentence.words for sentence in known]
    for name, side in (("word before", -1), ("next word", 1)):
        print(f"each head the {name}: {scores([neighbour(one, side) for one in test], test)}")
    settings = {
        "words": Vocabulary.build(sentences, min_count=3).entries,
        "letters": Vocabulary.build([word for words in sentences for word in words]).entries,
        "tags": [] if options.no_tags else sorted({tag for one in known for tag in one.tags}),
        "labels": sorted({label for one in known for label in one.labels}),
        "features": options.features, "hidden": options.hidden, "layers": options.layers,
        "dropout": options.dropout,
    }  # fmt: skip

    db.seed(0)
    parser = Parser(**settings).to(options.device)
    batches = train.SentenceBatches(known, options.batch_size)
    optimizer = optim.Adam(parser, options.lr)
    updates = options.epochs * len(batches)
    schedule = optim.Cosine(optimizer, updates, warmup_steps=updates // 10)
    for epoch in range(options.epochs):
        parser.train()
        for batch in (bar := tqdm(batches.epoch(epoch), f"epoch {epoch + 1}", ncols=80)):
            with db.Graph(options.device) as graph:
                loss = F.sum([parser.loss(graph, sentence) for sentence in batch])
                loss = loss / sum([len(sentence.words) for sentence in batch])
                graph.backward(loss)
            optim.clip_grad_norm_(parser, 5.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}")
        train.save_checkpoint(options.checkpoint, parser, extra=settings)
        print(f"this parser: {scores(parser.parse(test), test)}")
    print(f"published, earlier split: {PUBLISHED}")


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--no-tags", action="store_true", help="read words alone, not the treebank's tags")
    option("--limit", type=int, help="train on so many sentences, drawn at random")
    option("--epochs", type=int, default=5)
    option("--batch-size", type=int, default=16)
    option("--features", type=int, default=64)
    option("--hidden", type=int, default=96)
    option("--layers", type=int, default=2)
    option("--dropout", type=float, default=0.25)
    option("--lr", type=float, default=3e-3)
    option("--device", default="cpu")
    option("--checkpoint", default="runs/biaffine.safetensors", help="written after each epoch")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
