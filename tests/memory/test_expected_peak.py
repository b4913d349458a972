import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynbatch.memory.expected_peak import DEVIATIONS, EARLY, LEARNED, Peaks


def seen(values, growth):
    peaks = Peaks(growth)
    for value in values:
        peaks.see(value)
        peaks.end_step(value)
    return peaks


@given(st.lists(st.integers(1, 10**9), min_size=LEARNED, max_size=LEARNED + 9), st.floats(0, 1))
def test_what_is_expected_lies_so_many_deviations_above_the_mean_within_bounds(values, growth):
    deviation = np.std(values, ddof=1)
    unbounded = np.mean(values) + DEVIATIONS * deviation
    expected = np.clip(unbounded, max(values), (1 + growth) * max(values))
    np.testing.assert_allclose(seen(values, growth).expected(), expected, rtol=1e-6, atol=2)


def test_steps_that_are_all_the_same_need_no_more():
    assert seen([1000] * LEARNED, growth=0.5).expected() == 1000


def test_until_the_spread_is_known_a_little_more_than_the_most_is_expected():
    assert seen([1000] * (LEARNED - 1), growth=0.5).expected() == int(1000 * (1 + EARLY))
    assert seen([1000], growth=0.0).expected() == 1000
    peaks = Peaks(0.5)
    peaks.see(800)
    assert peaks.expected() == 900
    peaks.forget()
    assert peaks.expected() == 0


def test_what_48_steps_tell_is_enough_for_a_thousand():
    rng = np.random.default_rng(0)
    lengths = np.clip(np.rint(rng.lognormal(2.9, 0.59, (200, 1000, 64))), 3, 80).sum(axis=2)
    expected = [seen(steps[:LEARNED].tolist(), 1 / 4).expected() for steps in lengths]
    assert (lengths.max(axis=1) <= expected).all()
    assert np.mean(expected / lengths.max(axis=1)) < 1.16
