"""`invariant_products`: equal bits alone and in company, tested and priced without C kernels."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from dynbatch.arguments import refused
from dynbatch.backend import Array, Device
from dynbatch.errors import BackendError
from dynbatch.kernels.backends import reason
from dynbatch.kernels.blas import fixed_rows, is_batch_invariant

# Prompts of the test, whose rows have every place in a tile, and new tokens of each.
LENGTHS = (1, 2, 5, 9)
TOKENS = 4

Logits = dict[tuple[int, bytes], bytes]


class ProbedEngine(Protocol):
    """`Engine`, as far as a test needs it."""

    def add(self, prompt: Any, *, process: Any, **settings: Any) -> int: ...
    def step(self) -> Sequence[Any]: ...
    @property
    def is_idle(self) -> bool: ...


def invariant_products(
    engine: Callable[..., ProbedEngine], vocab: int, positions: int | None, device: Device
) -> Callable[[], AbstractContextManager[None]]:
    """Make the context in which a model's products give equal bits alone and in company.

    Without C kernels the model is tested, and the price is printed.

    Args:
        engine:    makes an engine of the model, by its options.
        vocab:     number of its logits.
        positions: most tokens of a sentence; None for any number.

    Raises:
        ArgumentError: on a GPU, or with `set_batch_invariant(False)`.
        BackendError:  the test found other bits.
        Exception:     the model fails in the test.
    """
    if device.is_cuda or not is_batch_invariant():
        where = 'device="cuda"' if device.is_cuda else "set_batch_invariant(False)"
        raise refused(
            "Engine", f"batch_invariant=True with {where}",
            "a BLAS chooses how to add by the size of the whole product",
            "leave batch_invariant out, or generate on the CPU as dynbatch does by itself",
        )  # fmt: skip
    if not reason():
        return nullcontext
    lengths = [n if positions is None else max(1, min(n, positions - TOKENS)) for n in LENGTHS]
    most = min(2, vocab)  # for a source may have fewer words than there are logits
    prompts = {
        k: np.random.default_rng(k).integers(0, most, length) for k, length in enumerate(lengths)
    }
    with fixed_rows():
        alone: Logits = {}
        for k, prompt in prompts.items():
            alone.update(_logits(engine(step_tokens=4), {k: prompt})[0])
        together, priced = _logits(engine(), prompts)
    if alone != together:
        raise BackendError.at_caller(
            "Engine: batch_invariant=True does not hold: a sentence's logits alone and in company"
            " differ in a test of this model.\n"
            "  rule: NumPy's BLAS treats all rows of a small product alike, and the model's own"
            " operators each sentence by itself\n"
            f"  fix:  run C kernels, which need no BLAS ({reason()})"
        )
    _, plain = _logits(engine(), prompts)
    print(
        f"batch_invariant: {priced / max(plain, 1e-9):.1f} x the time of a step, measured on this"
        " machine",
        file=sys.stderr,
    )
    return fixed_rows


def _logits(engine: ProbedEngine, prompts: Mapping[int, Array]) -> tuple[Logits, float]:
    """All logits of some prompts, by number and tokens before; and the shortest step in seconds.

    Raises:
        Exception: what made a request fail.
    """
    logits_of: Logits = {}
    errors: list[Exception] = []
    for number, prompt in prompts.items():

        def note(logits: Array, tokens: Array, number: int = number) -> Array:
            logits_of[number, tokens.tobytes()] = logits.tobytes()
            return logits

        engine.add(prompt, process=note, max_new_tokens=TOKENS, eos_token_id=())
    times = []
    while not engine.is_idle:
        started = time.process_time()
        events = engine.step()
        times.append(time.process_time() - started)
        errors += [event.error for event in events if event.error is not None]
    if errors:
        raise errors[0]
    return logits_of, min(times)
