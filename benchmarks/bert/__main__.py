"""BERT-base's memory: `python -m benchmarks.bert [--run] [--picture docs/images/bert.png]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.bert import estimates, measured
from benchmarks.bert.examples import full, mixed
from benchmarks.bert.report import (
    FULL,
    MIXED,
    PADDED,
    PUBLISHED,
    PUBLISHED_FITS,
    TORCH,
    draw,
    fit_lines,
    measured_lines,
    step_lines,
)
from benchmarks.report import show
from dynbatch.models.pretrained.bert import BertConfig
from dynbatch.models.pretrained.bert_heads import BertForMaskedWords

TABLE_LENGTHS = (64, 128, 256, 320, 384, 512)
KINDS = {"all full": full, "lengths as SQuAD's": mixed}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Estimate both steps, measure what is asked for, and find what fits."""
    sizes = {"num_hidden_layers": options.layers} if options.layers else {}
    config = BertConfig(**sizes)
    model = BertForMaskedWords(config, rng=1)
    torch_memory = None
    if options.pytorch and find_spec("torch"):
        from benchmarks.bert.torch_twin import TorchMemory

        torch_memory = TorchMemory(config).total
    count, length = options.sentences, options.length
    found: dict[str, Any] = {"steps": {}, "ran": {}}
    lines: list[str] = []
    theirs = None if torch_memory is None else torch_memory(length, count)
    for name, kind in KINDS.items():
        lengths = kind(count, length)
        step, padded = [estimates.estimate(model, lengths, pads) for pads in (False, True)]
        others = {"padded": padded.total, "PyTorch, padded": theirs}
        found["steps"][name] = {**asdict(step), "total": step.total, "others": others}
        lines += step_lines(f"{count} x {length}, {name}", step, others)
    if options.run:
        for name in options.run:
            ran = measured.in_a_process(sizes, KINDS[name](count, length), options.threads)
            found["ran"][name] = ran
            lines += measured_lines(f"{count} x {length}, {name}", ran)
    if options.table:
        limit = int(options.limit_gib * estimates.GIB)
        found["fits"] = table(model, torch_memory, limit)
        lines += ["", *fit_lines(found["fits"], options.limit_gib)]
    found["text"] = "\n".join(lines)
    return found


def table(model: BertForMaskedWords, torch_memory: Any, limit: int) -> dict[str, dict[int, int]]:
    """The most sentences by form and by longest length."""

    def most(total: Callable[[int, int], int]) -> dict[int, int]:
        return {
            length: estimates.most_sentences(partial(total, length), limit)
            for length in TABLE_LENGTHS
        }

    def ours(kind: estimates.Lengths, pads: bool, length: int, count: int) -> int:
        return estimates.estimate(model, kind(count, length), pads).total

    forms = {FULL: (full, False), MIXED: (mixed, False), PADDED: (mixed, True)}
    fits = {name: most(partial(ours, *form)) for name, form in forms.items()}
    if torch_memory is not None:
        fits[TORCH] = most(torch_memory)
    fits[PUBLISHED] = PUBLISHED_FITS
    return fits


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bert", description=__doc__)
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--length", type=int, default=512, help="of the longest sentence")
    parser.add_argument("--layers", type=int, help="of the encoder, if not 12")
    parser.add_argument(
        "--run", nargs="*", choices=list(KINDS), help="really run one step; both if no name follows"
    )
    parser.add_argument("--threads", type=int, default=2, help="of the step that runs")
    parser.add_argument("--limit-gib", type=float, default=11.0, help="of the table of what fits")
    parser.add_argument("--no-table", dest="table", action="store_false")
    parser.add_argument("--no-pytorch", dest="pytorch", action="store_false")
    parser.add_argument("--json", action="store_true", help="one JSON object; text to stderr")
    parser.add_argument("--picture", type=Path, help="draw the table, such as docs/images/bert.png")
    options = parser.parse_args(arguments)
    options.run = list(KINDS) if options.run == [] else options.run or []
    if options.picture and not options.table:
        parser.error("--picture draws the table, which --no-table leaves out")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    found = run(options)
    show(found.pop("text"), found, options.json)
    if options.picture:
        draw(found["fits"], options.limit_gib, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
