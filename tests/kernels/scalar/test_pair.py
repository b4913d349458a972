"""The distance of functions of two values, and of derivatives, from the truth, in last places."""

import numpy as np
import pytest

from dynbatch.kernels import binary
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.losses import elementwise as losses
from tests.kernels.scalar.exact import errors, is_number, mp, size_of, terms_of, value_of
from tests.marks import exhaustive

PAIRS = [*binary.FUNCTIONS.values(), *losses.LOSSES.values()]

# In units of the last place. The exponent b - 1 is rounded, which is worth |log a| as many in a^b.
ACCURACY = {"raise_to": 40.0}
# From here on exp overflows, or cancels what it is multiplied with.
LARGEST = {"log_divergence": 80.0}
ONES = {"dy": mp.mpf(1)}

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


every_number = pytest.mark.parametrize("step", [2, exhaustive(1)])


def points(dtype, step):
    """Each number beside each other: ±0, ±1, equal ones, from subnormal ones to large ones."""
    finite = np.finfo(dtype)
    sizes = [0, finite.tiny, finite.smallest_subnormal, 1e-3, 0.3, 0.5, 1, 3, 2.1, 17, 88, 1e3, 1e6]
    sizes = sizes[::step]
    each = np.array([*sizes, *[-size for size in sizes]], dtype)
    first, second = np.meshgrid(each, each)
    return first.reshape(-1), second.reshape(-1)


def values(pair, a, b):
    return [dict(zip(pair.names, map(mp.mpf, xs), strict=True)) for xs in zip(a, b, strict=True)]


@pytest.fixture(params=["C", "NumPy"])
def kernels(request):
    if request.param == "C":
        yield
    else:
        with library.reference_only():
            yield


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_number
@every_pair
def test_values_and_both_derivatives_are_good_to_the_last_places(pair, dtype, step):
    a, b = points(dtype, step)
    allowed = ACCURACY.get(pair.name, 3)
    held = np.maximum(np.abs(a), np.abs(b)) < LARGEST.get(pair.name, np.inf)
    held &= (pair is not binary.raise_to) | (a == 0) | (np.abs(a) >= 1e-3)
    # Where t is no sign, t x is rounded, which is worth |t x| last places of exp(-t x).
    held &= (pair is not losses.soft_margin) | (np.abs(b) == 1) | (a * b < 3)
    a, b = a[held], b[held]
    dy, known = np.ones_like(a), [ONES | xs for xs in values(pair, a.tolist(), b.tolist())]
    runs = [(pair.value(), lambda out: binary.combine(pair, a, b, out))]
    for side, root in enumerate(pair.gradients()):
        runs.append(
            (root, lambda out, side=side: binary.combine_backward(pair, dy, a, b, out, side))
        )
    for root, run in runs:
        out = np.empty_like(a)
        with np.errstate(all="ignore"):
            run(out)
        exact = [value_of(root, **xs) for xs in known]
        held = np.array([is_number(y) for y in exact])
        size = terms_of if pair.name in losses.LOSSES else size_of
        sizes = [size(root, **xs) for xs in known]
        chosen = [[each[k] for k in np.flatnonzero(held)] for each in (exact, sizes)]
        wrong = errors(out[held], *chosen)
        worst = wrong.argmax()
        assert wrong[worst] <= allowed, f"{wrong[worst]} at {a[held][worst]}, {b[held][worst]}"


@every_number
@every_pair
def test_both_slopes_are_the_limits_of_differences(pair, step):
    a, b = points("float64", step)
    body, change = pair.value(), mp.mpf("1e-40")
    compared = 0
    with mp.workdps(400):
        for xs in values(pair, a.tolist(), b.tolist()):
            if any([0 < abs(x) < 1e-6 for x in xs.values()]):
                continue
            for name, root in zip(pair.names, pair.gradients(), strict=True):
                ends = [value_of(body, **xs | {name: xs[name] + h}) for h in (change, -change)]
                slope = value_of(root, **ONES, **xs)
                if not all([is_number(x) and abs(x) < mp.mpf("1e300") for x in (*ends, slope)]):
                    continue
                numeric = (ends[0] - ends[1]) / (2 * change)
                if pair.is_differentiable:
                    assert abs(slope - numeric) <= abs(numeric) * mp.mpf("1e-14") + change, (
                        name,
                        xs,
                    )
                else:
                    assert slope == 0
                compared += 1
    assert compared > 300 / step**2


@pytest.mark.parametrize(("side", "border"), [(0, (-2.5, 0.0)), (0, (0.0, 0.0)), (1, (0.0, 2.0))])
def test_a_rare_case_of_a_power_changes_the_bits_of_no_other_element(side, border):
    rng = np.random.default_rng(5)
    a, b, dy = rng.uniform(0.1, 3, (3, 50))
    derivative = binary.raise_to.backward[side]
    usual, rare = np.empty((2, 50))
    derivative(dy, a, b, usual)
    a[7], b[7] = border
    with np.errstate(divide="ignore", invalid="ignore"):  # as in a run
        derivative(dy, a, b, rare)
    assert rare[7] == 0
    assert (np.delete(rare, 7) == np.delete(usual, 7)).all()


@pytest.mark.parametrize("number", [0.0, 2.0])
def test_a_power_of_one_number_has_a_gradient_by_the_exponent(number):
    b, dy = np.linspace(0, 3, 7), np.linspace(-1, 1, 7)
    out = np.empty(7)
    binary.raise_to.backward_with_number[1](dy, np.float64(number), b, out)
    np.testing.assert_allclose(out, dy * number**b * np.log(number or 1), rtol=1e-15)
