"""Train a GPT on a text file, by document: nothing is cropped, nothing is padded.

python examples/language_model/train.py                # Debian's fortunes
python examples/language_model/train.py book.txt       # blank lines between its documents
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynbatch.errors import DataError
from dynbatch.tasks.language_model import DocumentWriter, LanguageModelSettings
from dynbatch.tasks.learning import begun, learn
from dynbatch.tasks.options import one_of, option
from dynbatch.tasks.summary import memory_saved
from dynbatch.tasks.task import Parts, hold_out
from dynbatch.tasks.training import place, sample
from dynbatch.text.documents import documents
from dynbatch.train import padding_ratio, read_metrics
from dynbatch.train.run_folder import METRICS
from examples.corpora import fortunes, shakespeare
from examples.training import command

CORPORA: dict[str, Callable[[], list[str]]] = {
    "fortunes": lambda: [each.text for each in fortunes.load()],
    "shakespeare": lambda: documents(shakespeare.load()),
}
"""Texts by name; Shakespeare's documents are his speeches."""


@dataclass(frozen=True, kw_only=True)
class Settings(LanguageModelSettings):
    """The language model's settings, with corpora by name."""

    data: str = option("fortunes", "fortunes, shakespeare, or a file of text", str, is_first=True)
    units: str = option("bytes", "a token is: bytes, characters", one_of("bytes", "characters"))
    max_tokens: int = option(4096, "tokens in a mini-batch, of documents as they come")
    characters: bool = option(False, "a token is a character, not a byte", is_kept=False)
    output: str | None = option(
        "runs/language-model", "folder for checkpoint and metrics", str, is_kept=False
    )

    @classmethod
    def usual(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Characters where `--characters` asks for them."""
        return {"units": "characters"} if given.get("characters") else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status is that of `exit_status`."""
    what = "Train a GPT on the documents of a text, without padding."
    return command(Settings, run, argv, "examples.language_model.train", what)


def run(settings: Settings) -> None:
    """Train what the settings say; after each epoch print bits per byte, and samples."""
    parts = load(settings)
    writer = begun(DocumentWriter, parts, settings)
    lengths = [piece.ids.size - 1 for piece in writer.examples(parts.train)]
    ratio = np.mean([padding_ratio(lengths[k : k + 32]) for k in range(0, len(lengths), 32)])
    print(
        f"{writer.sizes(parts.train)}, in {len(lengths):,} pieces (32 of them, padded, would be "
        f"{ratio:.1f} times as large); {len(parts.dev):,} for validation, "
        f"{sum([len(text.encode()) for text in parts.dev]):,} bytes\n"
        f"{writer.model.num_parameters():,} parameters; {place(settings)}",
        flush=True,
    )
    learn(writer, parts, settings)
    saved = memory_saved(read_metrics(Path(str(settings.output), METRICS)))
    print(f"Memory of a training step at its peak: {saved}")


def load(settings: Settings) -> Parts:
    """The documents of a corpus by name, or of any UTF-8 file; a tenth is held out, by their hash.

    Raises:
        DataError: there is neither such a corpus nor such a file, or it is not UTF-8.
    """
    if settings.data in CORPORA:
        texts = CORPORA[settings.data]()
    elif Path(settings.data).exists():
        texts = DocumentWriter.read(settings.data, settings)
    else:
        raise DataError(
            f"{settings.data}: there is no such file.\n"
            f"  rule: {', '.join(CORPORA)}, or a file of text"
        )
    dev = [text for text in texts if hold_out(text) != "train"]
    known = [text for text in texts if hold_out(text) == "train"]
    return Parts(sample(known, settings), dev, [])


if __name__ == "__main__":
    sys.exit(main())
