"""Launches of `gated_delta_rule.cu`: a block for each head of a sentence, up to `MOST_BLOCKS`."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array, ArraySpec, spec_of
from dynbatch.kernels.attention import gated_delta_rule as reference
from dynbatch.kernels.attention.gated_delta_rule import DeltaGradients, DeltaInputs, DeltaSizes
from dynbatch.kernels.cuda.runtime.queue import launch

THREADS = 256
# Blocks that have scratch at a time: two for each multiprocessor of a large card.
MOST_BLOCKS = 264


def workspace(spec: ArraySpec, sizes: DeltaSizes, keeps: bool) -> int:
    """Three squares of a chunk's tokens, gates, rows of values and a state for each block."""
    return _blocks(sizes) * _size(sizes)


def workspace_backward(spec: ArraySpec, sizes: DeltaSizes) -> int:
    """Four squares, gates, rows of values and keys, and a state's gradient for each block."""
    return _blocks(sizes) * _size_backward(sizes)


def longest_by_chunks(spec: ArraySpec, sizes: DeltaSizes) -> int:
    """Any length, since tokens of a chunk run side by side."""
    return reference.ANY_LENGTH


def gated_delta_rule(
    x: DeltaInputs, out: Array, errors: Array | None, states: Array | None, scratch: Array
) -> None:
    """out_t = S_tᵀ q_t of each sentence and head, in one launch."""
    arrays = (*_arrays(x), out, errors, states, scratch)
    _launch("gated_delta_rule", x, arrays, _size(x.sizes))


def gated_delta_rule_backward(
    x: DeltaInputs, errors: Array | None, states: Array | None, dout: Array,
    wanted: DeltaGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `gated_delta_rule`, in one launch."""
    arrays = (*_arrays(x), errors, states, dout, *wanted, scratch)
    _launch("gated_delta_rule_backward", x, arrays, _size_backward(x.sizes))


def _arrays(x: DeltaInputs) -> tuple[Array | None, ...]:
    """The inputs, and for each sentence how many states the ones before it have."""
    counts = reference.kept_states(spec_of(x.q), x.sizes)
    return (*x, np.cumsum(counts) - counts)


def _launch(name: str, x: DeltaInputs, arrays: tuple[Array | None, ...], size: int) -> None:
    sizes = x.sizes
    widths = sizes.heads, sizes.key_width, sizes.value_width
    args = (*arrays, size, len(sizes.lengths), *widths, _chunk(sizes))
    launch(x.q, name, (_blocks(sizes) if x.q.size else 0,), (THREADS,), args)


def _blocks(sizes: DeltaSizes) -> int:
    return min(MOST_BLOCKS, len(sizes.lengths) * sizes.heads)


def _chunk(sizes: DeltaSizes) -> int:
    return min(reference.CHUNK, max(sizes.lengths, default=0))


def _size(sizes: DeltaSizes) -> int:
    chunk, e = _chunk(sizes), sizes.value_width
    return 3 * chunk**2 + chunk * (e + 1) + sizes.key_width * e


def _size_backward(sizes: DeltaSizes) -> int:
    chunk, d, e = _chunk(sizes), sizes.key_width, sizes.value_width
    return 4 * chunk**2 + chunk * (e + 3 * d + 3) + d * e
