"""The benchmark models on the card: values and gradients of the CPU, and the same bits twice.

`Graph(check=True)` compares each batch of nodes in float32; loss and gradients of the whole are
compared in float64.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import dynbatch as db
from benchmarks.gpu.cases import THREADS, Case, case_of, parser
from benchmarks.gpu.job import tell
from benchmarks.lengths import Batch
from benchmarks.networks import Array
from dynbatch.errors import CheckError

# Of a gradient's largest element, in float64. Some gradients, such as the query's of additive
# attention, are what is left of numbers that almost cancel: float32 would leave nothing to compare.
TOLERANCE = 1e-7
STEPS = 3


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """The largest differences from the CPU, then the digests of two runs and what a check finds.

    None stands for what is not known yet.
    """
    db.set_num_threads(THREADS)
    batch = case.data()[0]
    (loss, gradients), (expected_loss, expected) = (
        case.ours(device).gradients(batch) for device in ("cuda", "cpu")
    )
    differences = relative_differences(gradients, expected)
    differences["loss"] = abs(loss - expected_loss) / abs(expected_loss)
    worst = max(differences, key=lambda name: _orderly(differences[name]))
    state = {
        "case": case.name,
        "loss": loss,
        "loss_on_cpu": expected_loss,
        "worst": worst,
        "worst_difference": differences[worst],
        "tolerance": TOLERANCE,
        "agrees": all(value <= TOLERANCE for value in differences.values()),
        "check": None,
        "differences": differences,
        "repeats": None,
    }
    yield state
    digests = [digest_of_run(case) for _ in range(2)]
    state |= {"digests": digests, "repeats": digests[0] == digests[1]}
    yield state
    check = _check(case, batch)
    yield state | {"check": check, "agrees": state["agrees"] and not check}


def _check(case: Case, batch: Batch) -> str:
    """The findings of `Graph(check=True)`, or nothing."""
    try:
        case.ours().check(batch)
    except CheckError as error:
        return str(error)
    return ""


def relative_differences(
    found: Mapping[str, Array], expected: Mapping[str, Array]
) -> dict[str, float]:
    """max |found - expected| / max |expected| by name; infinite for one that is missing."""
    missing = dict.fromkeys(found.keys() ^ expected.keys(), float("inf"))
    both = found.keys() & expected.keys()
    return missing | {
        name: float(
            np.abs(found[name] - expected[name]).max()
            / max(np.abs(expected[name]).max(), np.finfo(np.float64).tiny)
        )
        for name in sorted(both)
    }


def digest_of_run(case: Case) -> str:
    """SHA-256 of the losses of a few steps and of all parameters after them."""
    side = case.ours()
    batches = case.data()
    losses = [side.train(batches[step % len(batches)]) for step in range(STEPS)]
    digest = hashlib.sha256(np.array(losses).tobytes())
    for name, value in sorted(side.values().items()):
        digest.update(name.encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _orderly(difference: float) -> float:
    """NaN as the worst of all."""
    return float("inf") if np.isnan(difference) else difference


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON again and again; status 1 where a number or a bit differs."""
    found = tell(measure(case_of(parser("correct", __doc__).parse_args(arguments))))
    return 0 if found["agrees"] and found["repeats"] else 1


if __name__ == "__main__":
    sys.exit(main())
