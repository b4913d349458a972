"""`kernels.optimizers` in C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels.c.optimizers import library_of
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.optimizers import ParameterSlice, Rule, update
from dynbatch.kernels.scalar.update import UpdateRule
from tests.kernels.c.compare import run_both
from tests.kernels.optimizer_steps import STEPS, rule
from tests.marks import needs_compiler

every_step = pytest.mark.parametrize("name", STEPS)
ROWS = {"dense": None, "none": [], "some": [0, 7, 8, 39], "all": range(40)}


def part_of(name, dtype, rows=None, width=33, every_row=True):
    """A parameter (40, width); the first slot is above the second's square, as averages are."""
    num_slots = len(rule(name).outcome.slots)
    rng = np.random.default_rng(0)
    shape = (40, width)
    slots = [rng.uniform(1 - k, 2 - k, shape).astype(dtype) for k in range(num_slots)]
    value, gradient = rng.standard_normal((2, *shape)).astype(dtype)
    if rows is not None:
        rows = np.array(rows, np.int64)
        gradient = gradient[rows]
    return ParameterSlice(value, gradient, tuple(slots), rule(name), rows, every_row)


def share(part, first, end):
    return [[(part, first, end)]], [np.empty((3, 1000 * part.value.itemsize), np.uint8)]


@every_step
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("every_row", [True, False])
def test_steps_equal_numpys(name, dtype, rows, every_row):
    for width in (1, 33):
        part = part_of(name, dtype, rows, width, every_row)
        cuts = part.num_units // 3, part.num_units - part.num_units // 3
        tolerance = 1e-12 if dtype == np.float64 else 1e-5
        for mine, reference in run_both(update, *share(part, *cuts)):
            if mine.dtype == dtype:
                np.testing.assert_allclose(mine, reference, tolerance, tolerance)


@every_step
def test_a_nan_or_an_infinity_goes_where_numpys_does(name):
    part = part_of(name, np.float32)
    for column, number in enumerate((np.nan, np.inf, -np.inf)):
        part.gradient[:, 5 * column] = number
        for k, slot in enumerate(part.slots, 1):
            slot[:, 5 * column + k] = number
    with np.errstate(all="ignore"):
        for mine, reference in run_both(update, *share(part, 0, part.num_units)):
            if mine.dtype == np.float32:
                np.testing.assert_allclose(mine, reference, 1e-5, 1e-5)


@every_step
def test_a_row_without_gradient_has_the_bits_of_one_whose_gradient_is_zero(name):
    sparse, dense = part_of(name, np.float32, [3, 4, 20]), part_of(name, np.float32)
    dense.gradient[...] = 0
    dense.gradient[sparse.rows] = sparse.gradient
    for part in (sparse, dense):
        for cut in range(0, part.num_units, 7):
            update(*share(part, cut, min(cut + 7, part.num_units)))
    for one, other in zip((sparse.value, *sparse.slots), (dense.value, *dense.slots), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("rows", [[3, 40], [-41, 3]])
@pytest.mark.parametrize("every_row", [True, False])
def test_rows_that_are_not_there_are_an_error_and_change_nothing(rows, every_row):
    part = part_of("SGD-lr", np.float32, [0, 1], 33, every_row)._replace(rows=np.array(rows))
    before = part.value.copy()
    if every_row:  # NumPy's version looks at the rows it steps only
        update(*share(part, 5, 5))
    else:
        with pytest.raises(IndexError):
            update(*share(part, 0, 2))
    assert (part.value == before).all()


@needs_compiler
def test_names_of_a_rule_may_be_those_of_c():
    @UpdateRule
    def own(value, gradient, fill, least, part):
        return {"value": value - gradient * least * fill, "fill": fill + part}

    value, fill = np.ones(3), np.ones(3)
    sliced = ParameterSlice(value, np.ones(3), (fill,), Rule(own, (2.0, 3.0)))
    for mine, reference in run_both(update, *share(sliced, 0, 3)):
        if mine.dtype == value.dtype:
            np.testing.assert_array_equal(mine, reference)


def test_dynbatchs_updates_are_in_one_file_that_is_compiled_with_all_others():
    files = {library_of(rule(name).update).name for name in STEPS}
    assert len(files) == 1 and files < set(source.names())


def test_an_update_of_a_users_may_be_named_as_one_of_dynbatchs():
    @UpdateRule
    def adam(value, gradient, lr):
        return {"value": value - gradient * lr}

    sliced = ParameterSlice(np.ones(3), np.full(3, 0.5), (), Rule(adam, (2.0,)))
    update(*share(sliced, 0, 2))
    assert sliced.value.tolist() == [0, 0, 1]


def test_what_is_not_finite_stays_in_its_element():
    part = part_of("Adam-lr", np.float32)
    part.gradient[2, 1], part.gradient[3, 2], part.value[0, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        pairs = list(run_both(update, *share(part, 0, part.num_units)))
    for mine, reference in pairs[:4]:
        np.testing.assert_allclose(mine, reference, 1e-5, 1e-5)


def test_arrays_that_c_does_not_know_are_stepped_by_numpy():
    part = part_of("SGD-lr", np.float32)
    before = part.value.copy()
    update(*share(part._replace(gradient=part.gradient.astype(np.float64)), 5, 6))
    assert np.flatnonzero(part.value != before).tolist() == [5]
