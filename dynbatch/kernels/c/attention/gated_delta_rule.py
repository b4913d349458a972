"""`kernels.attention.gated_delta_rule` in C: threads share the heads of the sentences.

They are dealt out from the longest sentence on. A head's numbers depend on its sentence alone, and
so does its form: by chunks up to `longest_by_chunks`, beyond it token by token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array, ArraySpec, spec_of
from dynbatch.kernels.attention import gated_delta_rule as reference
from dynbatch.kernels.attention.gated_delta_rule import DeltaGradients, DeltaInputs, DeltaSizes
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import share

SIDE, PAIRS = 32, 64**2  # as in tiles.h and gated_delta_rule.c
TILE, RESTART = 64, 16  # as in delta_steps.h: most columns of a tile, and tokens of a running sum
# Numbers of states, one for each token, whose updates take a thread about 100 µs.
WORTH_A_THREAD = 1 << 18
# Numbers of a token that backward reads of an array at once: a chunk of them, of all arrays, stays
# in the second-level cache until each head of the group has had its part.
GROUP_WIDTH = 256

# With b: a state of more numbers is worth its chunks at any length; below, tokens one by one are as
# fast as chunks in a sentence with a token for each NUMBERS_PER_TOKEN of its state's numbers.
MOST_OF_STATE, NUMBERS_PER_TOKEN = 96**2, 40

_library = Library("attention/gated_delta_rule.c")


def workspace(spec: ArraySpec, sizes: DeltaSizes, keeps: bool) -> Any:
    if _library.functions(spec.dtype) is None:
        return NotImplemented
    return _num_shards(sizes) * _room(spec, sizes)


def workspace_backward(spec: ArraySpec, sizes: DeltaSizes) -> Any:
    if _library.functions(spec.dtype) is None:
        return NotImplemented
    return _num_shards(sizes) * _room_backward(spec, sizes)


def longest_by_chunks(spec: ArraySpec, sizes: DeltaSizes) -> Any:
    """Any length without b, or with a state that leaves the first-level cache; else break-even."""
    size = sizes.key_width * sizes.value_width
    if _library.functions(spec.dtype) is None or not sizes.has_b or size > MOST_OF_STATE:
        return NotImplemented
    return size // NUMBERS_PER_TOKEN


def gated_delta_rule(
    x: DeltaInputs, out: Array, errors: Array | None, states: Array | None, scratch: Array
) -> Any:
    functions = _library.functions(out.dtype)
    arrays = (*x[:5], out, errors, states)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    _share(functions.gated_delta_rule, x, arrays, scratch, _room(spec_of(out), x.sizes), group=1)
    return None


def gated_delta_rule_backward(
    x: DeltaInputs, errors: Array | None, states: Array | None, dout: Array,
    wanted: DeltaGradients, scratch: Array,
) -> Any:  # fmt: skip
    functions = _library.functions(dout.dtype)
    arrays = (*x[:5], None, errors, states, dout, *wanted)
    if functions is None or not is_packed(*arrays):
        return NotImplemented
    room = _room_backward(spec_of(dout), x.sizes)
    group = _group(x.sizes)
    _share(functions.gated_delta_rule_backward, x, arrays, scratch, room, group)
    return None


def _share(
    function: Any, x: DeltaInputs, arrays: tuple[Array | None, ...], scratch: Array, room: int,
    group: int,
) -> None:  # fmt: skip
    sizes, spec = x.sizes, spec_of(scratch)
    sentences = np.zeros((len(sizes.lengths), 3), np.int64)
    sentences[:, 0], sentences[:, 1] = x.offsets[:-1], sizes.lengths
    counts = reference.kept_states(spec, sizes)
    sentences[:, 2] = np.cumsum(counts) - counts
    sentences = sentences[np.argsort(-sentences[:, 1], kind="stable")]
    places = [address(each) or 0 for each in (*arrays, *[None] * (14 - len(arrays)), sentences)]
    forms = reference.CHUNK, reference.longest_by_chunks(spec, sizes)
    widths = sizes.heads, sizes.key_width, sizes.value_width, *forms, group
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


def _longest(spec: ArraySpec, sizes: DeltaSizes) -> tuple[int, int]:
    """Tokens of the longest chunk, and of the longest sentence that goes token by token."""
    longest, most = reference.longest_by_chunks(spec, sizes), max(sizes.lengths, default=0)
    chunked = max([n for n in sizes.lengths if n <= longest], default=0)
    return min(reference.CHUNK, chunked), most if most > longest else 0


def _room(spec: ArraySpec, sizes: DeltaSizes) -> int:
    """Elements of what either form of forward takes of a thread's room."""
    d, e, (n, most) = sizes.key_width, sizes.value_width, _longest(spec, sizes)
    chunk = PAIRS + d * e + _whole_blocks(n) * d + 2 * sizes.has_b * n * e
    return PAIRS + max(chunk, most and 2 * most + (d + 4) * TILE)


def _room_backward(spec: ArraySpec, sizes: DeltaSizes) -> int:
    """Elements of what either form of backward takes of a thread's room."""
    d, e, (n, most) = sizes.key_width, sizes.value_width, _longest(spec, sizes)
    turned = _whole_blocks(n) * max(d, e) + _whole_blocks(d) * e
    chunk = 4 * PAIRS + _group(sizes) * d * e + turned + 3 * n * d + 2 * n * e
    states = (max(d, e) + 4) * TILE + most // RESTART * (_whole_blocks(d) * e + 1)
    steps = most and (8 + e) * most + 3 * _whole_blocks(max(d, e)) + 2 + TILE + states
    return PAIRS + max(chunk, steps)


def _whole_blocks(count: int) -> int:
    return -(-count // SIDE) * SIDE
