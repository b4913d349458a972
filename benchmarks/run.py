"""Time one workload: `python -m benchmarks.run WORKLOAD [--batch 64] [--device cuda] [--json]`.

With `all` the usual ones (`together.TOGETHER`) run one after the other, and make one table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import numpy as np

import dynbatch as db
from benchmarks import environment, limit, together
from benchmarks.lengths import KINDS, Corpus, mean_padding_ratio
from benchmarks.measure import Contender, Disagreement, interleave, require_agreement
from benchmarks.peers import fastest_mkl
from benchmarks.peers.checkout import CheckoutContender
from benchmarks.peers.worker_process import PeerUnavailable
from benchmarks.report import Report, show
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.contender import DynbatchContender, median_cost
from dynbatch.backend import NAMES
from dynbatch.errors import BackendError
from dynbatch.kernels.runtime.precision import FULL

ALL = "all"
_GUARD_SENTENCES = 8
_GUARD_LENGTH = 9  # of the sentences on which padded forms are exact too


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("workload", choices=[*sorted(WORKLOADS), ALL])
    parser.add_argument("--batch", type=_positive, help="sentences of a random batch, if not 64")
    parser.add_argument("--device", choices=NAMES, default="cpu", help="of dynbatch and PyTorch")
    parser.add_argument("--hidden", type=_positive, help="width of the LSTMs, if not 256")
    parser.add_argument("--heads", type=_positive, help="of a Transformer, if not 4")
    parser.add_argument("--lengths", choices=KINDS, default=KINDS[0], help="of the sentences")
    parser.add_argument("--threads", type=_positive, default=2, help="of dynbatch and PyTorch")
    parser.add_argument("--rounds", type=_positive, default=3, help="times each batch is timed")
    parser.add_argument("--batches", type=_positive, default=6, help="different batches")
    parser.add_argument("--seed", type=int, default=1, help="of lengths, ids and initial values")
    parser.add_argument("--sigma", type=float, help="spread of lengths, if not 0.59")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=sorted(
            {name for each in WORKLOADS.values() for name in (*each.peers, *each.modes)}
        ),
        help="which peers to time beside it; by default all that compile nothing, none if nothing "
        "follows",
    )
    parser.add_argument("--dynet-python", default="", help="an interpreter that has dynet")
    parser.add_argument(
        "--tensorflow", default="", metavar="PYTHON", help="an interpreter that has tensorflow"
    )
    parser.add_argument(
        "--against", default="", metavar="FOLDER", help="another checkout of dynbatch, timed beside"
    )
    parser.add_argument(
        "--keep-freed-memory",
        action="store_true",
        help="tell glibc not to return memory to the system: spares PyTorch page faults",
    )
    parser.add_argument(fastest_mkl.OPTION, action="store_true", help=fastest_mkl.HELP)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Report:
    """Build all sides, check that they compute the same, time them.

    Raises:
        Disagreement: they do not.
    """
    workload = WORKLOADS[options.workload]
    if options.hidden:
        workload = workload.with_hidden(options.hidden)
    if options.heads:
        workload = workload.with_heads(options.heads)
    workload = workload.with_lengths(options.lengths)
    num_sentences = options.batch or workload.batch
    notes = []
    others = environment.OtherWork()
    if options.keep_freed_memory:
        kept = environment.keep_freed_memory()
        notes.append("setting    freed memory is kept" if kept else "setting    not with this libc")
    db.set_num_threads(options.threads)
    rng = np.random.default_rng(options.seed)
    corpus = workload.corpus(workload.sigma if options.sigma is None else options.sigma)
    ours, peers, skipped = workload.build(
        rng,
        options.peers,
        options.threads,
        options.dynet_python,
        options.device,
        options.tensorflow,
    )
    if options.against:
        peers.append(CheckoutContender(options.against, _same_workload(options)))
    try:
        guard(ours, peers, corpus, rng)
        random = corpus.random_batches(rng, options.batches, num_sentences)
        tokens = round(np.mean([batch.num_tokens for batch in random]))
        words = np.mean([sum(map(len, batch.sources)) for batch in random])
        data = corpus.describe(random)
        bucketed = random
        if any(peer.is_bucketed for peer in peers):
            bucketed = corpus.bucketed_batches(rng, options.batches, tokens, num_sentences)
            data += f" ({mean_padding_ratio(bucketed):.2f} bucketed)"
        ours.costs.clear()
        timings = interleave([ours, *peers], random, bucketed, options.rounds, rng)
        limits = None if ours.device.is_cuda else limit.of_machine(options.threads)
    finally:
        for peer in peers:
            peer.close()
    notes += [
        f"data       {options.batches} batches of {data}; {options.rounds} rounds, "
        f"lengths {options.lengths}, σ {corpus.sigma:g}",
        *environment.kernel_lines(options.device),
    ]
    costs = median_cost(ours.costs[options.batches :])  # less the round that is not timed
    if ours.device.is_cuda:  # no kernel was waited for: the host's share is until all is queued
        queued = statistics.median([c.step_seconds for c in ours.costs[options.batches :]])
        costs["host_share"] = 1e3 * queued / timings["dynbatch"].median_ms
    return Report(
        workload=options.workload,
        batch=num_sentences,
        threads=options.threads,
        versions=environment.versions(peers),
        timings=timings,
        costs=costs,
        peers=tuple(dict.fromkeys([*workload.peers, *[peer.name for peer in peers]])),
        skipped=skipped,
        notes=notes,
        warning=others.warning(),
        device=options.device,
        words=float(words),
        limits=limits,
        precisions={side.name: side.precision for side in peers if side.precision != FULL},
        compile_seconds={peer.name: peer.compile_seconds for peer in peers if peer.compile_seconds},
    )


def _same_workload(options: argparse.Namespace) -> list[str]:
    """The arguments with which another checkout builds the same model."""
    numbers = {"threads": options.threads, "seed": options.seed, "device": options.device}
    numbers |= {name: getattr(options, name) for name in ("hidden", "heads")}
    given = [(f"--{name}", str(value)) for name, value in numbers.items() if value]
    return [options.workload, *[part for pair in given for part in pair]]


def guard(
    ours: DynbatchContender, peers: Sequence[Contender], corpus: Corpus, rng: np.random.Generator
) -> None:
    """All must agree on equal lengths, and those that treat sentences alone, on any lengths."""
    equal = np.full((_GUARD_SENTENCES, 2), _GUARD_LENGTH)
    require_agreement(ours, peers, corpus.fill(rng, equal))
    exact = [peer for peer in peers if peer.is_exact]
    ragged = corpus.random_batches(rng, 1, _GUARD_SENTENCES)[0]
    require_agreement(ours, exact, ragged)
    names = ", ".join(peer.name for peer in peers) or "no peer"
    print(f"agreement of losses and updates checked with {names}", file=sys.stderr)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1 is needed, got {number}")
    return number


def all_of_them(arguments: Sequence[str], as_json: bool) -> int:
    """Every workload of `together.TOGETHER` with these options; the exit status."""
    options = [argument for argument in arguments if argument not in (ALL, "--json")]
    measured = [together.measure(workload, options) for workload in together.TOGETHER]
    ran = [found for found in measured if found is not None]
    show(together.as_text(ran), ran, as_json)
    return 0 if len(ran) == len(measured) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(arguments)
    if options.fastest_mkl:
        return fastest_mkl.run_with_fastest_mkl("benchmarks.run", arguments or sys.argv[1:])
    if options.workload == ALL:
        return all_of_them(sys.argv[1:] if arguments is None else arguments, options.json)
    try:
        report = run(options)
    except Disagreement as error:
        print(f"benchmarks.run: {error}", file=sys.stderr)
        return 1
    except (BackendError, PeerUnavailable) as error:
        print(f"benchmarks.run: {error}", file=sys.stderr)
        return 2
    show(report.as_text(), report.as_json(), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
