"""`dynbatch plot RUN`: a picture of a training run, or of several to compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from textwrap import fill

from dynbatch.pictures import training
from dynbatch.train.progress import COLUMNS

SUMMARY = "draw a run: loss, metric, rate, speed, memory"
HELP = """\
Draw the course of a training run: loss, validation, learning rate, speed, and
memory beside what it would take padded. Several runs are drawn together.

  dynbatch plot runs/poems
  dynbatch plot runs/poems/metrics.jsonl -o poems.html
  dynbatch plot runs/small runs/large -o compared.svg
"""

MORE = """\
output:
  An SVG file, or a page where the name ends in .html; browsers show either,
  in light or in dark. A run that is still training can be drawn too. With
  Trainer(watch=N) the picture says how large the updates of each parameter
  are in relation to its weights.

exit status:
  0; 1 after an error; 2 after a wrong option.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="a folder with metrics.jsonl, or such a file"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write (training.svg in the first folder)"
    )


def run(options: argparse.Namespace) -> None:
    """Draw, and say where.

    Raises:
        DynbatchError, OSError: as their messages say.
    """
    picture = training(*options.runs)
    first = Path(options.runs[0])
    folder = first if first.is_dir() else first.parent
    path = Path(options.output or folder / "training.svg")
    picture.save(path)
    for line in picture.description.splitlines():
        print(fill(line, COLUMNS))
    print(f"drawn in {path}")
