import re

import numpy as np
import pytest

from dynbatch.kernels.optimizers import Rule
from dynbatch.kernels.scalar import numpy_printer
from dynbatch.kernels.scalar.expressions import equal, where
from dynbatch.kernels.scalar.update import SCRATCH, UpdateRule, decayed, times
from tests.kernels.optimizer_steps import STEPS, rule

NEED_A_GRADIENT = {
    "SGD-lr", "Adagrad-lr", "Adagrad-lr-lr_decay-initial_accumulator_value-eps", "EG-lr-momentum",
}  # fmt: skip
NEED_A_THIRD = {"NAdam-lr-betas-eps-weight_decay-momentum_decay"}


def test_arrays_are_what_is_returned_and_other_names_are_numbers():
    @UpdateRule
    def average(value, gradient, mean, lr, share):
        return {"mean": mean + gradient * share, "value": value - lr * mean}

    assert (average.slots, average.numbers) == (("mean",), ("lr", "share"))
    assert list(average.outputs()) == ["value", "mean"]


def test_a_slot_that_the_numbers_leave_as_it_is_does_not_exist():
    slots = {name: rule(name).outcome.slots for name in STEPS}
    assert slots["SGD-lr"] == () and slots["SGD-lr-momentum"] == ("momentum_buffer",)
    assert slots["RMSprop-lr"] == ("square_average",)
    assert slots["RMSprop-lr-centered"] == ("square_average", "gradient_average")
    assert slots["RMSprop-lr-momentum"] == ("square_average", "momentum_buffer")
    assert slots["Adam-lr"] == slots["AdamW-lr"] == ("gradient_sum", "square_sum")
    assert slots["Adam-lr-amsgrad"] == ("gradient_sum", "square_sum", "largest_square_sum")


@pytest.mark.parametrize("name", STEPS)
def test_elements_without_gradient_stay_exactly_where_the_outcome_says_so(name):
    step, rng = rule(name), np.random.default_rng(0)
    arrays = [rng.uniform(1, 2, 5) / 4**k for k in range(1 + len(step.outcome.slots))]
    before = [array.copy() for array in arrays]
    step(arrays[0], np.zeros(5), arrays[1:], [np.empty(5), np.empty(5)])
    is_kept = all((a == b).all() for a, b in zip(arrays, before, strict=True))
    assert step.outcome.needs_gradient == is_kept == (name in NEED_A_GRADIENT)


@pytest.mark.parametrize("name", STEPS)
def test_two_arrays_are_room_enough_for_the_values_between_but_for_one_variant(name):
    made = [line for line in variant(rule(name)) if re.match(r"t\d+ = np\.(?!where)", line)]
    assert len(made) == (name in NEED_A_THIRD)


def variant(step):
    """The lines of NumPy code for the numbers of a step."""
    update = step.update
    truth = dict(zip(update._tests, update._ask(*step.numbers), strict=True))
    roots = {x: numpy_printer.decide(root, truth) for x, root in update.outputs("numpy").items()}
    names = ("value", "gradient", *update.slots, *SCRATCH, *update.numbers)
    text = numpy_printer.Printer(roots, set(), SCRATCH).text(update.name, names)
    return [line.strip() for line in text.splitlines()[1:] if line.strip()]


def test_numpy_replaces_arrays_in_place_and_leaves_out_what_numbers_make_needless():
    assert variant(rule("Adam-lr")) == [
        "np.multiply(beta1, gradient_sum, gradient_sum)",
        "np.add(gradient_sum, gradient, gradient_sum)",
        "np.multiply(beta2, square_sum, square_sum)",
        "np.multiply(gradient, gradient, t0)",
        "np.add(square_sum, t0, square_sum)",
        "np.sqrt(square_sum, t0)",
        "np.add(t0, scaled_eps, t0)",
        "np.divide(gradient_sum, t0, t0)",
        "np.multiply(t0, step_size, t0)",
        "np.subtract(value, t0, value)",
    ]


def test_the_steps_have_every_truth_of_every_condition():
    truths = {}
    for name in STEPS:
        step = rule(name)
        update, numbers = step.update, step.numbers
        for test, truth in zip(update._tests, update._ask(*numbers), strict=True):
            truths.setdefault((update.name, test), set()).add(truth)
    assert [pair for pair, seen in truths.items() if len(seen) < 2] == []


def test_an_array_is_replaced_once_nothing_reads_the_old_one():
    @UpdateRule
    def swing(value, gradient, before, lr, keep):
        chosen = where(equal(keep, 0), gradient, before)
        return {"value": value + chosen * lr, "before": value - decayed(gradient, before, keep)}

    value, gradient, before = np.array([1.0, 2.0]), np.array([3.0, 5.0]), np.array([7.0, 11.0])
    swing.run(value, gradient, before, np.empty(2), np.empty(2), 2.0, 3.0)
    assert (value.tolist(), before.tolist()) == ([15.0, 24.0], [-23.0, -36.0])


def test_two_arrays_may_take_one_result():
    @UpdateRule
    def copied(value, gradient, mean):
        result = value * 2 - (gradient + value)
        return {"value": result, "mean": result}

    value, mean = np.array([3.0, 5.0]), np.zeros(2)
    copied.run(value, np.ones(2), mean, *np.empty((2, 2)))
    assert value.tolist() == mean.tolist() == [2.0, 4.0]


def test_a_product_by_one_is_left_out():
    @UpdateRule
    def scale(value, gradient, factor):
        return {"value": times(value, factor) - gradient}

    assert [len(variant(Rule(scale, (factor,)))) for factor in (1.0, 2.0)] == [1, 2]
