"""A language model of a text: it predicts each token of a document from those before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dynbatch import nodes as F
from dynbatch.arguments import is_count
from dynbatch.backend import Array
from dynbatch.errors import ArgumentError
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.generate import generate
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models import GPT
from dynbatch.models.predict import predict
from dynbatch.nodes.node import Node
from dynbatch.optim import AdamW, Optimizer
from dynbatch.padding import padded_peak
from dynbatch.padding.padded_model import lengthened
from dynbatch.padding.targets import ignored_after
from dynbatch.tasks.baselines import compressed_bits
from dynbatch.tasks.documents import (
    DocumentTokenizer,
    Piece,
    pieces,
    refuse_whole_overlap,
)
from dynbatch.tasks.options import above_zero, not_negative, one_of, option, passes, share
from dynbatch.tasks.settings import TaskSettings
from dynbatch.tasks.task import (
    Batches,
    Parts,
    TextCoder,
    WritingTask,
    checked_description,
    damaged_description,
)
from dynbatch.tasks.words import is_share
from dynbatch.text import read_documents
from dynbatch.text.lines import printable
from dynbatch.train import CheckpointInfo, TokenBatches
from dynbatch.train.checkpoint_file import Rule


@dataclass(frozen=True, kw_only=True)
class DocumentSettings(TaskSettings):
    """Settings of tasks whose examples are documents."""

    batch_size: int = option(32, "")  # of no use: max_tokens says how large a mini-batch is
    max_tokens: int = option(1024, "tokens in a mini-batch, of documents as they come")
    longest: int = option(1024, "tokens that the model looks back; longer documents are cut")
    overlap: int = option(256, "tokens of a cut document that are read once more", not_negative)
    samples: int = option(3, "documents made up after each epoch", not_negative)
    sample_length: int = option(200, "most tokens of each")


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings(DocumentSettings):
    """The settings of a language model; `DocumentWriter` says how the usual ones were chosen."""

    units: str = option(
        "auto", "a token is: bytes, characters", one_of("auto", "bytes", "characters")
    )
    epochs: int = option(5, "passes over the data (by its size, 1 to 40)", passes)
    width: int = option(128, "features of a token")
    layers: int = option(4, "layers")
    heads: int = option(4, "heads of attention")
    dropout: float = option(0.0, "probability that a feature is dropped while training", share)
    lr: float = option(2e-3, "peak of AdamW's learning rate", above_zero)
    clip: float = option(1.0, "largest norm of the gradient", above_zero)


class DocumentWriter(WritingTask):
    """A GPT of bytes or characters, which makes documents up or continues their beginnings.

    Tokens are bytes, so that nothing is unknown, unless a character takes 1.2 bytes or more on
    average, as in Greek, Russian or Chinese: then they are characters, and sentences are half as
    long. Mini-batches are small: on 220 kB of Debian's fortunes one epoch ended at 3.92 bits per
    byte with 1,024 tokens in each, in 15 s of one core, and at 4.11 with 4,096, in 12 s. Places are
    rotary: after 400 updates of 1,024 bytes, 25 s of one core, of Python's `pydoc_data.topics`,
    held-out documents had 2.65 bits per byte, and 3.30 with a table of places.

    Args:
        model:      its `mark` stands around documents.
        tokenizer:  characters or bytes.
        kept:       what the model was made of, by name: layers, heads, dropout; and the `overlap`
                    of pieces of long documents.
    """

    name = "language-model"
    is_bounded = True
    form = "text with blank lines, or lines of one %, between documents; else a document a line"
    Settings: ClassVar[type[DocumentSettings]] = LanguageModelSettings

    def __init__(self, model: Any, tokenizer: Any, kept: dict[str, Any]) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._kept = kept

    @property
    def longest(self) -> int:
        """The most tokens that the model reads of a piece."""
        return int(self.model.positions)

    @classmethod
    def read(cls, path: str | Path, settings: LanguageModelSettings) -> list[str]:
        """The documents of a file; see `documents.documents`."""
        return read_documents(path)

    @classmethod
    def key(cls, text: str) -> str:
        """The document itself, so that equal ones are on one side."""
        return text

    @classmethod
    def begin(cls, parts: Parts, settings: LanguageModelSettings) -> Self:
        """An untrained model, and the alphabet of all parts where tokens are characters.

        Raises:
            ArgumentError: pieces of long documents would overlap whole, or heads would not divide
                the width.
        """
        step = 2 * settings.heads  # a head turns pairs of features by their place
        if settings.width % step:
            raise ArgumentError(
                f"--width {settings.width} with --heads {settings.heads}: "
                f"{settings.width / settings.heads:g} features a head.\n"
                "  rule: each head has an even number of features\n"
                f"  fix:  --width {-(-settings.width // step) * step}"
            )
        refuse_whole_overlap(settings.overlap, settings.longest)
        tokenizer = DocumentTokenizer(_alphabet(parts, settings.units))
        model = GPT(
            len(tokenizer), settings.longest, settings.width, settings.layers, settings.heads,
            settings.dropout, settings.seed, rotary=True,
        )  # fmt: skip
        return cls(model, tokenizer, {name: getattr(settings, name) for name in _KEPT})

    @classmethod
    def fitted(cls, texts: Sequence[str], settings: LanguageModelSettings) -> dict[str, Any]:
        """Epochs for five million bytes, 40 at most; of little text smaller mini-batches."""
        num_bytes = sum([len(text.encode()) + 1 for text in texts])
        epochs = min(40, max(1, round(5e6 / num_bytes)))
        max_tokens = min(settings.max_tokens, max(128, num_bytes // 20))
        updates = epochs * num_bytes // max_tokens
        return {
            "epochs": epochs,
            "max_tokens": max_tokens,
            "warmup": max(1, min(200, updates // 5)),
        }

    def examples(self, texts: Sequence[str]) -> list[Piece]:
        """All documents in pieces; most are one."""
        longest, overlap = self.longest, self._kept["overlap"]
        wholes = [self.tokenizer.whole(text) for text in texts]
        return [piece for ids in wholes for piece in pieces(ids, longest, overlap)]

    def loss(self, graph: Graph, model: Any, example: Piece) -> Node:
        """Cross-entropy of one piece, summed over what it predicts."""
        loss: Node = model.loss(graph, example.ids, context=example.context)
        return loss

    def num_tokens(self, example: Piece) -> int:
        return example.num_predicted

    def batches(self, examples: Sequence[Piece], settings: LanguageModelSettings) -> Batches:
        return TokenBatches(examples, settings.max_tokens, self.num_tokens, settings.seed)

    def optimizer(self, settings: LanguageModelSettings) -> Optimizer:
        """AdamW with the usual settings of GPTs."""
        return AdamW(self.model, settings.lr, betas=(0.9, 0.99), weight_decay=0.1)

    def padded_bytes(self, precision: str = FULL) -> Callable[[Sequence[Piece]], int] | None:
        peak = padded_peak(
            self.model, self.model.loss, padded_piece, partial(padded_loss, self.model), precision
        )
        return lambda batch: peak([(piece.ids, piece.context) for piece in batch])

    def evaluate(self, texts: Sequence[str]) -> dict[str, float]:
        """Bits of all tokens and ends of documents, divided by the number of bytes."""
        nats = predict(
            self.model,
            lambda graph, piece: self.loss(graph, self.model, piece),
            self.examples(texts),
        )
        num_bytes = sum([len(text.encode()) for text in texts])
        return {"bits per byte": sum([float(each) for each in nats]) / log(2) / num_bytes}

    def report(self, parts: Parts) -> str:
        """The bits of a byte, and those of a compressor that has read what was trained on."""
        baseline = compressed_bits(parts.train, parts.test)
        by_xz = [] if baseline is None else [f"{'xz after the same text':24}  {baseline:.4f}"]
        return "\n".join([super().report(parts), *by_xz])

    @classmethod
    def shown(cls, text: str) -> str:
        return text.replace("\n", "⏎")

    @classmethod
    def prompt(cls, text: str) -> str:
        return " ".join(text.split()[:2])[:40]

    @classmethod
    def sizes(cls, texts: Sequence[str]) -> str:
        return f"{len(texts):,} documents, {sum([len(text.encode()) for text in texts]):,} bytes"

    def samples(
        self, texts: Sequence[str], settings: LanguageModelSettings, rng: np.random.Generator
    ) -> list[str]:
        made_up = self.sample(settings.samples, settings.sample_length, rng)
        return [
            line
            for text in made_up
            for line in [*(printable(text.expandtabs()).splitlines() or ["(empty)"]), "%"]
        ]

    def sample(self, count: int, length: int, rng: np.random.Generator) -> list[str]:
        """Documents that the model makes up, side by side, each drawn from its distribution.

        Each has at most `length` tokens, and with its first mark no more than the model has places.
        """
        if not count:
            return []
        ((*samples,),) = generate(
            self.model, [self.tokenizer.encode("")], max_new_tokens=length,
            eos_token_id=self.tokenizer.ends, do_sample=True, num_return_sequences=count,
            seed=int(rng.integers(1 << 32)),
        )  # fmt: skip
        return [self.tokenizer.decode(one.tokens) for one in samples]

    # Checkpoints, and text out of text ------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """The alphabet, and what the shapes of tensors do not tell."""
        return {"characters": self.tokenizer.characters, **self._kept}

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        places = info.shapes.get("model/places.weight")  # of older runs, without rotary
        rotary = {} if places else {"longest": is_count}
        description = checked_description(info, _DESCRIPTION | rotary)
        if places:
            description["longest"] = places[0]
        tokenizer = DocumentTokenizer(description["characters"])
        shape = info.shapes.get("model/tokens.weight", ())
        layers = len([name for name in info.shapes if _LAYER.fullmatch(name)])
        if len(shape) != 2 or shape[0] != len(tokenizer):
            raise damaged_description(info, f"{len(tokenizer)} tokens, the tensor {shape}")
        if description["layers"] != layers:
            raise damaged_description(
                info, f"{description['layers']} layers where {layers} were saved"
            )
        (num_tokens, width), heads = shape, description["heads"]
        if not heads or width % heads:
            raise damaged_description(info, f"{heads} heads for width {width}")
        model = GPT(
            num_tokens, description["longest"], width, layers, heads, description["dropout"],
            rotary=places is None,
        )  # fmt: skip
        return cls(model, tokenizer, {name: description[name] for name in _KEPT})

    def coder(self) -> TextCoder:
        """Text as the beginning of a document: its tokens stand behind the mark."""
        coder: TextCoder = self.tokenizer
        return coder

    def generation(self) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=self.longest, eos_token_id=self.tokenizer.ends, do_sample=True
        )


def padded_loss(model: GPT, graph: Graph, ids: Array, context: int, length: int) -> Node:
    """The loss of a piece with padding behind its `length` ids, to compare memory with.

    Padding stands behind all that counts, where nothing looks.
    """
    targets = ignored_after(ids[1:], length - 1)[context:]
    scores = model.scores(model.features(graph, ids[:-1])[context:])
    return F.cross_entropy(scores, targets, reduction="sum")


def padded_piece(piece: tuple[Array, int], longest: tuple[int, ...]) -> tuple[Array, int, int]:
    """Ids and context of a piece, lengthened: what `padded_loss` takes."""
    ids, context = piece
    return lengthened(ids, longest[0], 0), context, len(ids)


def _alphabet(parts: Parts, units: str) -> str | None:
    """The characters that are tokens; None where bytes are."""
    characters = "".join(sorted(set("".join([*parts.train, *parts.dev, *parts.test]))))
    if units == "auto":
        num_bytes = len("".join(parts.train).encode("utf-8", "replace"))
        units = "bytes" if num_bytes < 1.2 * len("".join(parts.train)) else "characters"
    return characters if units == "characters" else None


_KEPT = ("layers", "heads", "dropout", "longest", "overlap")
"""Settings that a model is made of, and that the shapes of its tensors do not tell."""

_DESCRIPTION: dict[str, Rule] = {
    "characters": lambda value: value is None or (isinstance(value, str) and value != ""),
    "layers": is_count,
    "heads": is_count,
    "dropout": is_share,
    "overlap": is_count,
}
_LAYER = re.compile(r"model/encoder\.layers\.\d+\.norm1\.weight")
