import math

from dynbatch.train.stopping import EarlyStopping


def notes(metrics, **settings):
    stopping = EarlyStopping(**settings)
    return [(stopping.note(metric, step), stopping.is_over) for step, metric in enumerate(metrics)]


def test_training_ends_after_patience_validations_without_a_better_one():
    found = notes([3.0, 4.0, 2.0, 2.0, 5.0], patience=2)
    assert found == [(True, False), (False, False), (True, False), (False, False), (False, True)]


def test_higher_may_be_better():
    found = notes([0.5, 0.6, 0.6], patience=1, higher_is_better=True)
    assert found == [(True, False), (True, False), (False, True)]


def test_without_patience_it_never_ends():
    assert not any(over for _, over in notes([1.0] * 50))


def test_a_metric_that_is_not_a_number_is_never_the_best():
    assert notes([math.nan, 1.0, math.nan], patience=9) == [
        (False, False),
        (True, False),
        (False, False),
    ]


def test_loaded_state_goes_on():
    one, other = EarlyStopping(patience=2), EarlyStopping(patience=2)
    one.note(1.0, 7)
    one.note(2.0, 8)
    other.load_state_dict(one.state_dict())
    assert other == one and not other.is_over
    other.note(1.0, 9)
    assert other.is_over and other.best_step == 7
