"""`check_device`: a mini-batch on a GPU against the same on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.testing.batching import Case, compare, run
from dynbatch.testing.precision import Parameters, in_float64
from dynbatch.testing.probe import Build


def check_device(
    build: Build,
    examples: Sequence[Any],
    *,
    parameters: Parameters = (),
    device: str = "cuda",
    seed: int = 0,
    rtol: float = 1e-9,
    atol: float = 1e-10,
) -> None:
    """Check that a function of one sentence gives on a GPU what it gives on the CPU.

    Values, gradients of all inputs and gradients of all parameters of a mini-batch, in float64, on
    memory full of NaN; with values read before backward, and with forward and backward in one run.

    Args:
        build:      (graph, *arguments) -> a node or several: the function of one sentence.
        examples:   as in `check_batching`.
        parameters: parameters, or a module, that `build` uses. They come back to where they were.

    Raises:
        AssertionError: two numbers differ by more than atol + rtol · (largest of the array); names
            the sentence, the array, the element and both numbers.
        BackendError:   the device is not available.
    """
    sentences = [example if isinstance(example, tuple) else (example,) for example in examples]
    with in_float64(parameters) as distinct:
        _check(Case(build, sentences, distinct, seed, rtol, atol), device)


def _check(case: Case, device: str, *, twice: bool = True) -> None:
    """Run and compare the mini-batch twice, or only with values read before backward."""
    everyone = range(len(case.examples))
    for reads in (False, True) if twice else (True,):
        expected = run(case, everyone, "by_bound", reads)
        for parameter in case.parameters:
            parameter.to(device)
        try:
            outcome = run(case, everyone, "by_bound", reads, device)
        finally:
            for parameter in case.parameters:
                parameter.grad = None
                parameter.to("cpu")
        compare(case, f"on {device}", outcome, [expected])
