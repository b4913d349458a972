"""Train a GPT on the documents of a text: nothing is cropped, nothing is padded.

python examples/language_model/train.py               # Debian's fortunes
python examples/language_model/train.py book.txt      # blank lines between its documents
"""

import argparse
import sys
from math import log
from pathlib import Path

from tqdm import tqdm

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.corpora import texts

MARK = 256  # stands around documents; the other tokens are bytes


class GPT(models.Module):
    """A Transformer that predicts each byte of one document from those before it."""

    def __init__(self, width, layers, heads, dropout):
        self.embed = models.Embedding(MARK + 1, width, scale=width**-0.5)  # also gives the scores
        self.dropout = models.Dropout(dropout)
        self.layers = models.TransformerEncoder(
            layers, width, heads, dropout=dropout, activation="gelu", norm_first=True,
            bias=False, rotary={},
        )  # fmt: skip

    @db.block
    def logits(self, graph, ids):
        """Scores of the byte after each of T ids, (T, 257); `db.generate` calls it too."""
        x = self.dropout(self.embed(graph, ids))
        return F.linear(self.layers(x, causal=True), self.embed.weight)

    @db.block
    def loss(self, graph, ids):
        """Cross-entropy of one document in nats, summed over its bytes and its end."""
        return F.cross_entropy(self.logits(graph, ids[:-1]), ids[1:], reduction="sum")


def numbered(documents):
    """The bytes of each document, between two marks."""
    return [[MARK, *document.encode(), MARK] for document in documents]


def bits_per_byte(model, batches):
    """The loss of held-out documents, their ends included, for each of their bytes."""
    model.eval()
    nats, count = 0.0, 0
    for batch in batches.epoch(0):
        with db.Graph(model.embed.weight.device, grad=False) as graph:
            nats += float(F.sum([model.loss(graph, ids) for ids in batch]).value)
        count += sum([len(ids) - 2 for ids in batch])
    return nats / log(2) / count


def write(model, beginning, **how):
    """Continuations of a beginning as text; those of an empty one are whole documents."""
    how = {"do_sample": True, "eos_token_id": MARK, "max_new_tokens": 200, **how}
    (results,) = db.generate(model.eval(), [[MARK, *beginning.encode()]], **how)
    tokens = [[token for token in one.tokens if token != MARK] for one in results]
    return [beginning + bytes(one).decode(errors="replace") for one in tokens]


def main(argv=None):
    """Train; after each epoch print bits per held-out byte, and documents made up."""
    options = arguments(argv)
    corpus = texts.load(options.data)
    known, held_out = numbered(corpus.train[: options.limit]), numbered(corpus.dev)
    batches = train.TokenBatches(known, options.max_tokens)
    sizes = {name: getattr(options, name) for name in ("width", "layers", "heads", "dropout")}
    db.seed(0)
    model = GPT(**sizes).to(options.device)
    optimizer = optim.AdamW(model, options.lr)
    updates = sum([batches.num_batches(epoch) for epoch in range(options.epochs)])
    schedule = optim.Cosine(optimizer, updates, warmup_steps=min(200, updates // 5))
    state, done = (model, optimizer, schedule), 0
    if options.resume:
        info = train.load_checkpoint(options.checkpoint, *state)
        info.restore_random_state()
        done = info.epoch

    for epoch in range(done, options.epochs):
        model.train()
        for batch in (bar := tqdm(batches.epoch(epoch), f"epoch {epoch + 1}", ncols=80)):
            with db.Graph(options.device) as graph:
                loss = F.sum([model.loss(graph, ids) for ids in batch])
                loss = loss / sum([len(ids) - 1 for ids in batch])
                graph.backward(loss)
            optim.clip_grad_norm_(model, 1.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}, {graph.peak_bytes / 1e6:.0f} MB")
        held_out_bits = bits_per_byte(model, train.TokenBatches(held_out, options.max_tokens))
        print(f"{held_out_bits:.4f} bits per byte of {len(held_out):,} held-out documents")
        for document in write(model, "", num_return_sequences=3, seed=epoch):
            print(f"  {document!r}")
        train.save_checkpoint(options.checkpoint, *state, epoch=epoch + 1, extra=sizes)


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("data", nargs="?", default="fortunes", help=f"a file, or {', '.join(texts.CORPORA)}")
    option("--limit", type=int, help="train on the first so many documents")
    option("--epochs", type=int, default=5)
    option("--max-tokens", type=int, default=4096, help="bytes in a mini-batch")
    option("--width", type=int, default=128)
    option("--layers", type=int, default=4)
    option("--heads", type=int, default=4)
    option("--dropout", type=float, default=0.0)
    option("--lr", type=float, default=2e-3)
    option("--device", default="cpu")
    option("--checkpoint", default="runs/language-model.safetensors")
    option("--resume", action="store_true", help="go on from the checkpoint, with equal options")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
