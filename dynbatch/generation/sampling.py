"""The numbers that decide on tokens, from a counter, and what is cut off before."""

from __future__ import annotations

import zlib

import numpy as np

from dynbatch.backend import Array
from dynbatch.generation.config import GenerationConfig
from dynbatch.kernels.dropout import GOLDEN_RATIO, hash32


def cut_of(config: GenerationConfig) -> tuple[float, float, float, float] | None:
    """A row of `kernels.choosing.draws.cut_rows`; None where nothing is drawn or cut."""
    cut = config.temperature, float(config.top_k), config.top_p, config.min_p
    return cut if config.do_sample and cut != (1, 0, 1, 0) else None


def streams(seed: int, count: int) -> list[int]:
    """32-bit numbers of the random streams of a request's results, from its seed."""
    return [zlib.crc32(f"{seed},{number}".encode()) for number in range(count)]


def uniforms(streams: Array, steps: Array) -> Array:
    """(N,) float64 in [0, 1) for a step of each stream, from a counter: no state is kept.

    Args:
        streams: (N,) numbers of `streams`.
        steps:   (N,) tokens that each result has so far.
    """
    numbers = hash32(steps.astype(np.uint32))
    high = hash32(numbers ^ streams.astype(np.uint32))
    low = hash32(hash32(numbers ^ np.uint32(GOLDEN_RATIO)) ^ streams.astype(np.uint32))
    bits = (high.astype(np.uint64) << np.uint64(21)) | (low >> np.uint32(11)).astype(np.uint64)
    drawn: Array = bits.astype(np.float64) / float(1 << 53)
    return drawn
