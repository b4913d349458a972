"""Steps of every update, with every choice that its numbers make."""

from dynbatch.kernels.optimizers import Rule
from dynbatch.optim import adadelta, adagrad, adam, exponentiated_gradient, rmsprop, sgd

STEPS = {
    "sgd": (sgd.sgd, (0.1, 0, 1, 0, 0)),
    "sgd-decay": (sgd.sgd, (0.1, 0, 1, 0.3, 0)),
    "sgd-momentum": (sgd.sgd, (0.1, 0.9, 0.5, 0.3, 0)),
    "sgd-nesterov": (sgd.sgd, (0.1, 0.9, 1, 0, 1)),
    "adagrad": (adagrad.adagrad, (0.1, 1e-3, 0)),
    "adagrad-decay": (adagrad.adagrad, (0.1, 1e-3, 0.3)),
    "rmsprop": (rmsprop.rmsprop, (0.1, 0.9, 0.1, 1e-3, 0, 0, 0)),
    "rmsprop-centered": (rmsprop.rmsprop, (0.1, 0.9, 0.1, 1e-3, 0.2, 0, 1)),
    "rmsprop-momentum": (rmsprop.rmsprop, (0.1, 0.9, 0.1, 1e-3, 0.2, 0.8, 0)),
    "rmsprop-all": (rmsprop.rmsprop, (0.1, 0.9, 0.1, 1e-3, 0.2, 0.8, 1)),
    "adam": (adam.adam, (0.01, 0.9, 0.99, 1e-3, 0, 1, 0)),
    "adam-decay": (adam.adam, (0.01, 0.9, 0.99, 1e-3, 0.2, 0.95, 0)),
    "adam-amsgrad": (adam.adam, (0.01, 0.9, 0.99, 1e-3, 0, 1, 1)),
    "adadelta": (adadelta.adadelta, (0.5, 0.9, 0.1, 1e-3, 0.2)),
    "exponentiated": (exponentiated_gradient.exponentiated, (0.5, 0)),
    "exponentiated-momentum": (exponentiated_gradient.exponentiated, (0.5, 0.9)),
}


def rule(name, scale=1):
    """The rule of a step, with its first number, which is a rate, times `scale`."""
    update, (rate, *numbers) = STEPS[name]
    return Rule(update, (rate * scale, *numbers))
