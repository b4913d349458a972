"""Train a GPT on a text file, by document: nothing is cropped, nothing is padded.

python examples/language_model/train.py                # Debian's fortunes
python examples/language_model/train.py book.txt       # blank lines between its documents
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynbatch as db
from dynbatch import Node, optim
from dynbatch.errors import ArgumentError
from dynbatch.padding import padded_peak
from dynbatch.tasks.options import above_zero, not_negative, option, passes, share
from dynbatch.tasks.settings import METRICS, TrainingSettings
from dynbatch.tasks.training import place, train, values
from dynbatch.tasks.training import sample as drawn
from dynbatch.text import ByteTokenizer, CharacterTokenizer
from dynbatch.train import padding_ratio, read_metrics
from examples.language_model.data import (
    Piece,
    Tokenizer,
    decode,
    encode,
    load,
    pieces,
    split,
)
from examples.language_model.generate import LOADER
from examples.language_model.model import LanguageModel, padded_piece, sample
from examples.seq2seq.evaluation import memory_saved
from examples.training import command


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The language model's own settings."""

    data: str = option("fortunes", "fortunes, shakespeare, or a file of text", str, is_first=True)
    characters: bool = option(False, "a token is a character, not a byte")
    epochs: int = option(5, "passes over the data", passes)
    max_tokens: int = option(4096, "tokens in a mini-batch, of documents as they come")
    longest: int = option(1024, "tokens that the model looks back; longer documents are cut")
    overlap: int = option(256, "tokens of a cut document that are read once more", not_negative)
    width: int = option(128, "features of a token")
    layers: int = option(4, "layers")
    heads: int = option(4, "heads of attention")
    dropout: float = option(0.0, "probability that a feature is dropped while training", share)
    lr: float = option(2e-3, "peak of AdamW's learning rate", above_zero)
    clip: float = option(1.0, "largest norm of the gradient", above_zero)
    samples: int = option(3, "documents made up after each epoch", not_negative)
    sample_length: int = option(200, "most tokens of each")
    output: str | None = option("runs/language-model", "folder for checkpoint and metrics", str)


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status is that of `exit_status`."""
    what = "Train a GPT on the documents of a text, without padding."
    return command(Settings, run, argv, "examples.language_model.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say; after each epoch print bits per byte, and samples."""
    texts, held_out = split(load(settings.data))
    tokenizer = CharacterTokenizer([*texts, *held_out]) if settings.characters else ByteTokenizer()
    texts = drawn(texts, settings)
    known, held = [cut(part, tokenizer, settings) for part in (texts, held_out)]
    model = LanguageModel(
        len(tokenizer) + 1, settings.longest, settings.width, settings.layers, settings.heads,
        settings.dropout, settings.seed,
    )  # fmt: skip
    num_bytes = sum([len(text.encode()) for text in held_out])
    print(f"{introduction(texts, known)}; {len(held_out):,} for validation, {num_bytes:,} bytes")
    print(f"{model.num_parameters():,} parameters; {place(settings)}", flush=True)
    rng = np.random.default_rng(settings.seed)

    def validate(model: LanguageModel) -> float:
        bits = sum([float(x) for x in values(model, model.loss, held)]) / log(2) / num_bytes
        made_up = [
            decode(tokenizer, ids)
            for ids in sample(model, settings.samples, settings.sample_length, rng)
        ]
        shown = [line for text in made_up for line in [*text.splitlines(), "%"]]
        tqdm.write("\n  | ".join([f"validation: {bits:.4f} bits per byte", *shown]))
        return bits

    alphabet = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
    padded = padded_peak(model, model.loss, padded_piece, model.padded_loss)
    train(
        model, piece_loss, known, settings, lambda piece: piece.num_predicted,
        optimizer=optim.AdamW(model, settings.lr, betas=(0.9, 0.99), weight_decay=0.1),
        extra={"loader": LOADER, "characters": alphabet}, max_tokens=settings.max_tokens,
        validate=validate, other_data={"validation": held},
        random_state=rng, padded_bytes=lambda batch: padded([(p.ids, p.context) for p in batch]),
    )  # fmt: skip
    if settings.output is not None:
        saved = memory_saved(read_metrics(Path(settings.output, METRICS)))
        print(f"Memory of a training step at its peak: {saved}")


def cut(texts: Sequence[str], tokenizer: Tokenizer, settings: Settings) -> list[Piece]:
    """All documents in pieces; most are one.

    Raises:
        ArgumentError: pieces would overlap whole.
    """
    longest, overlap = settings.longest, settings.overlap
    if overlap >= longest:
        raise ArgumentError(
            f"--overlap {overlap} with --longest {longest}: a piece would predict nothing.\n"
            "  rule: --overlap is below --longest\n"
            f"  fix:  --overlap {longest // 4}"
        )
    return [piece for text in texts for piece in pieces(encode(tokenizer, text), longest, overlap)]


def piece_loss(graph: db.Graph, model: LanguageModel, piece: Piece) -> Node:
    """Cross-entropy of one piece, summed."""
    return model.loss(graph, piece)


def introduction(texts: Sequence[str], known: Sequence[Piece]) -> str:
    """What there is to learn from, and what a padded mini-batch of it would be."""
    lengths = [piece.ids.size - 1 for piece in known]
    padded = [padding_ratio(lengths[k : k + 32]) for k in range(0, len(lengths), 32)]
    return (
        f"{len(texts):,} documents, {sum([len(text.encode()) for text in texts]):,} bytes, "
        f"in {len(known):,} pieces (32 of them, padded, would be {np.mean(padded):.1f} times as "
        "large)"
    )


if __name__ == "__main__":
    sys.exit(main())
