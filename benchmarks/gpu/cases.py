"""The models and sizes that `make gpu-check` measures, and both sides of one of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.lengths import Batch, Corpus
from benchmarks.measure import OURS, Contender, in_precision
from benchmarks.networks import initial_values
from benchmarks.peers import build_peers
from benchmarks.workloads import WORKLOADS, Workload
from benchmarks.workloads.contender import DynbatchContender
from dynbatch import backend
from dynbatch.kernels.runtime.precision import FULL, LEAST_CAPABILITY, MANTISSA_BITS

ROUNDED = tuple(name for name in MANTISSA_BITS if name != FULL)  # precisions of tensor cores
TRANSFORMERS = ("pytorch-padded", "pytorch-bucketed", "pytorch-nested", "pytorch-varlen")
PEERS = {
    "tagger": ("pytorch-padded", "pytorch-packed", "pytorch-bucketed"),
    "seq2seq": ("pytorch-padded", "pytorch-packed", "pytorch-select", "pytorch-bucketed"),
    "tree": ("pytorch-levels",),
    "transformer": TRANSFORMERS,
    "bert_layer": TRANSFORMERS,
}
# Of them, those that are timed with rounded factors too: with the least padding.
ROUNDED_PEERS = {
    "tagger": ("pytorch-packed", "pytorch-bucketed"),
    "seq2seq": ("pytorch-select", "pytorch-bucketed"),
    "tree": ("pytorch-levels",),
    "transformer": ("pytorch-padded", "pytorch-bucketed"),
    "bert_layer": ("pytorch-padded", "pytorch-bucketed"),
}
SEED = 1
THREADS = 4  # of the host


@dataclass(frozen=True)
class Case:
    """One workload at one size.

    Args:
        batch:   sentences.
        hidden:  width of the LSTMs, or of a Transformer.
        batches: different mini-batches, random ones.
        rounds:  times that each is measured.
    """

    workload: str
    batch: int
    hidden: int
    batches: int = 6
    rounds: int = 4

    @property
    def name(self) -> str:
        return f"{self.workload} B={self.batch} H={self.hidden}"

    @property
    def model(self) -> Workload:
        return WORKLOADS[self.workload].with_hidden(self.hidden)

    def corpus(self) -> Corpus:
        model = self.model
        return model.corpus(model.sigma)

    def data(self) -> list[Batch]:
        """The mini-batches: the same in every process."""
        rng = np.random.default_rng(SEED)
        return self.corpus().random_batches(rng, self.batches, self.batch)

    def bucketed(self) -> list[Batch]:
        """Mini-batches of like lengths, as many and with as many tokens."""
        tokens = round(np.mean([batch.num_tokens for batch in self.data()]))
        rng = np.random.default_rng(SEED + 1)
        return self.corpus().bucketed_batches(rng, self.batches, tokens, self.batch)

    def batches_of(self, side: Contender) -> list[Batch]:
        """The mini-batches that a side runs on."""
        return self.bucketed() if side.is_bucketed else self.data()

    def ours(self, device: str = "cuda", precision: str = FULL) -> DynbatchContender:
        """dynbatch's side, with the values that every side of every process has."""
        model = self.model
        side = model.ours(model.sizes, self._values(), device)
        side.name, side.precision = in_precision(OURS, precision), precision
        return side

    def peers(
        self, names: Sequence[str], device: str = "cuda", precision: str = FULL
    ) -> tuple[list[Contender], dict[str, str]]:
        """PyTorch's forms, and why others do not run."""
        sizes, values = self.model.sizes, self._values()
        built, skipped = build_peers(names, sizes, values, THREADS, device=device)
        for side in built if precision != FULL else ():
            side.name, side.precision = in_precision(side.name, precision), precision
        return built, {in_precision(name, precision): why for name, why in skipped.items()}

    def arguments(self) -> list[str]:
        """The options that `parser` turns into this case."""
        return [word for key, value in asdict(self).items() for word in (f"--{key}", str(value))]

    def _values(self) -> Any:
        return initial_values(self.model.sizes, np.random.default_rng(SEED))


def precisions() -> tuple[str, ...]:
    """The precisions of products that the card has."""
    capability = int(backend.cupy().cuda.Device().compute_capability)
    return (FULL, *(ROUNDED if capability >= LEAST_CAPABILITY else ()))


# What tells most comes first, should a machine be lost.
CASES = (
    Case("tagger", 64, 256),
    Case("seq2seq", 64, 256),
    Case("tree", 64, 150),
    Case("transformer", 64, 256),
    Case("bert_layer", 32, 768),
    Case("seq2seq", 128, 512),
    Case("tagger", 128, 512),
)


def parser(module: str, text: str | None) -> argparse.ArgumentParser:
    """The command line of a part that works on one case."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.gpu.{module}", description=text)
    made.add_argument("--workload", choices=sorted(PEERS), default="seq2seq")
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--hidden", type=int, default=256)
    made.add_argument("--batches", type=int, default=Case.batches)
    made.add_argument("--rounds", type=int, default=Case.rounds)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="of PyTorch")
    return made


def case_of(options: argparse.Namespace) -> Case:
    """The case that a command line names."""
    return Case(options.workload, options.batch, options.hidden, options.batches, options.rounds)
