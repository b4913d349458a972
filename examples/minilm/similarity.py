"""Vectors of sentences: the published cosines, and which sentences are nearest to yours.

python examples/minilm/similarity.py
python examples/minilm/similarity.py "How do I undo a commit?" --among questions.txt
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import dynbatch as db
from dynbatch.backend import Array
from dynbatch.commands.status import exit_status
from dynbatch.errors import DataError
from dynbatch.models.pretrained import Bert
from dynbatch.tasks.options import positive
from dynbatch.text import WordPiece, read_lines
from examples.minilm import weights

PUBLISHED = {
    ("The weather is lovely today.", "It's so sunny outside!"): 0.6660,
    ("The weather is lovely today.", "He drove to the stadium."): 0.1046,
    ("It's so sunny outside!", "He drove to the stadium."): 0.1411,
}
"""Cosines that sbert.net's quick start prints for this model."""

QUERIES = ("My computer does not start.", "She was glad to see him again.")
AMONG = (
    "The laptop stays black when I press the button.",
    "Restart the machine and try once more.",
    "The engine would not turn over on that cold morning.",
    "After all those years, the two friends embraced at the station.",
    "He waved from the platform until the train was out of sight.",
    "Bake the bread for forty minutes.",
    "The court found for the plaintiff.",
    "Prices of coffee rose for the third month in a row.",
    "No.",
)


class SentenceVectors:
    """A BERT with its tokenizer: texts to vectors of length 1.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.bert = Bert.from_pretrained(folder)
        self.tokenizer = WordPiece.from_pretrained(folder)

    def __call__(self, texts: Sequence[str], batch_size: int = 64) -> Array:
        """Vectors (N, D): means over a text's tokens, [CLS] and [SEP] among them, normalised.

        Raises:
            DataError: a text has more tokens than the model has positions.
        """
        ids = [self._encode(text) for text in texts]
        found = db.predict(self.bert, self.bert.vector, ids, batch_size=batch_size)
        vectors: Array = np.array(found).reshape(len(texts), self.bert.config.hidden_size)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def _encode(self, text: str) -> Array:
        ids = self.tokenizer.encode(text)
        longest = self.bert.config.max_position_embeddings
        if len(ids) > longest:
            raise DataError(
                f"{text[:40]!r}… has {len(ids)} tokens.\n"
                f"  rule: at most {longest}, as many as the model has positions\n"
                "  fix:  give its parts"
            )
        return ids


def main(argv: Sequence[str] | None = None) -> int:
    """Print cosines and neighbours. The exit status is that of `exit_status`."""
    parser = argparse.ArgumentParser(
        prog="python examples/minilm/similarity.py",
        description="Vectors of sentences with the published weights of all-MiniLM-L6-v2.",
    )
    parser.add_argument("sentences", nargs="*", help="whose neighbours are looked for")
    parser.add_argument("--among", metavar="FILE", help="sentences, one a line (some of our own)")
    parser.add_argument("--model", metavar="DIR", help="a BERT's folder (fetched, once, 83 MB)")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads (one a processor)")
    options = parser.parse_args(argv)
    if options.threads is not None:
        db.set_num_threads(options.threads)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Compare the published sentences, then look for the nearest."""
    among = AMONG if options.among is None else read_lines(options.among)
    model = SentenceVectors(weights.folder(options.model))
    texts = sorted({text for pair in PUBLISHED for text in pair})
    vectors = dict(zip(texts, model(texts), strict=True))
    print("cosine  published")
    for (one, other), published in PUBLISHED.items():
        print(f"{vectors[one] @ vectors[other]:6.4f}  {published:9.4f}  {one}  {other}")
    start = time.perf_counter()
    known = model(among)
    seconds = time.perf_counter() - start
    print(f"\n{len(among):,} sentences, {len(among) / seconds:,.0f} a second")
    queries = options.sentences or QUERIES
    for query, cosines in zip(queries, model(queries) @ known.T, strict=True):
        print(f"\n{query}")
        for k in np.argsort(-cosines, kind="stable")[:3]:
            print(f"  {cosines[k]:6.4f}  {among[k]}")


if __name__ == "__main__":
    sys.exit(main())
