"""Timing contenders side by side: the same batches, interleaved, so that a busy moment hits all."""

from __future__ import annotations

import gc
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.lengths import Batch
from dynbatch.kernels.runtime.precision import FULL

# OpenMP's threads spin for some milliseconds after the last parallel region; the next contender's
# step must not share the cores with them.
SETTLE_SECONDS = 0.02

TOLERANCES = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 2e-2}
"""Relative differences of losses by the precision of products. What an update takes off a loss may
differ by a hundred times as much, but by no more than a half."""


OURS = "dynbatch"


def in_precision(name: str, precision: str) -> str:
    """The name of a side whose products have a precision."""
    return name if precision == FULL else f"{name}-{precision}"


class Contender(ABC):
    """One side of a comparison: a model with its optimizer.

    Attributes:
        name:         what reports call it.
        is_bucketed:  runs on length-bucketed batches instead of the random ones.
        is_exact:     computes the loss of each sentence alone, whatever it is batched with.
        precision:    of its products: "float32", "tf32" or "bfloat16".
        compile_seconds: that it took to compile before its first steps, which are not timed.
    """

    name: str
    precision: str = FULL
    compile_seconds: float = 0.0
    is_bucketed: bool = False
    is_exact: bool = True

    def prepare(self, batch: Batch) -> Any:
        """The batch as this side's data loader would hand it over; not timed."""
        return batch

    @abstractmethod
    def loss(self, prepared: Any) -> float:
        """Loss summed over the tokens of a sentence and averaged over sentences, in nats."""

    @abstractmethod
    def train(self, prepared: Any) -> float:
        """One training step: graph, forward, backward, update. Returns the loss before it."""

    def start(self, prepared: Any) -> Callable[[], float]:
        """Begin a training step; on a GPU nothing is waited for. Returns what reads its loss."""
        loss = self.train(prepared)
        return lambda: loss

    def wait(self) -> None:  # noqa: B027  # the CPU has nothing to wait for
        """Wait until all that was begun is done."""

    def timed_train(self, prepared: Any) -> float:
        """Seconds that `train` took, until the device is done."""
        self.wait()
        start = time.perf_counter()
        self.train(prepared)
        self.wait()
        return time.perf_counter() - start

    def close(self) -> None:  # noqa: B027  # most contenders hold nothing that needs closing
        """Release what outlives the run, such as another process."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender's timed steps."""

    seconds: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)

    @property
    def fastest_ms(self) -> float:
        return 1e3 * min(self.seconds)

    @property
    def slowest_ms(self) -> float:
        return 1e3 * max(self.seconds)


def interleave(
    contenders: Sequence[Contender],
    random_batches: Sequence[Batch],
    bucketed_batches: Sequence[Batch],
    rounds: int,
    rng: np.random.Generator,
    settle_seconds: float = SETTLE_SECONDS,
) -> Mapping[str, Timing]:
    """Time every contender on every batch, `rounds` times, after one round that is not timed.

    A round puts the sentences of each batch in another order, the same for all: padded shapes come
    back, as they do in training, and exact repetitions, which do not, never. Within a round the
    contenders take turns batch by batch, each batch beginning with another one.
    """
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        order = rng.permutation(len(random_batches))
        for position, index in enumerate(order):
            shuffled = random_batches[index].shuffled(rng)
            bucket = bucketed_batches[index].shuffled(rng)
            first = (number + position) % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                prepared = contender.prepare(bucket if contender.is_bucketed else shuffled)
                gc.collect()
                time.sleep(settle_seconds)
                elapsed = contender.timed_train(prepared)
                if number > 0:
                    seconds[contender.name].append(elapsed)
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


class Disagreement(Exception):
    """Two contenders given the same values and the same batch do not compute the same."""


def require_agreement(
    reference: Contender,
    contenders: Sequence[Contender],
    batch: Batch,
    tolerance: float | None = None,
) -> Mapping[str, tuple[float, float]]:
    """Check that all compute one loss, and lower it alike by an update; updates every model.

    The loss shows that the forward passes are one function; what one step of Adam takes off it,
    that the gradients and the update are.

    Args:
        tolerance: relative difference allowed of the losses; that of `TOLERANCES` without.

    Returns:
        the losses of each contender before and after its update, by name.

    Raises:
        Disagreement: a loss, or its fall, differs from the reference's by more than allowed.
    """
    losses: dict[str, tuple[float, float]] = {}
    for contender in (reference, *contenders):
        prepared = contender.prepare(batch)
        before = contender.train(prepared)
        losses[contender.name] = before, contender.loss(prepared)
    before, after = losses[reference.name]
    for contender in (reference, *contenders):
        name, allowed = contender.name, tolerance or TOLERANCES[contender.precision]
        other_before, other_after = losses[name]
        _compare("loss", name, other_before, reference.name, before, allowed)
        falls = other_before - other_after, before - after
        what = "fall of the loss by one update"
        _compare(what, name, falls[0], reference.name, falls[1], min(0.5, 100 * allowed))
    return losses


def _compare(
    what: str, name: str, found: float, reference: str, expected: float, allowed: float
) -> None:
    if not abs(expected - found) <= allowed * abs(expected):  # NaN fails too
        raise Disagreement(
            f"{name} and {reference} do not compute the same: {what} {found:.6g} and "
            f"{expected:.6g}, where a relative difference of {allowed:g} is allowed. "
            "Nothing was timed."
        )
