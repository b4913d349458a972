"""Train an encoder and a decoder with attention on pairs of texts, without padding.

python examples/seq2seq/train.py                            # CMUdict: spelling to pronunciation
python examples/seq2seq/train.py pairs.tsv --epochs 20      # source<TAB>target on each line
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.text import Vocabulary, error_rates

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.corpora import pairs


@db.cell
def decoder_step(x, state, p, memory):
    """One word of the target; x embeds the word before, `attended` is what it last attended to."""
    h, c, attended = state
    i, f, g, o = F.chunk(p.read(x) + p.feed(attended) + p.recall(h), 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    attended = F.tanh(p.attention.attend(h, memory) + p.mix(h))
    return attended, (h, c, attended)


class Translator(models.Module):
    """The network for one pair, at its own lengths, and the vocabularies of both sides."""

    start, end = Vocabulary.begin, Vocabulary.end  # of a target, for `db.generate`

    def __init__(self, source, target, embed, hidden, dropout):
        self.source, self.target, self.hidden = Vocabulary(source), Vocabulary(target), hidden
        self.embed_source = models.Embedding(len(self.source), embed)
        self.encoder = models.LSTM(embed, hidden, bidirectional=True)
        self.bridge = models.Linear(2 * hidden, 2 * hidden)
        self.values = models.Linear(2 * hidden, hidden, bias=False)
        self.embed_target = models.Embedding(len(self.target), embed)
        self.read = models.Linear(embed, 4 * hidden)
        self.feed = models.Linear(hidden, 4 * hidden, bias=False)
        self.recall = models.Linear(hidden, 4 * hidden, bias=False)
        self.attention = models.AdditiveAttention(hidden, 2 * hidden, hidden)
        self.mix = models.Linear(hidden, hidden, bias=False)
        self.project = models.Linear(hidden, len(self.target))
        self.dropout = models.Dropout(dropout)

    def encode(self, graph, source):
        """The decoder's first h and c, and the keys and values that it attends to."""
        x = self.dropout(self.embed_source(graph, source))
        outputs, last = self.encoder(x, return_state=True)
        h, c = F.chunk(self.bridge(F.concat([h for h, c in last])), 2)
        return F.tanh(h), c, self.attention.keys(outputs), self.values(outputs)

    def decode(self, graph, ids, h, c, *memory):
        """A vector after each of the ids, for the next word; `attended` begins as zeros."""
        x = self.dropout(self.embed_target(graph, ids))
        return db.scan(decoder_step, x, (h, c, self.hidden), self, memory, return_state=False)

    def predict(self, vectors):
        """The scores of all words of the target's vocabulary."""
        return self.project(self.dropout(vectors))

    @db.block
    def loss(self, graph, source, target):
        """Cross-entropy in nats, summed over the words of the target after its start."""
        vectors = self.decode(graph, target[:-1], *self.encode(graph, source))
        return F.cross_entropy(self.predict(vectors), target[1:], reduction="sum")

    def translate(self, texts, **how):
        """The words of the best target found for each source."""
        ids = [self.source.encode(text.split()) for text in texts]
        results = db.generate(self.eval(), ids, max_new_tokens=100, **how)
        return [self.target.decode(best.tokens) for best, *_ in results]


def main(argv=None):
    """Train; translate what is held out after each epoch and, at last, the test set."""
    options = arguments(argv)
    corpus = pairs.load(options.data, options.limit)
    known = [(s.source.split(), t.split()) for s in corpus.train for t in s.references]
    source, target = [Vocabulary.build(side).entries for side in zip(*known, strict=True)]
    sizes = {name: getattr(options, name) for name in ("embed", "hidden", "dropout")}
    settings = {"source": source, "target": target, **sizes}
    db.seed(0)
    model = Translator(**settings).to(options.device)
    examples = [(model.source.encode(s), model.target.encode(t, marks=True)) for s, t in known]
    batches = train.SentenceBatches(examples, options.batch_size)
    optimizer = optim.Adam(model, options.lr)
    updates = sum([batches.num_batches(epoch) for epoch in range(options.epochs)])
    schedule = optim.Cosine(optimizer, updates, warmup_steps=updates // 10)
    state, done = (model, optimizer, schedule), 0
    if options.resume:
        info = train.load_checkpoint(options.checkpoint, *state)
        info.restore_random_state()
        done = info.epoch

    for epoch in range(done, options.epochs):
        model.train()
        for batch in (bar := tqdm(batches.epoch(epoch), f"epoch {epoch + 1}", ncols=80)):
            with db.Graph(options.device) as graph:
                loss = F.sum([model.loss(graph, source, target) for source, target in batch])
                loss = loss / sum([len(target) - 1 for _, target in batch])
                graph.backward(loss)
            optim.clip_grad_norm_(model, 2.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}, {graph.peak_bytes / 1e6:.1f} MB")
        report("held out", model, corpus.dev[:1000])
        train.save_checkpoint(options.checkpoint, *state, epoch=epoch + 1, extra=settings)
    report("test", model, corpus.test)


def report(part, model, texts):
    """Translate held-out texts; print how many are wrong, and five of them."""
    if not texts:  # SCAN holds nothing out for validation
        return
    written = model.translate([text.source for text in texts])
    rates = error_rates(written, [[right.split() for right in text.references] for text in texts])
    print(f"{part}: {rates}")
    for text, words in list(zip(texts, written, strict=True))[:: len(texts) // 5 + 1]:
        print(f"  {text.source} → {' '.join(words)}   (right: {' or '.join(text.references)})")


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("data", nargs="?", default="cmudict", help=f"a file, or {', '.join(pairs.CORPORA)}")
    option("--limit", type=int, help="train on so many sources, drawn at random")
    option("--epochs", type=int, default=10)
    option("--batch-size", type=int, default=64)
    option("--embed", type=int, default=128)
    option("--hidden", type=int, default=256)
    option("--dropout", type=float, default=0.0)
    option("--lr", type=float, default=2e-3)
    option("--device", default="cpu")
    option("--checkpoint", default="runs/seq2seq.safetensors", help="written after each epoch")
    option("--resume", action="store_true", help="go on from the checkpoint, with equal options")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
