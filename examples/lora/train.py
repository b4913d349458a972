"""Fine-tune a causal language model on one's own text, by LoRA.

python examples/lora/train.py smollm2 book.txt     # a folder of Hugging Face; a UTF-8 file
"""

import argparse
import os
import sys
from math import log
from pathlib import Path

from tqdm import tqdm

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.models.pretrained import load_pretrained, save_adapter
from dynbatch.text.folder import load_tokenizer

sys.path.insert(0, str(Path(__file__, "../../..").resolve()))  # finds `examples` from any folder
from examples.corpora import texts


def adapted(options):
    """The model of a folder, frozen, with LoRA's matrices beside its layers."""
    model = load_pretrained(options.model).to(options.device)
    config = models.LoraConfig(
        r=options.rank, lora_alpha=2 * options.rank, lora_dropout=options.dropout,
        target_modules=options.targets, task_type="CAUSAL_LM",
        base_model_name_or_path=options.model,
    )  # fmt: skip
    names = models.add_adapter(model, config)
    trained = sum([p.size for p in model.parameters() if not p.frozen])
    print(f"{trained:,} of {model.num_parameters():,} numbers are trained, at {len(names)} layers")
    return model


def numbered(documents, tokenizer, end, longest):
    """The ids of each document, cut into pieces of at most `longest`; the last has its end."""
    ids = [[*map(int, tokenizer.encode(text)), *end] for text in documents]
    pieces = [one[k : k + longest] for one in ids for k in range(0, len(one), longest)]
    return [piece for piece in pieces if len(piece) > 1]


def nats(model, batches):
    """The cross-entropy of all tokens that can be predicted, summed."""
    model.eval()
    total = 0.0
    for batch in batches.epoch(0):
        with db.Graph(model.output.weight.device, grad=False) as graph:
            total += float(F.sum([model.loss(graph, ids) for ids in batch]).value)
    return total


def main(argv=None):
    """Train; before, and after each epoch, print bits per byte of held-out text."""
    options = arguments(argv)
    db.seed(0)
    tokenizer = load_tokenizer(options.model)
    model = adapted(options)
    end = model.config.to_json().get("eos_token_id")
    end = [end] if isinstance(end, int) and end < model.config.vocab_size else []
    longest = min(options.longest, model.positions or options.longest)
    corpus = texts.load(options.data)
    known, held_out = [
        train.TokenBatches(numbered(part, tokenizer, end, longest), options.max_tokens)
        for part in (corpus.train, corpus.dev)
    ]
    held_out_bits = log(2) * sum([len(text.encode()) for text in corpus.dev])
    optimizer = optim.AdamW(model, options.lr)
    updates = sum([known.num_batches(epoch) for epoch in range(options.epochs)])
    schedule = optim.Cosine(optimizer, updates, warmup_steps=min(20, updates // 5))
    state, done = (model, optimizer, schedule), 0
    checkpoint = Path(options.adapter, "run.safetensors")
    if options.resume:
        info = train.load_checkpoint(checkpoint, *state)
        info.restore_random_state()
        done = info.epoch
    else:
        print(f"{nats(model, held_out) / held_out_bits:.4f} bits per byte of held-out text")

    for epoch in range(done, options.epochs):
        model.train()
        for batch in (bar := tqdm(known.epoch(epoch), f"epoch {epoch + 1}", ncols=80)):
            with db.Graph(options.device) as graph:
                loss = F.sum([model.loss(graph, ids) for ids in batch])
                loss = loss / sum([len(ids) - 1 for ids in batch])
                graph.backward(loss)
            optim.clip_grad_norm_(model, 1.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix_str(f"loss {loss.value:.3f}, {graph.peak_bytes / 1e6:.0f} MB")
        print(f"{nats(model, held_out) / held_out_bits:.4f} bits per byte of held-out text")
        train.save_checkpoint(checkpoint, *state, epoch=epoch + 1, save_frozen=False)
        save_adapter(model, options.adapter)

    size = os.path.getsize(Path(options.adapter, "adapter_model.safetensors"))
    print(f"{options.adapter}: the adapter, {size / 1e6:.2f} MB")
    if options.merged is not None:
        models.merge_adapter(model)
        model.save_pretrained(options.merged)
        print(f"{options.merged}: the whole model, for `dynbatch generate` and `transformers`")


def arguments(argv):
    """The options of the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("model", help="folder of a GPT-2, a Llama or their kin, with its tokenizer")
    option("data", help=f"a file of text, or {', '.join(texts.CORPORA)}")
    option("--rank", type=int, default=8)
    option("--dropout", type=float, default=0.0, help="of what the matrices read")
    option("--targets", default="all-linear", help="a regular expression for names of layers")
    option("--epochs", type=int, default=3)
    option("--max-tokens", type=int, default=2048, help="tokens in a mini-batch")
    option("--longest", type=int, default=512, help="tokens of a document that are read at once")
    option("--lr", type=float, default=1e-3)
    option("--device", default="cpu")
    option("--adapter", default="runs/lora", help="folder for the adapter and the checkpoint")
    option("--merged", help="folder for the whole model, its weights changed by the adapter")
    option("--resume", action="store_true", help="go on from the checkpoint, with equal options")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
