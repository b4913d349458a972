import numpy as np
import pytest

from dynbatch.kernels import positions as kernels
from dynbatch.kernels.positions import Angles

pytestmark = pytest.mark.usefixtures("block")

OFFSETS, STARTS = np.array([0, 2, 2, 7]), np.array([4, 9, 0])
POSITIONS = [4, 5, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_each_pair_is_turned_by_its_angle(is_interleaved):
    x = np.random.default_rng(0).standard_normal((7, 12))
    angles = Angles(4, 100.0)  # of heads of 6: frequencies 1 and 1 / 10
    out = np.empty_like(x)
    kernels.rotary(x, OFFSETS, STARTS, angles, 2, is_interleaved, False, out)
    pairs = [(0, 1), (2, 3)] if is_interleaved else [(0, 2), (1, 3)]
    for n, position in enumerate(POSITIONS):
        for head in (0, 6):
            for (a, b), frequency in zip(pairs, (1.0, 0.1), strict=True):
                turned = complex(*x[n, [head + a, head + b]]) * np.exp(1j * position * frequency)
                assert complex(*out[n, [head + a, head + b]]) == pytest.approx(turned)
            assert np.array_equal(out[n, head + 4 : head + 6], x[n, head + 4 : head + 6])


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_the_inverse_turns_back_in_place(is_interleaved):
    x = np.random.default_rng(0).standard_normal((7, 12))
    out = x.copy()
    for is_inverse in (False, True):
        before = out.copy()
        arguments = OFFSETS, STARTS, Angles(4, 100.0), 2, is_interleaved, is_inverse
        kernels.rotary(out, *arguments, out)
        apart = np.empty_like(x)
        kernels.rotary(before, *arguments, apart)
        assert out.tobytes() == apart.tobytes()
    np.testing.assert_allclose(out, x, rtol=1e-13)


@pytest.mark.parametrize("width", [1, 5, 8])
def test_sinusoids_are_sines_and_cosines(width):
    angles = np.outer(POSITIONS, Angles(width, 100.0).frequencies())
    sines, cosines = np.sin(angles), np.cos(angles)[:, : width // 2]
    out = np.empty((7, width))
    kernels.sinusoidal(OFFSETS, STARTS, Angles(width, 100.0), False, out)
    assert np.array_equal(out, np.hstack((sines, cosines)))
    kernels.sinusoidal(OFFSETS, STARTS, Angles(width, 100.0), True, out)
    assert np.array_equal(out[:, 0::2], sines) and np.array_equal(out[:, 1::2], cosines)


def test_no_rows():
    nothing = np.empty((0, 4))
    for offsets in (np.array([0]), np.array([0, 0, 0])):
        starts = np.zeros(len(offsets) - 1, np.int64)
        kernels.rotary(nothing, offsets, starts, Angles(2, 10.0), 2, True, False, nothing)


def test_angles_are_exact_at_late_positions():
    table = Angles(2, 10000.0).table(100_001, np.dtype("float32"))
    assert table[100_000, :, 0] == pytest.approx([np.cos(100_000), np.sin(100_000)], abs=6e-8)


def test_a_table_serves_all_positions_up_to_a_power_of_two():
    angles, dtype = Angles(4, 7.0), np.dtype("float64")
    assert angles.table(0, dtype) is angles.table(64, dtype)
    assert angles.table(65, dtype) is angles.table(128, dtype)
    assert len(angles.table(65, dtype)) == 128
    assert angles.table(1, np.dtype("float32")).dtype == np.float32
    assert Angles(4, 8.0).table(1, dtype) is not angles.table(1, dtype)
