"""`kernels.attention.gated_delta_rule` in C: threads share the heads of the sentences.

They are dealt out from the longest sentence on. A head's numbers depend on its sentence alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.kernels.attention import gated_delta_rule as reference
from dynbatch.kernels.attention.gated_delta_rule import DeltaGradients, DeltaInputs, DeltaSizes
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import share

SIDE, PAIRS = 32, 64**2  # as in tiles.h and gated_delta_rule.c
# Numbers of states, one for each token, whose updates take a thread about 100 µs.
WORTH_A_THREAD = 1 << 18
# Numbers of a token that backward reads of an array at once: a chunk of them, of all arrays, stays
# in the second-level cache until each head of the group has had its part.
GROUP_WIDTH = 256

_library = Library("attention/gated_delta_rule.c")


def workspace(spec: ArraySpec, sizes: DeltaSizes, keeps: bool) -> Any:
    if _library.functions(spec.dtype) is None:
        return NotImplemented
    return _num_shards(sizes) * _room(sizes)


def workspace_backward(spec: ArraySpec, sizes: DeltaSizes) -> Any:
    if _library.functions(spec.dtype) is None:
        return NotImplemented
    return _num_shards(sizes) * _room_backward(sizes)


def gated_delta_rule(
    x: DeltaInputs, out: Array, errors: Array | None, states: Array | None, scratch: Array
) -> Any:
    functions = _library.functions(out.dtype)
    arrays = (*x[:5], out, errors, states)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    _share(functions.gated_delta_rule, x, arrays, scratch, _room(x.sizes), group=1)
    return None


def gated_delta_rule_backward(
    x: DeltaInputs, errors: Array | None, states: Array | None, dout: Array,
    wanted: DeltaGradients, scratch: Array,
) -> Any:  # fmt: skip
    functions = _library.functions(dout.dtype)
    arrays = (*x[:5], None, errors, states, dout, *wanted)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    room = _room_backward(x.sizes)
    group = _group(x.sizes)
    _share(functions.gated_delta_rule_backward, x, arrays, scratch, room, group)
    return None


def _share(
    function: Any, x: DeltaInputs, arrays: tuple[Array | None, ...], scratch: Array, room: int,
    group: int,
) -> None:  # fmt: skip
    sizes = x.sizes
    sentences = np.zeros((len(sizes.lengths), 3), np.int64)
    sentences[:, 0], sentences[:, 1] = x.offsets[:-1], sizes.lengths
    counts = np.maximum(sentences[:, 1] - 1, 0) // reference.CHUNK
    sentences[:, 2] = np.cumsum(counts) - counts
    sentences = sentences[np.argsort(-sentences[:, 1], kind="stable")]
    places = [address(each) or 0 for each in (*arrays, *[None] * (14 - len(arrays)), sentences)]
    widths = sizes.heads, sizes.key_width, sizes.value_width, reference.CHUNK, group
    table, count = np.array([*places, *widths], np.int64), len(sentences) * -(-sizes.heads // group)
    shards = _num_shards(sizes)
    parts = [
        (first, shards, count, address(table), address(scratch[first * room :]))
        for first in range(shards)
    ]
    share(function, parts, [table, sentences])


def _num_shards(sizes: DeltaSizes) -> int:
    numbers = sum(sizes.lengths) * sizes.heads * sizes.key_width * sizes.value_width
    items = len(sizes.lengths) * sizes.heads
    return max(1, min(parallel.num_threads(), items, numbers // WORTH_A_THREAD))


def _group(sizes: DeltaSizes) -> int:
    """Heads that a task of backward has: one if that is needed to keep the threads busy."""
    shards = _num_shards(sizes)
    if shards > 1 and len(sizes.lengths) < 4 * shards:
        return 1
    return min(sizes.heads, max(1, GROUP_WIDTH // max(sizes.key_width, sizes.value_width, 1)))


def _tokens(sizes: DeltaSizes) -> int:
    """Tokens of the longest chunk."""
    return min(reference.CHUNK, max(sizes.lengths, default=0))


def _room(sizes: DeltaSizes) -> int:
    """Elements of what `forward` takes of a thread's room, and of a state."""
    n, d, e = _tokens(sizes), sizes.key_width, sizes.value_width
    return 2 * PAIRS + d * e + _whole_blocks(n) * d + 2 * sizes.has_b * n * e


def _room_backward(sizes: DeltaSizes) -> int:
    """Elements of what `backward` takes of a thread's room, and of its states' gradients."""
    n, d, e = _tokens(sizes), sizes.key_width, sizes.value_width
    turned = _whole_blocks(n) * max(d, e) + _whole_blocks(d) * e
    return 5 * PAIRS + _group(sizes) * d * e + turned + 3 * n * d + 2 * n * e


def _whole_blocks(count: int) -> int:
    return -(-count // SIDE) * SIDE
