"""Waits of 8 to 1,024 ranks: `python -m benchmarks.many_ranks [--json FILE]`.

Reckoned, not run. First the shards: mini-batches with the lengths of real messages and with those
of `benchmarks.lengths` are cut for so many ranks by cost, by tokens and by sentences; all ranks
wait for the dearest shard. Two costs stand for two kinds of networks, in units of a token: a
recurrence, whose longest sentence costs two tokens for each of its own and whose sentences cost one
each, an assumption (the tagger was seen to pay 0.4 to 2 on a CPU); and a Transformer of width 512,
whose attention adds n / (6 · 512) tokens to each of n tokens. What a step costs whatever its shard
holds is left out.

Then the gradients: bytes that a rank sends, and the seconds of their way, by the rates that makers
state. A machine has eight cards, joined by NVLink; each has its own InfiniBand card to others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks.shards import LENGTHS, cuts, drawn_lengths
from dynbatch.parallel import Cost

RANKS = (8, 64, 1024)
SENTENCES = (16, 64)
COSTS = {
    "recurrence": Cost(token=(1.0,), longest=(2.0,), sentence=1.0),
    "Transformer": Cost(token=(1.0,), product=(1 / (6 * 512),)),
}

CARDS = 8
NVLINK = 450e9
"""Bytes a second that a card sends: half of the 900 GB/s in the data sheet of NVIDIA's H100 (SXM),
which counts both directions."""
INFINIBAND = 50e9
"""Bytes a second: a ConnectX-7 of 400 Gb/s for each card, as in a DGX H100 (its user guide)."""
MESSAGE = 5e-6
"""Seconds for each message, one after the other: an assumption, and a high one."""
MODELS = {"seq2seq of the benchmarks": 8_385_600, "BERT-base": 110_000_000}


class Imbalance(NamedTuple):
    """The imbalance of shards.

    Args:
        dearest_over_mean: by each way of cutting, the mean over mini-batches.
        dearest: the dearest shard's cost against that of shards cut by cost.
    """

    network: str
    lengths: str
    ranks: int
    sentences: int
    dearest_over_mean: dict[str, float]
    dearest: dict[str, float]


class Way(NamedTuple):
    """The way of a model's gradients, float32, for a number of ranks.

    Args:
        sent:     bytes that each rank sends, 2 (n - 1) / n times those of the gradients.
        seconds:  at the stated rates, without what messages take.
        messages: that each rank sends, 2 (n - 1).
        waited:   seconds for them, one after the other.
    """

    model: str
    ranks: int
    sent: float
    seconds: float
    messages: int
    waited: float


def imbalance(
    network: str, lengths: str, ranks: int, sentences: int, options: argparse.Namespace
) -> Imbalance:
    """Cut some mini-batches of ranks · sentences in all ways."""
    cost, rng = COSTS[network], np.random.default_rng(options.seed)
    dearest: dict[str, list[float]] = {}
    mean: dict[str, list[float]] = {}
    for _ in range(options.batches):
        drawn = drawn_lengths(lengths, rng, ranks * sentences, options.folder)[:, :1]
        for way, shards in cuts(cost, drawn, ranks).items():
            costs = [cost.of(drawn[shard]) for shard in shards]
            dearest.setdefault(way, []).append(max(costs))
            mean.setdefault(way, []).append(sum(costs) / ranks)
    over = {way: float(np.mean(np.divide(dearest[way], mean[way]))) for way in dearest}
    against = {way: float(np.mean(np.divide(dearest[way], dearest["cost"]))) for way in dearest}
    return Imbalance(network, lengths, ranks, sentences, over, against)


def way(model: str, ranks: int) -> Way:
    """The time of summing gradients on all ranks, each sending to all others."""
    size = 4.0 * MODELS[model]
    inside = min(ranks, CARDS) - 1
    near, far = (2 * size * part / ranks for part in (inside, ranks - 1 - inside))
    seconds = max(near / NVLINK, far / INFINIBAND)  # at once: they have ways of their own
    messages = 2 * (ranks - 1)
    return Way(model, ranks, near + far, seconds, messages, messages * MESSAGE)


def as_text(found: Sequence[Imbalance], ways: Sequence[Way]) -> str:
    """Both tables."""
    lines = ["dearest shard over the mean; in brackets its cost against that of shards by cost"]
    lines += ["network      lengths      ranks  sentences    cost       tokens     sentences"]
    for each in found:
        cells = [
            f"{each.dearest_over_mean[way]:.2f} ({each.dearest[way]:.2f})"
            for way in ("tokens", "sentences")
        ]
        lines.append(
            f"{each.network:<12} {each.lengths:<12} {each.ranks:>5,} {each.sentences:>10}"
            f"   {each.dearest_over_mean['cost']:>5.2f}  {'  '.join(cells)}"
        )
    lines += ["", "gradients, float32: what a rank sends, at the stated rates"]
    lines += ["model                       ranks       MB      ms  messages  their ms"]
    for row in ways:
        lines.append(
            f"{row.model:<26} {row.ranks:>6,} {row.sent / 1e6:>8.1f} {row.seconds * 1e3:>7.2f}"
            f" {row.messages:>9,} {row.waited * 1e3:>9.2f}"
        )
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_ranks", description=__doc__)
    parser.add_argument("--lengths", nargs="*", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--ranks", nargs="*", type=int, default=list(RANKS))
    parser.add_argument("--sentences", nargs="*", type=int, default=list(SENTENCES))
    parser.add_argument("--batches", type=int, default=4, help="mini-batches of each kind")
    parser.add_argument("--folder", help="of LibreOffice's unpacked package; fetched by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write all numbers to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    cases = [
        (network, lengths, ranks, sentences)
        for network in COSTS
        for lengths in options.lengths
        for ranks in options.ranks
        for sentences in options.sentences
    ]
    found = [imbalance(*case, options) for case in tqdm(cases, desc="cutting", ncols=79)]
    ways = [way(model, ranks) for model in MODELS for ranks in options.ranks]
    print(as_text(found, ways))
    if options.json:
        result = {"found": [x._asdict() for x in found], "ways": [x._asdict() for x in ways]}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
