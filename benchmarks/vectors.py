"""The speed of reading word vectors: `python -m benchmarks.vectors`.

A file of GloVe's form is made of random numbers with five digits, then read by
`dynbatch.text.read_vectors` and by whatever is installed of pandas (its C engine), polars, pyarrow
and gensim; `numpy.loadtxt` reads it too. They take turns, and all must find the same numbers. What
is timed ends with a list of words and a float32 matrix in memory, the file being in the system's
cache.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.report import show
from dynbatch.text import read_vectors

GOAL = 1.5
"""The fastest other reader's time, at most so many times."""

DIFFERENT_ROWS = 4000
"""Rows of numbers that the file repeats, so that making it takes seconds."""

Found = tuple[Sequence[str], Any]
Reader = Callable[[Path, int], Found]


def write_file(path: Path, rows: int, dim: int) -> None:
    """Write words of one letter and a number, each with `dim` numbers of five digits."""
    values = np.random.default_rng(0).normal(0, 0.4, (min(rows, DIFFERENT_ROWS), dim))
    lines = [" ".join([f"{value:.5g}" for value in row]) for row in values.tolist()]
    with open(path, "w", encoding="utf-8") as file:
        for k in range(rows):
            file.write(f"w{k} {lines[k % len(lines)]}\n")


def by_dynbatch(path: Path, dim: int) -> Found:
    vectors = read_vectors(path)
    return vectors.words, vectors.matrix


def by_pandas(path: Path, dim: int) -> Found:
    pandas: Any = importlib.import_module("pandas")
    types = {0: str, **{k: np.float32 for k in range(1, dim + 1)}}
    frame = pandas.read_csv(
        path, sep=" ", header=None, index_col=0, engine="c", quoting=csv.QUOTE_NONE,
        na_filter=False, dtype=types,
    )  # fmt: skip
    return list(frame.index), frame.to_numpy()


def by_polars(path: Path, dim: int) -> Found:
    polars: Any = importlib.import_module("polars")
    types = {"word": polars.String, **{f"c{k}": polars.Float32 for k in range(dim)}}
    frame = polars.read_csv(path, separator=" ", has_header=False, quote_char=None, schema=types)
    return frame["word"].to_list(), frame.drop("word").to_numpy()


def by_pyarrow(path: Path, dim: int) -> Found:
    arrow: Any = importlib.import_module("pyarrow")
    files: Any = importlib.import_module("pyarrow.csv")
    names = ["word", *[f"c{k}" for k in range(dim)]]
    types = {name: arrow.float32() for name in names} | {"word": arrow.string()}
    table = files.read_csv(
        path,
        read_options=files.ReadOptions(column_names=names),
        parse_options=files.ParseOptions(delimiter=" ", quote_char=False),
        convert_options=files.ConvertOptions(column_types=types),
    )
    matrix = np.empty((table.num_rows, dim), np.float32)
    for k in range(dim):
        matrix[:, k] = table.column(k + 1).to_numpy()
    return table["word"].to_pylist(), matrix


def by_gensim(path: Path, dim: int) -> Found:
    gensim: Any = importlib.import_module("gensim.models")
    vectors = gensim.KeyedVectors.load_word2vec_format(str(path), no_header=True)
    return vectors.index_to_key, vectors.vectors


def by_loadtxt(path: Path, dim: int) -> Found:
    options: Any = {"dtype": np.float32, "delimiter": " ", "comments": None}
    with open(path, encoding="utf-8") as file:
        words = [line.partition(" ")[0] for line in file]
    return words, np.loadtxt(path, usecols=range(1, dim + 1), **options)


READERS: dict[str, Reader] = {
    "dynbatch": by_dynbatch,
    "pandas": by_pandas,
    "polars": by_polars,
    "pyarrow": by_pyarrow,
    "loadtxt": by_loadtxt,
    "gensim": by_gensim,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each reader, of rounds in which they take turns.

    Raises:
        ValueError: a reader finds other words or numbers than dynbatch.
    """
    if options.threads:
        db.set_num_threads(options.threads)
    seconds: dict[str, list[float]] = {name: [] for name in options.readers}
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder, "vectors.txt")
        write_file(path, options.rows, options.dim)
        size, others = path.stat().st_size, OtherWork()
        words, expected = by_dynbatch(path, options.dim)  # compiled, and the file is in the cache
        for _ in range(options.rounds):
            for name in [name for name in options.readers if name not in skipped]:
                begin = time.perf_counter()
                try:
                    found = READERS[name](path, options.dim)
                except ImportError as error:
                    skipped[name] = str(error)
                    continue
                seconds[name].append(time.perf_counter() - begin)
                if list(found[0]) != words or not np.allclose(found[1], expected, 1e-6, 0):
                    raise ValueError(f"{name} finds other words or numbers than dynbatch")
                del found
    medians = {name: statistics.median(times) for name, times in seconds.items() if times}
    rivals = {name: time for name, time in medians.items() if name != "dynbatch"}
    fastest = min(rivals, key=rivals.__getitem__, default="")
    return {
        "rows": options.rows,
        "features": options.dim,
        "megabytes": round(size / 1e6, 1),
        "rounds": options.rounds,
        "seconds": {name: round(time, 3) for name, time in medians.items()},
        "fastest": fastest,
        "ratio": round(medians["dynbatch"] / rivals[fastest], 3) if fastest else None,
        "skipped": skipped,
        "warning": others.warning(),
    }


def as_text(found: dict[str, Any]) -> str:
    """A line for each reader."""
    lines = [
        f"{found['rows']:,} × {found['features']}, {found['megabytes']:,} MB; medians of "
        f"{found['rounds']} rounds, seconds"
    ]
    lines += [f"{name:10} {time:8.3f}" for name, time in found["seconds"].items()]
    lines += [f"{name:10} not run: {reason}" for name, reason in found["skipped"].items()]
    if found["ratio"] is not None:
        lines.append(
            f"dynbatch takes {found['ratio']:.2f} times as long as {found['fastest']}; at most "
            f"{GOAL} is wanted"
        )
    return "\n".join([*lines, found["warning"]])


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="words of the file")
    parser.add_argument("--dim", type=int, default=300, help="numbers of a word")
    parser.add_argument("--rounds", type=int, default=3, help="turns that are timed")
    parser.add_argument("--threads", type=int, help="of dynbatch; others take what they take")
    parser.add_argument("--folder", help="where the file is made for a while: 1 GB by default")
    parser.add_argument(
        "--readers", nargs="+", choices=list(READERS), help="by default all but gensim, the slowest"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args(arguments)
    readers = options.readers or [name for name in READERS if name != "gensim"]
    options.readers = ["dynbatch", *[name for name in readers if name != "dynbatch"]]
    return options


if __name__ == "__main__":
    chosen = parse()
    result = run(chosen)
    show(as_text(result), result, chosen.json)
