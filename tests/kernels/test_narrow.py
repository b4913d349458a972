"""Values rounded to bfloat16, kept as 16 bits and widened again: each bit, in NumPy."""

import numpy as np
import pytest

from dynbatch.kernels import narrow as kernels
from dynbatch.kernels.c.runtime.library import reference_only

LOW_HALVES = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


def every_upper_half():
    """Numbers with all upper halves, and lower ones about the tie."""
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    return np.concatenate([upper | np.uint32(low) for low in LOW_HALVES]).view(np.float32)


def random_bits(size):
    bits = np.random.default_rng(size).integers(0, 1 << 32, size, np.uint32)
    return bits.view(np.float32)


def nearest(x):
    """The rule as a choice between the two neighbours in bfloat16, by exact distances."""
    bits = x.view(np.uint32)
    below = bits & np.uint32(0xFFFF0000)
    low = (bits & np.uint32(0xFFFF)).astype(int)
    is_odd = (below >> np.uint32(16)) & np.uint32(1) != 0
    goes_up = (low > 0x8000) | (low == 0x8000) & is_odd
    rounded = np.where(goes_up, below + np.uint32(0x10000), below)
    return np.where(np.isnan(x), below | np.uint32(0x400000), rounded).view(np.float32)


def checked(run, x):
    """Round, narrow and widen x; each bit is the rule's."""
    expected = nearest(x)
    rounded, narrowed = x.copy(), x.copy()
    # A part of a wider array, whose neighbours stay, as blocks lie in an arena.
    halves, wide = np.full(x.size + 2, 7, np.uint16), np.full(x.size + 2, 7, np.float32)
    run(kernels.round_values, rounded)
    run(kernels.narrow, narrowed, halves[1:-1])
    run(kernels.widen, halves[1:-1], wide[1:-1])
    for each in (rounded, narrowed, wide[1:-1]):
        assert each.tobytes() == expected.tobytes()
    assert [*halves[[0, -1]], *wide[[0, -1]]] == [7] * 4
    np.testing.assert_array_equal(halves[1:-1], expected.view(np.uint32) >> 16)
    return expected


def check_every_number(run):
    x = every_upper_half()
    expected = checked(run, x)
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(x))
    assert checked(run, expected).tobytes() == expected.tobytes()
    largest, least = np.finfo(np.float32).max, np.float32(2**-133)
    ends = np.array([largest, -largest, -0.0, least, least * 0.5, -np.inf], np.float32)
    ends = checked(run, ends)
    assert ends.tolist() == [np.inf, -np.inf, 0, least, 0, -np.inf] and np.signbit(ends[2])


def by_numpy(kernel, *arrays):
    with reference_only():
        kernel(*arrays)


def test_every_number_goes_to_the_nearest():
    check_every_number(by_numpy)


@pytest.mark.parametrize("size", [0, 1, 1001])
def test_sizes(size):
    checked(by_numpy, random_bits(size))
