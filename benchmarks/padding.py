"""Memory against padding: `python -m benchmarks.padding {libreoffice,lognormal} [--json FILE]`.

The seq2seq of the benchmarks, padded, length-bucketed and unpadded, beside PyTorch's same model on
the same batches. Bytes are measured, not timed: a busy machine changes the last row only.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

import dynbatch as db
from benchmarks.lengths import REAL_TEXT_SIGMA, Batch, Corpus
from benchmarks.networks import END_SYMBOL, Array, Seq2SeqSizes, initial_values
from benchmarks.peers import build_peers
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from dynbatch.errors import DynbatchError
from dynbatch.padding import Comparison, Form
from dynbatch.padding.batches import bucketed_batches, random_batches, sample
from dynbatch.padding.compare import BATCH_SIZES
from dynbatch.padding.pytorch import TorchStep, measure_torch
from dynbatch.padding.pytorch_forms import torch_form

CORPORA = ("libreoffice", "lognormal")
PEERS = {"pytorch-padded": False, "pytorch-packed": False, "pytorch-bucketed": True}
LOGNORMAL_PAIRS = 64 * 128
_FIRST_WORD = 3  # ids below it are marks and the unknown word

Pair = tuple[Array, Array]
"""Ids of a source, and of a target with the mark that ends it."""


def libreoffice(sizes: Seq2SeqSizes, folder: str | None) -> list[Pair]:
    """LibreOffice's messages, English to German, words of few occurrences as one id."""
    from examples.corpora.libreoffice import load

    pairs = load(folder)
    sides = zip(*pairs, strict=True)
    limits = (sizes.source_vocabulary, sizes.target_vocabulary)
    source, target = [_ids(side, most) for side, most in zip(sides, limits, strict=True)]
    return [(s, np.append(t, END_SYMBOL)) for s, t in zip(source, target, strict=True)]


def lognormal(sizes: Seq2SeqSizes, seed: int) -> list[Pair]:
    """Made-up pairs with the lengths of translated talks; see `benchmarks.lengths`."""
    corpus = Corpus(sizes.source_vocabulary, sizes.target_vocabulary, False, REAL_TEXT_SIGMA)
    (batch,) = corpus.random_batches(np.random.default_rng(seed), 1, LOGNORMAL_PAIRS)
    return list(batch.sentences())


def _ids(sentences: Sequence[Sequence[str]], most: int) -> list[Array]:
    counts = Counter([word for sentence in sentences for word in sentence])
    known = {word: k for k, (word, _) in enumerate(counts.most_common(most - _FIRST_WORD))}
    unknown = _FIRST_WORD - 1
    return [
        np.array([known[word] + _FIRST_WORD if word in known else unknown for word in sentence])
        for sentence in sentences
    ]


def run(options: argparse.Namespace) -> Comparison:
    """Measure dynbatch's forms, then the peers on the same batches."""
    db.set_num_threads(options.threads)
    sizes = Seq2SeqSizes()
    if options.corpus == "libreoffice":
        pairs = libreoffice(sizes, options.folder)
    else:
        pairs = lognormal(sizes, options.seed)
    values = initial_values(sizes, np.random.default_rng(options.seed))
    model = DynbatchSeq2Seq(sizes, values, options.device)._model
    found = db.memory.compare_padding(
        model,
        model.loss,
        [(source, target[:-1]) for source, target in pairs],  # the model ends it by itself
        options.batch,
        num_batches=options.batches,
        batch_sizes=() if options.no_curves else BATCH_SIZES,
        seed=options.seed,
        progress=True,
    )
    title = f"{options.corpus}: {len(pairs):,} pairs\n{found.title}"
    return replace(found, title=title, peers=peer_forms(options, pairs, sizes, values))


def peer_forms(
    options: argparse.Namespace, pairs: Sequence[Pair], sizes: Seq2SeqSizes, values: Any
) -> list[Form]:
    """PyTorch's same model on the batches that dynbatch was measured on."""
    peers, skipped = build_peers(options.peers, sizes, values, options.threads, "", options.device)
    for name, reason in skipped.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    if not peers:
        return []
    lengths = [(len(source), len(target) - 1) for source, target in pairs]  # as dynbatch's
    forms = []
    for peer in peers:
        if PEERS[peer.name]:
            batches = bucketed_batches(lengths, options.batch)
        else:
            batches = random_batches(lengths, options.batch, options.seed)
        chosen = sample(batches, lengths, options.batches)
        steps = []
        for batch in tqdm(chosen.batches, desc=peer.name, unit="step"):
            given = Batch([pairs[i][0] for i in batch], [pairs[i][1] for i in batch])
            steps.append(_measured(peer, peer.prepare(given)))
        name = peer.name.replace("-", ", ")
        forms.append(torch_form(name, chosen, steps, lengths))
    return forms


def _measured(peer: Any, prepared: Any) -> TorchStep:
    return measure_torch(
        lambda: peer.forward(prepared), list(peer.model.parameters()), peer._adam.step
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.padding", description=__doc__)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--folder", help="of LibreOffice's unpacked package; fetched by default")
    parser.add_argument("--batch", type=int, default=64, help="sentences of a batch")
    parser.add_argument("--batches", type=int, default=8, help="measured, beside the largest")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--no-curves", action="store_true", help="leave other batch sizes out")
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--picture", help="draw bytes over a step and against batch size")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    try:
        found = run(options)
    except DynbatchError as error:
        print(f"benchmarks.padding: {error}", file=sys.stderr)
        return 1
    print(found)
    if options.json:
        found.to_json(options.json)
    if options.picture:
        found.picture(options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
