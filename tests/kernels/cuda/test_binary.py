import numpy as np
import pytest

from dynbatch.kernels import binary
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

BINARY = [*binary.FUNCTIONS.values()]
COMPARISONS = (binary.greater, binary.greater_equal, binary.equal, binary.not_equal)
LENGTHS = (0, 1, 31, 32, 33, 1025)

each_kernel = pytest.mark.parametrize("kernel", BINARY, ids=lambda kernel: kernel.name)


def normal(dtype, size, seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(dtype)


def special(dtype):
    """Every number beside every other: equal ones, zeros, and what is not finite."""
    a, b = np.meshgrid([0, 1, -2, 3, np.inf, np.nan], [0, 0.5, -3, 3, np.inf, np.nan])
    return a.reshape(-1).astype(dtype), b.reshape(-1).astype(dtype)


@each_kernel
def test_two_values(cupy, dtype, kernel):
    a, b = special(dtype)
    dy, out = normal(dtype, a.size), np.zeros_like(a)
    read_a, read_b = [Values(x) if kernel.reads[k] else None for k, x in enumerate((a, b))]
    sides = () if kernel in COMPARISONS else (0, 1)
    with launches(1 + len(sides)):
        assert_versions_agree(binary.combine, kernel, Values(a), Values(b), Values(out))
        for side in sides:
            assert_versions_agree(
                binary.combine_backward, kernel, Values(dy), read_a, read_b, Values(out), side
            )


@each_kernel
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_and_a_number_for_each_segment(cupy, dtype, kernel, side):
    x, _ = special(dtype)
    dy, out = normal(dtype, x.size), np.zeros_like(x)
    numbers = np.array([2.0, -3.0, 0.0, np.nan], dtype)
    offsets = np.array([0, 7, 7, 30, x.size])
    differentiable = kernel not in COMPARISONS
    with launches(1 + differentiable):
        given = (numbers, offsets, Values(out), side)
        assert_versions_agree(binary.combine_number, kernel, Values(x), *given)
        if differentiable:
            assert_versions_agree(
                binary.combine_number_backward, kernel, Values(dy), Values(x), *given
            )


def test_a_choice_by_mask(cupy, dtype):
    a, b = special(dtype)
    mask = (np.arange(a.size) % 3 == 0).astype(dtype)
    dy, out = normal(dtype, a.size), np.zeros_like(a)
    with launches(3):
        assert_versions_agree(binary.where, Values(mask), Values(a), Values(b), Values(out))
        for side in (0, 1):
            assert_versions_agree(
                binary.where_backward, Values(dy), Values(mask), Values(out), side
            )


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(cupy, dtype, length):
    x, out = normal(dtype, length), np.zeros(length, dtype)
    numbers, offsets = np.array([0.5, 2.0], dtype), np.array([0, length // 3, length])
    with launches(2 * bool(length)):
        assert_versions_agree(binary.combine, binary.add, Values(x), Values(x), Values(out))
        assert_versions_agree(
            binary.combine_number, binary.divide, Values(x), numbers, offsets, Values(out), 0
        )
